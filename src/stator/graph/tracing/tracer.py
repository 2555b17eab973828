"""Tracing: runs a graph of torch calls, or any callable, on fake tensors below autograd and yields a functional graph.

`functionalize.py` records operators; no particular operator is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from stator.base.errors import CompileError, StatorError, Unsupported
from stator.base.signals import raised_by_signal_handler
from stator.graph.fake.number_stand_ins import DataDependent, holds_numbers
from stator.graph.fake.unknown_sizes import UnknownSizes, rely_on_copy
from stator.graph.fake.wrapper_subclasses import is_wrapper
from stator.graph.functionalization.functionalize import FunctionalTracer, Keep
from stator.graph.functionalization.outputs import describe_outputs
from stator.graph.functionalization.unknown_sizes import UnknownSizeRecorder
from stator.graph.ir.aten_graph import LazyGraphModule, graphs_of_callable
from stator.graph.ir.cleanup import clean_up
from stator.graph.ir.traced import Traced
from stator.graph.operators.data_dependent_functions import stand_in_for
from stator.graph.operators.number_forms import of_numbers
from stator.graph.torch_warnings import cpp_warnings_kept


def trace(
    function: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    keep: Keep,
    captured: Sequence[torch.Tensor] = (),
    merge_equal: bool = False,
    unknown: UnknownSizes | None = None,
) -> Traced:
    """Trace a GraphModule of torch calls, or any callable, into a functional graph of ATen operators.

    example_inputs: the arguments of `function`; the tensors among them become placeholders. Fakes may have symbolic
        sizes. SymInts become placeholders behind all tensors.
    captured: tensors that `function` reaches by itself (parameters, buffers); they become further placeholders.
    keep: says which operators the backend takes whole; others are decomposed if a decomposition is known.
    merge_equal: treat a tensor that is passed twice as one input, so that a write to either is seen by both.
    unknown: the sizes of the program that depend on data; without them, operators that make such sizes are refused.

    Raises Unsupported (at the user's line if the source graph records it) for programs that cannot be traced, and
    CompileError when the traced code itself fails.
    """
    tracer = FunctionalTracer(keep)
    tracer.unknown = None if unknown is None else UnknownSizeRecorder(tracer, unknown)
    leaves, spec = pytree.tree_flatten(list(example_inputs))
    names = placeholder_names(function, leaves)
    with ExitStack() as stack:
        stack.enter_context(torch._C._InferenceMode(False))
        stack.enter_context(torch.no_grad())
        if not (_under_autocast(function) or _may_be_lazy(function, leaves) or _has_subclasses(function)):
            stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        fakes = [
            tracer.add_input(leaf, name, merge_equal) if isinstance(leaf, torch.Tensor) else leaf
            for leaf, name in zip(leaves, names, strict=True)
        ]
        for index, tensor in enumerate(captured):
            tracer.add_input(tensor, f"captured_{index}")
        numbers = add_numbers(tracer, leaves, names)
        with tracer.facts_located(), tracer:
            traced = _finish(tracer, run_function(function, pytree.tree_unflatten(fakes, spec), tracer))
            traced.numbers = numbers
            return traced


def add_numbers(tracer: FunctionalTracer, leaves: Sequence[Any], names: Sequence[str]) -> tuple[int, ...]:
    """Make placeholders of the symbolic ints among the inputs; returns their positions."""
    found = tuple([at for at, leaf in enumerate(leaves) if type(leaf) is torch.SymInt])
    for at in found:
        tracer.add_number(leaves[at], names[at])
    return found


def _under_autocast(function: Callable[..., Any]) -> bool:
    """Whether autocast is on in a program or in a part of it. Autocast chooses dtypes above autograd, so composite
    operators have to decompose there and not below."""
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return True
    modules = function.modules() if isinstance(function, torch.nn.Module) else ()
    return any(
        node.target is torch.set_autocast_enabled and node.args[-1] is True
        for module in modules
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    )


def _may_be_lazy(function: Callable[..., Any], leaves: Sequence[Any]) -> bool:
    """Whether a program may see a lazily conjugated or negated tensor. Below autograd such a tensor is resolved before
    composite operators decompose, although some of them would only have inspected it."""
    if not isinstance(function, fx.GraphModule):
        return any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves)
    return any(
        isinstance(one, torch.Tensor) and (one.is_conj() or one.is_neg())
        for module in function.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
        for one in pytree.tree_leaves(node.meta.get("example_value"))
    )


def _has_subclasses(function: Callable[..., Any]) -> bool:
    """Whether a graph or a part of it holds wrapper subclasses. Their classes expect operators as eager's autograd
    hands them over, composite operators decomposed."""
    return isinstance(function, fx.GraphModule) and any(
        any(map(is_wrapper, pytree.tree_leaves(node.meta.get("example_value"))))
        or any(map(_has_subclasses, graphs_of_callable(node).values()))
        for node in function.graph.nodes
    )


def run_function(function: Callable[..., Any], arguments: Sequence[Any], tracer: FunctionalTracer) -> Any:
    """Run a GraphModule of torch calls node by node; call any other callable.

    Autocast's dtypes and its switch for the cache are as before. Leaving inference mode restores its other switches.
    """
    dtypes = [(device, torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")]
    caches = torch.is_autocast_cache_enabled()
    try:
        if isinstance(function, fx.GraphModule):
            return run_graph(function, arguments, tracer)
        with _StandIns():
            return function(*arguments)
    finally:
        for device, dtype in dtypes:
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(caches)


class _StandIns(TorchFunctionMode):
    """Runs the replacements of `stand_ins` in a callable, as `run_graph` does in a graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (stand_in_for(func) or func)(*args, **(kwargs or {}))


def placeholder_names(function: Callable[..., Any], leaves: Sequence[Any]) -> list[str]:
    if isinstance(function, fx.GraphModule):
        names = [str(node.target) for node in function.graph.nodes if node.op == "placeholder"]
        if len(names) == len(leaves):
            return names
    return [f"arg_{index}" for index in range(len(leaves))]


def _finish(tracer: FunctionalTracer, result: Any) -> Traced:
    leaves, spec = pytree.tree_flatten(result)
    described = describe_outputs(tracer, leaves)
    sizes, missing = described.unknown_sizes(tracer)
    graph, constants = close_graph(tracer, [*[value.node for value in described.values], *missing])
    traced = described.traced(tracer, graph, constants, spec)
    traced.result_sizes = sizes
    return traced


def close_graph(tracer: FunctionalTracer, outputs: Sequence[Any]) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
    """Set the outputs of the recorded graph, nodes and symbolic ints, and clean it up. Returns a module and the
    constants that the graph reads."""
    if tracer.unknown is not None:
        tracer.unknown.finish()
    node = tracer.graph.output(tuple(outputs))
    node.meta["val"] = tuple(output.meta["val"] if isinstance(output, fx.Node) else output for output in outputs)
    root = torch.nn.Module()
    clean_up(tracer.graph, copies_of_inputs=any(fake.requires_grad for fake in tracer.inputs))
    used = {str(node.target) for node in tracer.graph.nodes if node.op == "get_attr"}
    constants = {name: tensor for name, tensor in tracer.constants.items() if name in used}
    for name, tensor in constants.items():
        root.register_buffer(name, tensor, persistent=False)
    # Python code of the graph is generated on demand
    return LazyGraphModule(root, tracer.graph, "AtenGraph"), constants


def run_graph(module: fx.GraphModule, arguments: Sequence[Any], tracer: FunctionalTracer) -> Any:
    """Run a graph of torch calls node by node, so that recorded nodes know their original node and the user's line."""
    values: dict[fx.Node, Any] = {}
    remaining = iter(arguments)
    for node in module.graph.nodes:
        tracer.begin(node)
        if node.op == "placeholder":
            values[node] = next(remaining)
            continue
        if node.op == "output":
            _refuse_numbers(node, values)
            return fx.map_arg(node.args[0], values.__getitem__)
        try:
            with cpp_warnings_kept(node.target, []):  # capture has given them
                values[node] = _run_node(module, node, values)
        except Unsupported as error:
            placed = error.at(tracer.place) if tracer.place else error
            placed.origin = node
            raise placed from error.__cause__
        except StatorError as error:
            error.origin = node
            raise
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            failed = CompileError(
                "aot", f"{node.format_node()} failed: {type(error).__name__}: {error}", place=tracer.place
            )
            failed.origin = node
            raise failed from error
    raise CompileError("aot", "the graph has no output node")


def _refuse_numbers(output: fx.Node, values: dict[fx.Node, Any]) -> None:
    """Refuse to return a Python number that depends on data: only operators inside of a traced graph can use it."""
    for node in output.all_input_nodes:
        if holds_numbers(values[node]):
            error = DataDependent("data-dependent", "a Python number that depends on data leaves the traced code")
            error.origin = node
            raise error


def _run_node(module: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        value: Any = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value
    args = fx.map_arg(node.args, values.__getitem__)
    kwargs = fx.map_arg(node.kwargs, values.__getitem__)
    made = of_numbers(node.target, args, kwargs)
    if made is not NotImplemented:
        return made
    stand_in = stand_in_for(node.target)
    if stand_in is not None:
        return stand_in(*args, **kwargs)
    if node.op == "call_function":
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        return rely_on_copy(node.target, args, result)
    if node.op == "call_method":
        return rely_on_copy(node.target, args, getattr(args[0], str(node.target))(*args[1:], **kwargs))
    return module.get_submodule(str(node.target))(*args, **kwargs)
