"""The settings of a `stator.compile` call, the call of its backend on a captured graph, and what starts before it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType
from typing import Any

import torch
from torch import fx

from stator.base import counters, dumps, logs
from stator.base.config import Options
from stator.base.errors import CompileError, MissingToolchain, StatorError, Unsupported, UserPlace
from stator.base.signals import raised_by_signal_handler
from stator.graph.printer import print_graph
from stator.runtime import cuda

from .guards.guard import Guard, GuardKind
from .guards.source import Source
from .guards.tensor_guards import content_of
from .host.freed_tensors import free_tensor
from .ir.capture_assumptions import Operation, operation_name
from .ir.capture_parts import members
from .ir.capture_result import CapturedFrame
from .ir.reconstruct_ir import Load

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a `stator.compile` call. `on_captured` receives each captured frame before the backend receives
    its graph. `dynamic`: see `stator.compile`."""

    backend: Backend
    backend_name: str = "eager"
    fullgraph: bool = False
    options: Options = field(default_factory=Options)
    on_captured: Callable[[CapturedFrame], None] | None = None
    dynamic: bool | None = None


def prepare(settings: Settings, code: CodeType, arguments: Mapping[str, Any]) -> None:
    """Let the process that compiles kernels for GPUs start while a frame is captured, if an argument is on a GPU."""
    if settings.backend_name == "inductor" and torch.cuda.is_initialized():
        tensors = list(_tensors_among(arguments.values()))
        if any(tensor.device.type == "cuda" for tensor in tensors):
            sizes = [tuple(tensor.shape) for tensor in tensors]
            cuda.prepare(f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname} {sizes}")


def _tensors_among(values: Iterable[Any], depth: int = 6) -> Iterator[torch.Tensor]:
    """The tensors in arguments and in containers among them, and the first parameter of each module. Looks no deeper
    than two containers or six modules. Runs no code of the program."""
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            yield value
        elif kind in (tuple, list, dict) and depth >= 3:
            yield from _tensors_among(value.values() if kind is dict else value, depth - 3)
        elif issubclass(kind, torch.nn.Module) and depth:
            own = object.__getattribute__(value, "__dict__")
            inner = [*own.get("_parameters", {}).values(), *own.get("_modules", {}).values()]
            yield from islice(_tensors_among(inner, depth - 1), 1)


def compile_graph(
    captured: CapturedFrame, settings: Settings, name: str, refused: Container[Operation]
) -> Callable[..., Any] | None:
    """The backend's callable for the graph, or None without a graph. Raises CompileError if the backend fails, and
    Unsupported if it cannot compile a graph with symbols for sizes of inputs, or with an operation ahead of which the
    graph may end: one that is not among the `refused`."""
    graph = captured.graph
    if graph is None:
        return None
    counters.count("graphs")
    dumps.show("graph", "10_graph.py", lambda: print_graph(graph, title=name), f"of {name}")
    stage, place = f"backend {settings.backend_name!r}", first_place(captured)
    contents = _contents(captured) if settings.options.freezing else {}
    graph.meta["fixed_inputs"] = list(contents)
    try:
        with counters.timed("backend"), facts_located(captured, place):
            compiled = settings.backend(graph, [entry.example for entry in captured.inputs])
    except MissingToolchain as error:
        if settings.fullgraph:
            raise
        logs.warn_once("toolchain", f"stator: captured graphs run eagerly, operation by operation: {error}")
        return graph.forward
    except Unsupported as error:
        operation = refused_operation(error, captured)
        may_end = operation is not None and operation not in refused and not settings.fullgraph
        if refuses_symbols(error, captured) or may_end or (operation is None and settings.fullgraph):
            raise
        counters.count("refused_graphs")
        logs.warn_once(
            f"refused:{error.kind}:{place.filename}:{place.function}",
            f"stator: a graph runs eagerly, operation by operation ({error.kind}): {error.at(place)}",
        )
        graph.meta["left_to_eager"] = error.reason  # the frame's own code does so at less cost
        return graph.forward
    except StatorError:
        raise
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        raise CompileError(stage, f"{type(error).__name__}: {error}", place=place) from error
    if not callable(compiled):
        raise CompileError(
            stage,
            f"the backend returned {type(compiled).__name__}, which is not callable",
            place=place,
            hint="a backend is (gm, example_inputs) -> callable; return gm.forward to run the graph as it is",
        )
    for at in graph.meta.get("frozen_inputs", ()):
        captured.guards.append(contents[at])
    if settings.options.free_parameters:
        handed_out = {load.source for load in members((captured.effects, captured.exit), Load)}
        for at in graph.meta.get("unread_inputs", ()):
            if contents[at].source not in handed_out:
                _free_input(captured, contents[at].source, captured.inputs[at].example)
    return compiled


def _free_input(captured: CapturedFrame, source: Source, tensor: Any) -> None:
    """Free a tensor of which the compiled code has constants. From then on, guards know it by identity and type."""
    kept = [guard for guard in captured.guards if guard.source != source or guard.kind is GuardKind.IS]
    captured.guards[:] = [*kept, Guard(source, GuardKind.TYPE, free_tensor(tensor))]


def _contents(captured: CapturedFrame) -> dict[int, Guard]:
    """Guards on the present contents of parameters and buffers, by input. A backend names the inputs that it made
    constants of in graph.meta["frozen_inputs"], and those of them that it does not read in "unread_inputs"."""
    made = {}
    for at, entry in enumerate(captured.inputs):
        if entry.is_static and isinstance(entry.example, torch.Tensor) and isinstance(entry.recipe, Load):
            content = content_of(entry.example)
            if content is not None:
                made[at] = Guard(entry.recipe.source, GuardKind.CONTENT, content)
    return made


def facts_located(captured: CapturedFrame, place: UserPlace) -> AbstractContextManager[None]:
    """Let facts that the backend relies on name this line, where the backend names no other."""
    return nullcontext() if captured.sizes is None else captured.sizes.environment.located(lambda: place)


def refuses_symbols(error: Unsupported, captured: CapturedFrame) -> bool:
    """Whether the backend refused a graph because sizes are symbols: those of its inputs, or sizes that depend on
    data."""
    of_inputs = captured.sizes is not None and captured.sizes.has_symbols
    return error.kind == "dynamic-shape" and (of_inputs or has_unknown_sizes(captured))


def refused_operation(error: StatorError, captured: CapturedFrame) -> Operation | None:
    """The operation of the graph that the backend could not trace. The error may name its copy in another graph."""
    origin = error.origin
    if isinstance(origin, fx.Node) and isinstance(error, (Unsupported, CompileError)):
        assert captured.graph is not None
        for node in captured.graph.graph.nodes:
            if (node.name, node.op, node.target) == (origin.name, origin.op, origin.target) and "place" in node.meta:
                return operation_name(node.target), node.meta["place"]
    return None


def has_unknown_sizes(captured: CapturedFrame) -> bool:
    """Whether the graph has operators that make sizes or numbers depend on data."""
    assert captured.graph is not None
    return any(node.meta.get("data_dependent") for node in captured.graph.graph.nodes)


def first_place(captured: CapturedFrame) -> UserPlace:
    """The user's line at which the graph starts, if a node knows its line; else the function's first line."""
    assert captured.graph is not None
    code = captured.code
    places = (node.meta.get("place") for node in captured.graph.graph.nodes)
    found = next((place for place in places if place is not None), None)
    return found or UserPlace(code.co_filename, code.co_firstlineno, code.co_qualname)
