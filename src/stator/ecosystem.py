"""The backend behind torch.compile(model, backend="stator")."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from stator.backends import Backend, resolve_backend, run_eagerly
from stator.base import logs
from stator.base.errors import CompileError, StatorError


def torch_compile_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Compile a graph captured by another front end.

    Parameters and buffers may be inputs or attributes of `gm`; example inputs may be fake. Sizes are specialised: a
    symbolic size is fixed to its value, so that the front end compiles again for another value. A graph that cannot be
    compiled (it calls submodules, or takes tensor subclasses made of other tensors) runs eagerly, with a warning.
    """
    compile_graph, _ = resolve_backend("inductor", mode, options)
    try:
        return _compiled(gm, example_inputs, compile_graph)
    except StatorError as error:
        logs.warn_once(f"ecosystem:{error}", f"stator: a graph of torch.compile runs eagerly. {error}")
        return run_eagerly(gm, example_inputs)


def _compiled(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compile_graph: Backend
) -> Callable[..., Sequence[Any]]:
    graph = copy.deepcopy(gm.graph)
    numbers = {index: _plain_number(value) for index, value in enumerate(example_inputs) if isinstance(value, _NUMBERS)}
    _fix_numbers(graph, numbers)
    attributes = _lift_attributes(gm, graph)
    lifted = fx.GraphModule(torch.nn.Module(), graph)
    tensors = [_real_example(value) for index, value in enumerate(example_inputs) if index not in numbers]
    compiled = compile_graph(lifted, [*tensors, *attributes])
    kept = [index for index in range(len(example_inputs)) if index not in numbers]

    def run(*inputs: Any) -> Sequence[Any]:
        for index, value in numbers.items():
            if inputs[index] != value:
                raise CompileError(
                    "stator backend",
                    f"input {index} was {value} when this was compiled and is {inputs[index]} now",
                    hint="sizes are specialised: pass dynamic=False to torch.compile",
                )
        return compiled(*(inputs[index] for index in kept), *attributes)

    return run if numbers or attributes else compiled


_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


def _plain_number(value: Any) -> int | float | bool:
    """The value. Converting a symbolic number fixes it, and leaves a guard with the front end."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    return bool(value) if isinstance(value, torch.SymBool) else value


def _real_example(value: Any) -> torch.Tensor:
    """A plain tensor with the sizes, strides, dtype and device of `value`."""
    if not isinstance(value, torch.Tensor):
        raise CompileError("stator backend", f"an input that is neither tensor nor number: {type(value).__name__}")
    _refuse_contents(value)
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return value
    size, stride = [int(length) for length in value.shape], [int(step) for step in value.stride()]
    with _disable_current_modes():  # under the front end's fake mode this would be fake again
        example = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
        return example.requires_grad_(value.requires_grad) if value.requires_grad else example


def _refuse_contents(value: torch.Tensor) -> None:
    """Refuse a tensor made of other tensors, which has no memory that a kernel could read."""
    if is_traceable_wrapper_subclass(value):
        raise CompileError("stator backend", f"the graph is given a {type(value).__name__}, which is made of tensors")


def _fix_numbers(graph: fx.Graph, numbers: Mapping[int, int | float | bool]) -> None:
    """Replace number inputs with constants."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    values = {placeholders[index]: value for index, value in numbers.items()}
    for node in graph.nodes:
        node.args = fx.node.map_arg(node.args, lambda used: values.get(used, used))
        node.kwargs = fx.node.map_arg(node.kwargs, lambda used: values.get(used, used))
    for node in values:
        graph.erase_node(node)


def _lift_attributes(gm: fx.GraphModule, graph: fx.Graph) -> list[torch.Tensor]:
    """Turn tensor attributes into further inputs; returns their values, in order."""
    lifted: dict[str, fx.Node] = {}
    values: list[torch.Tensor] = []
    last = [node for node in graph.nodes if node.op == "placeholder"][-1:]
    for node in list(graph.nodes):
        if node.op == "call_module":
            raise CompileError(
                "stator backend",
                f"the graph calls the module {node.target!r} as a whole",
                hint="let the front end inline modules (torch._dynamo.config.inline_inbuilt_nn_modules = True)",
            )
        if node.op != "get_attr":
            continue
        value = operator.attrgetter(node.target)(gm)
        if not isinstance(value, torch.Tensor):
            raise CompileError("stator backend", f"the graph reads {node.target!r}, a {type(value).__name__}")
        _refuse_contents(value)
        if node.target not in lifted:
            with graph.inserting_after(last[0]) if last else graph.inserting_before(next(iter(graph.nodes))):
                made = graph.placeholder("attribute_" + node.target.replace(".", "_"))
            made.meta = dict(node.meta)
            last = [made]
            lifted[node.target] = made
            values.append(value)
        node.replace_all_uses_with(lifted[node.target])
        graph.erase_node(node)
    return values
