"""Backends by name: functions that compile a captured graph, built in, registered, or installed by packages."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, overload

from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from stator.base.config import FRONT_END, Options, make_options
from stator.base.errors import UsageError
from stator.base.registry import Registry
from stator.graph.ir.aten_graph import PlainGraphModule

CompiledGraph = Callable[..., Sequence[Any]]
Backend = Callable[..., CompiledGraph]  # (gm, example_inputs) -> callable returning a tuple or list
Factory = Callable[[str | None, Mapping[str, object] | None], tuple[Backend, Options]]

_ENTRY_POINT_GROUP = "torch_dynamo_backends"  # packages list backends for torch.compile here; they work unchanged

_built_in: Registry[str, Factory] = Registry("backend")
_registered: Registry[str, Backend] = Registry("backend")


def list_backends() -> list[str]:
    """The names that `stator.compile(backend=...)` knows: built in, registered, and installed by other packages."""
    return sorted({*_built_in, *_registered, *_installed()})


@overload
def register_backend(backend: Backend, /, name: str | None = None) -> Backend: ...
@overload
def register_backend(backend: None = None, /, name: str | None = None) -> Callable[[Backend], Backend]: ...
def register_backend(backend: Backend | None = None, /, name: str | None = None) -> Any:
    """Give a backend a name: `register_backend(f)`, `register_backend(f, name="x")`, or as a decorator with or without
    `name`. The name defaults to the function's own. Raises UsageError when the name is taken."""
    if backend is None:
        return lambda function: register_backend(function, name=name)
    chosen = name or getattr(backend, "__name__", None)
    if not callable(backend) or not chosen:
        raise UsageError(f"a backend is a callable (gm, example_inputs) -> callable with a name, not {backend!r}")
    if chosen in _built_in or chosen in _registered:
        raise UsageError(f"a backend named {chosen!r} exists already")
    _registered.add(chosen, backend)
    return backend


def resolve_backend(
    backend: str | Backend, mode: str | None = None, options: Mapping[str, object] | None = None
) -> tuple[Backend, Options]:
    """The backend as a callable (gm, example_inputs), and the options for all stages before it.

    Mode and options of built-in backends are checked. Any other backend gets them as keyword arguments, as from
    torch.compile. Raises UsageError for an unknown name, and for an object that is no backend.
    """
    if mode is not None and not isinstance(mode, str):
        raise UsageError(f"mode must be a name or None, not {mode!r}")
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options must be a dictionary from names to values, not {options!r}")
    if isinstance(backend, str):
        factory = _built_in.get(backend)
        if factory is not None:
            return factory(mode, options)
        backend = _by_name(backend)
    elif not callable(backend):
        raise UsageError(f"backend must be a name or a callable (gm, example_inputs), not {backend!r}")
    keywords: dict[str, Any] = {}
    if mode is not None and mode != "default":
        keywords["mode"] = mode
    front_end = {name: value for name, value in (options or {}).items() if name in FRONT_END}
    rest = {name: value for name, value in (options or {}).items() if name not in FRONT_END}
    if rest:
        keywords["options"] = rest
    return _with_keywords(backend, keywords), make_options(None, front_end)


def backend_name(backend: str | Backend) -> str:
    """The name of a backend, for messages."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


def _by_name(name: str) -> Backend:
    found = _registered.get(name)
    if found is not None:
        return found
    installed = _installed().get(name)
    if installed is not None:
        return installed.load()
    # read where it is loaded, because stator never imports torch's own compiler
    registry = sys.modules.get("torch._dynamo.backends.registry")
    of_torch = None if registry is None else registry._COMPILER_FNS.get(name)
    if of_torch is not None:
        return of_torch
    known = list_backends()
    close = difflib.get_close_matches(name, known, n=1)
    guess = f" (did you mean {close[0]!r}?)" if close else ""
    raise UsageError(f"unknown backend {name!r}{guess}; known backends: {', '.join(known)}")


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_ENTRY_POINT_GROUP) if point.name != "stator"}


def _with_keywords(backend: Backend, keywords: dict[str, Any]) -> Backend:
    """Backends from outside get plain graph modules with generated code; built-in backends read the graph."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        compiled = backend(_plain(gm), example_inputs, **keywords)
        return _checked(compiled, len(gm.graph.output_node().args[0]), backend_name(backend))  # type: ignore[arg-type]

    return compile_graph


def _checked(compiled: Any, results: int, name: str) -> Any:
    """Check that the callable of a backend from outside returns a tuple or list. A single tensor would silently be
    taken apart along its first dimension."""
    if not callable(compiled):
        return compiled

    def run(*inputs: Any) -> Any:
        made = compiled(*inputs)
        if isinstance(made, (tuple, list)) and len(made) == results:
            return made
        length = f" of {len(made)}" if isinstance(made, (tuple, list)) else ""
        raise UsageError(
            f"backend {name!r}: what it made of a graph with {results} results returned a {type(made).__name__}{length}"
            "; it must return a tuple or list of all results, as gm.forward does"
        )

    return run


def _plain(gm: fx.GraphModule) -> fx.GraphModule:
    if not isinstance(gm, _LazyGraphModule):
        return gm
    made = PlainGraphModule(gm, gm.graph)
    made.meta.update(gm.meta)
    return made


def _pipeline() -> Any:
    """The pipeline, imported for the first compilation: importing stator must stay cheap."""
    return importlib.import_module("stator.pipeline")


@_built_in.register("eager")
def _eager(mode: str | None, options: Mapping[str, object] | None) -> tuple[Backend, Options]:
    return run_eagerly, make_options(mode, options)


@_built_in.register("aot_eager")
def _aot_eager(mode: str | None, options: Mapping[str, object] | None) -> tuple[Backend, Options]:
    return (lambda gm, inputs: _pipeline().aot_eager_backend(gm, inputs)), make_options(mode, options)


@_built_in.register("inductor")
def _inductor(mode: str | None, options: Mapping[str, object] | None) -> tuple[Backend, Options]:
    chosen = make_options(mode, options)
    return (lambda gm, inputs: _pipeline().inductor_backend(gm, inputs, options=chosen)), chosen


def observing_backend(
    observe: Callable[[fx.GraphModule, CompiledGraph], CompiledGraph], options: Mapping[str, object] | None = None
) -> Backend:
    """The backend "inductor", which calls `observe(graph, compiled)` for every functional graph that it compiles.

    The callable that `observe` returns runs instead. graph.meta["peak"] holds the memory that the graph needs, unless
    it runs operator by operator.
    """
    chosen = make_options(None, options)
    return lambda gm, inputs: _pipeline().inductor_backend(gm, inputs, options=chosen, observe=observe)


def why_left_to_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[str]:
    """See `pipeline.why_left_to_eager`."""
    return _pipeline().why_left_to_eager(gm, example_inputs)  # type: ignore[no-any-return]


def run_eagerly(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
    """The captured graph, run operator by operator."""
    _LazyGraphModule.force_recompile(gm)
    return gm.forward
