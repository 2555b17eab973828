"""`stator.decompose(program, ...)`: a program as a functional graph of one published level of the operator set.

`prims` defines the operators of each level and their decompositions; `graph` traces.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.base.errors import CompileError, Unsupported, UsageError, UserPlace
from stator.graph.fake.fake_mode import FakeMode, FakeTensor
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.tracing.functional import below_autograd, close_with_structure
from stator.graph.tracing.tracer import run_function
from stator.prims.query import LEVELS, overload_of
from stator.prims.record import TensorMeta, record

PLAIN = (tuple, list, dict, int, float, bool, complex, str, type(None), torch.dtype, torch.device, fx.Node)


def decompose(
    program: Callable[..., Any],
    example_inputs: Sequence[Any] | None = None,
    *,
    to: str = "prims",
    keep: Collection[str | OpOverload] = (),
) -> fx.GraphModule:
    """Trace a program to a functional graph of canonical ATen (`to="aten"`) or of primitives (`to="prims"`).

    program: an fx.GraphModule of torch calls or of ATen operators, a module, or any callable of tensors.
    example_inputs: arguments for one call; optional for a GraphModule whose placeholders carry `meta["val"]` or
        `meta["example_value"]`. Their sizes, strides and dtypes are fixed, and so are arguments that are not tensors,
        which
        stay as placeholders that nothing reads.
    keep: operators to leave whole although they are of another level.

    The result takes the same arguments and returns the same values in the same structure, without gradients. Its nodes
    are calls of `OpOverload`s and `operator.getitem`, with a `TensorMeta` in `node.meta["val"]`; none writes to an
    argument, and nothing depends on which results share memory. Parameters and buffers are shared with `program`, as
    attributes with dots turned into underscores. Where `program` writes to inputs or buffers, the graph returns
    `(result, {name: new content})` instead.

    Raises CompileError, with operator and place, for an operator that is neither of the level nor decomposed into it,
    Unsupported for what cannot be traced, UsageError for arguments that do not fit.
    """
    if to not in LEVELS:
        raise UsageError(f"unknown level {to!r}; known levels: {', '.join(LEVELS)}")
    if not callable(program):
        raise UsageError(f"stator.decompose takes a GraphModule or a callable, not {type(program).__name__}")
    kept = frozenset(overload_of(one) for one in keep)
    inputs = list(example_inputs) if example_inputs is not None else _inputs_of_graph(program)
    owned = _owned(program) if isinstance(program, torch.nn.Module) else {}
    _check_inputs(inputs)
    tracer = _PlacingTracer(lambda target: target in kept or _belongs(target, to))
    nodes = _names(program, inputs)
    with below_autograd():
        arguments = [_input(tracer, value, name) for value, name in zip(inputs, nodes, strict=True)]
        captured = {name: tracer.add_input(tensor, f"owned_{name}") for name, tensor in owned.items()}
        with tracer:
            result = _run(program, arguments, tracer)
            written = _written(tracer, dict(zip(nodes, arguments, strict=True)) | captured)
            _check_sharing(written, inputs)
            module = _close(tracer, (result, written) if written else result)
    _attach(module, {f"owned_{name}": (name, tensor) for name, tensor in owned.items()})
    _check_level(module.graph, to, kept)
    return fx.GraphModule(module, module.graph, type(program).__name__ if owned else "Decomposed")


# -- running ----------------------------------------------------------------------------------------------------------


class _PlacingTracer(FunctionalTracer):
    """Notes for each operator the place in the program, also for programs that are no graphs."""

    def _node(self, *arguments: Any) -> fx.Node:
        node = super()._node(*arguments)
        if "place" not in node.meta:
            place = _place(frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
            if place is not None:
                node.meta["place"] = place
        return node


def _run(program: Callable[..., Any], arguments: Sequence[Any], tracer: FunctionalTracer) -> Any:
    """Run the program, without the fused operators of torch's own modules, which belong to no level."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return run_function(program, arguments, tracer)
    except Unsupported as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        place = _place(reversed(frames))
        if place is None:
            raise
        raise error.at(place) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _place(frames: Iterable[FrameType]) -> UserPlace | None:
    """The innermost of these frames that belongs to the program: not to torch, stator, or the caller of `decompose`."""
    for frame in frames:
        code = frame.f_code
        if code is decompose.__code__:
            return None
        if not code.co_filename.startswith(_LIBRARIES):
            return UserPlace(code.co_filename, frame.f_lineno or 0, code.co_qualname)
    return None


_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


# -- inputs -----------------------------------------------------------------------------------------------------------


def _inputs_of_graph(program: Any) -> list[Any]:
    if not isinstance(program, fx.GraphModule):
        raise UsageError(
            "stator.decompose needs example_inputs, unless it is given a GraphModule that describes its own"
        )
    mode = FakeMode()
    found = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val", node.meta.get("example_value"))
            if value is None:
                raise UsageError(f"the placeholder {node.name} carries no meta['val']; pass example_inputs")
            found.append(mode.make(value) if isinstance(value, TensorMeta) else value)
    return found


def _check_inputs(inputs: Sequence[Any]) -> None:
    for position, value in enumerate(inputs):
        nested = not isinstance(value, torch.Tensor) and any(
            isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)
        )
        if nested:
            raise UsageError(
                f"example input {position} is a {type(value).__name__} of tensors; pass tensors by themselves"
            )


def _names(program: Any, inputs: Sequence[Any]) -> list[str]:
    if not isinstance(program, fx.GraphModule):
        return [f"arg_{position}" for position in range(len(inputs))]
    names = [str(node.target) for node in program.graph.nodes if node.op == "placeholder"]
    if len(names) != len(inputs):
        raise UsageError(f"the graph takes {len(names)} inputs ({', '.join(names)}), but {len(inputs)} were given")
    return names


def _input(tracer: FunctionalTracer, value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor):
        return tracer.add_input(value, name)
    tracer.graph.placeholder(name)
    return value


def _owned(program: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; shared ones once."""
    seen: dict[int, str] = {}
    found = {}
    for name, tensor in (*program.named_parameters(), *program.named_buffers()):
        if seen.setdefault(id(tensor), name) == name:
            found[name.replace(".", "_")] = tensor
    return found


# -- results ----------------------------------------------------------------------------------------------------------


def _written(tracer: FunctionalTracer, values: dict[str, Any]) -> dict[str, FakeTensor]:
    """The inputs and buffers that the program has written to, by name."""
    return {
        name: fake for name, fake in values.items() if isinstance(fake, FakeTensor) and fake.fake_storage.version > 0
    }


def _check_sharing(written: dict[str, FakeTensor], inputs: Sequence[Any]) -> None:
    storages = [
        value.untyped_storage()._cdata
        for value in inputs
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    ]
    if written and len(set(storages)) < len(storages):
        raise Unsupported("overlapping-inputs", "the program writes to inputs, some of which share memory")


def _close(tracer: FunctionalTracer, result: Any) -> fx.GraphModule:
    """The recorded graph, with an output of the program's own structure."""
    module = close_with_structure(tracer, result)
    output = next(iter(reversed(module.graph.nodes)))
    for part in _parts(output.args[0]):
        if not isinstance(part, PLAIN):
            raise UsageError(
                f"the program returns a {type(part).__name__}; a graph returns tensors in tuples, lists and dicts"
            )
    return module


def _parts(value: Any) -> Iterator[Any]:
    yield value
    children: Any = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    for child in children:
        yield from _parts(child)


def _attach(module: fx.GraphModule, owned: dict[str, tuple[str, torch.Tensor]]) -> None:
    """Turn the placeholders of parameters and buffers into reads of attributes."""
    for node in list(module.graph.nodes):
        if node.op != "placeholder" or node.target not in owned:
            continue
        name, tensor = owned[str(node.target)]
        if node.users:
            if isinstance(tensor, torch.nn.Parameter):
                module.register_parameter(name, tensor)
            else:
                module.register_buffer(name, tensor)
            with module.graph.inserting_before(node):
                read = module.graph.get_attr(name)
            read.meta.update(node.meta)
            node.replace_all_uses_with(read)
        module.graph.erase_node(node)


# -- levels -----------------------------------------------------------------------------------------------------------


def _belongs(target: OpOverload, level: str) -> bool:
    found = record(target).level
    return found == level or (level == "aten" and found == "prims")


def _check_level(graph: fx.Graph, level: str, kept: Collection[OpOverload]) -> None:
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, OpOverload) or target in kept or _belongs(target, level):
            continue
        entry = record(target)
        if entry.decompose is None:
            why = "and has no decomposition"
        else:
            why = "and its decomposition does not cover this case"
        origin = node.meta.get("origin")
        traced = f" (traced from {origin.name})" if origin is not None else ""
        what = {"prims": "primitive", "aten": "canonical ATen operator"}[level]
        raise CompileError(
            "decompose",
            f"{node.name}{traced} calls {target}, which is no {what}, {why}",
            place=node.meta.get("place"),
            hint=f"register one by stator.prims.decomposition({entry.name!r}), or keep=[{entry.name!r}] leaves it",
        )
