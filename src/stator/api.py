"""The functions that users call. They check arguments and pass them to the stages below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar, overload

import torch

from stator.backends import Backend, backend_name, resolve_backend
from stator.base import logs
from stator.base.errors import UsageError
from stator.compiled_module import compile_module
from stator.dynamo.backend import Settings
from stator.dynamo.cache import entry as entries
from stator.dynamo.callables import compiled_call, original_of
from stator.dynamo.frame_compiler import FrameCompiler
from stator.dynamo.host import native_status
from stator.frozen_module import freeze_module, is_frozen

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "inductor",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> F: ...
@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "inductor",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> Callable[[F], F]: ...
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "inductor",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, method, nn.Module or callable object; compilation happens at the first call.

    Also a decorator, with or without arguments. A module comes back as a module: isinstance, state_dict, attributes,
    hooks, `.to`, `.train`, deepcopy and pickling behave as before, and parameters are shared with the original.
    A module from `freeze` is frozen anew, with the settings given here.

    fullgraph: raise when the whole call cannot be one graph, instead of running parts of it eagerly.
    dynamic: None makes a size a symbol when it has changed between calls, so that one version serves all further sizes;
        True makes all sizes symbols from the first call, False none (docs/dynamic-sizes.md).
    backend: a name from `list_backends()`, or a callable `(gm: fx.GraphModule, example_inputs: list[Tensor])` that
        returns a callable from the same inputs to a tuple or list. Backends written for torch.compile work unchanged.
    mode, options: for built-in backends see `stator.base.config`; other backends get them as keyword arguments.
    disable: return `model` unchanged.

    Raises UsageError for unknown names, for arguments of other types, and for objects that cannot be called. Errors in
    compiling never reach the program, except under fullgraph: a warning reports each once, and the function runs
    eagerly.
    """
    make_compiler = _check(fullgraph, dynamic, backend, mode, options, disable)
    if isinstance(options, Mapping) and options.get("free_parameters"):
        raise UsageError("stator.compile keeps parameters, which training needs; stator.freeze has 'free_parameters'")
    if model is None:
        return lambda decorated: decorated if disable else _compile(decorated, make_compiler)
    if not callable(model):
        raise UsageError(f"stator.compile takes a function or module, not {type(model).__name__}: {model!r}")
    if disable:
        return model
    if isinstance(model, torch.nn.Module) and backend == "inductor" and is_frozen(model):
        return freeze(model, fullgraph=fullgraph, dynamic=dynamic, mode=mode, options=options)
    return _compile(model, make_compiler)


def freeze(
    model: torch.nn.Module,
    *,
    free_parameters: bool = False,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> torch.nn.Module:
    """Compile a module for inference, with its parameters and buffers as constants: weights are laid out once for the
    libraries that multiply by them, batch normalisation becomes a part of convolutions (docs/freezing.md).

    The module comes back as from `stator.compile`, with the parameters of the original. Its calls compute no gradients,
    and raise UsageError in training mode and for inputs that require grad. When a parameter or buffer changes, the next
    call compiles anew; writes through `.data` to single elements may go unnoticed.

    free_parameters: free the memory of the original parameters and buffers in the first call, which must be one graph.
        Later calls must be like the first one, but for sizes under dynamic=True; any other use of a freed parameter
        raises UsageError.
    fullgraph, dynamic, mode, options: as in `stator.compile`.

    Raises UsageError for what is no module, and for a module in training mode.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"stator.freeze takes a module, not {type(model).__name__}: {model!r}")
    chosen = {"free_parameters": free_parameters, **(options or {}), "freezing": True}
    if (options or {}).get("freezing", True) is not True:
        raise UsageError("stator.freeze has the option 'freezing'; use stator.compile without it")
    make_compiler = _check(fullgraph or free_parameters, dynamic, "inductor", mode, chosen, False)
    if not native_status.available():
        native_status.warn_if_missing()
    return freeze_module(model, make_compiler)


def _check(
    fullgraph: bool,
    dynamic: bool | None,
    backend: str | Backend,
    mode: str | None,
    options: Mapping[str, object] | None,
    disable: bool,
) -> Callable[[], FrameCompiler]:
    """Check the user's choices now, not at the first call. Returns a factory: each target gets its own compiler."""
    for name, value in {"fullgraph": fullgraph, "disable": disable}.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} must be True or False, not {value!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise UsageError(f"dynamic must be True, False or None, not {dynamic!r}")
    resolved, chosen = resolve_backend(backend, mode, options)
    settings = Settings(resolved, backend_name(backend), fullgraph, chosen, dynamic=dynamic)
    return lambda: FrameCompiler(settings)


def _compile(target: Any, make_compiler: Callable[[], FrameCompiler]) -> Any:
    if not native_status.available():
        native_status.warn_if_missing()
        return target
    if isinstance(target, torch.nn.Module):
        return compile_module(target, make_compiler)
    if isinstance(target, type):
        return _compile_class(target, make_compiler)
    return compiled_call(target, make_compiler())


def _compile_class(cls: type, make_compiler: Callable[[], FrameCompiler]) -> type:
    """Compile the calls of all instances of a class by replacing its `__call__`."""
    call = original_of(cls.__call__)  # type: ignore[operator]
    if type(call) is not FunctionType:
        raise UsageError(
            f"instances of {cls.__qualname__} have no __call__ written in Python; compile a function instead"
        )
    cls.__call__ = make_compiler().entry(call)  # type: ignore[assignment]
    return cls


def reset() -> None:
    """Forget all compiled code of this process, decisions to run eagerly, and warnings already given. Compiled
    functions and modules stay usable; they compile again when called."""
    entries.reset()
    logs.forget_warnings()
