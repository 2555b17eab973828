"""The compiled call of each kind of callable: functions, bound methods, modules and other instances. Compiling itself
is in frame_compiler.py.

The call of an object enters its class's `__call__`, or for a module without hooks its `forward`. A gate, which is a
guard tree over the object, decides; the C entry checks the gate at each call, before it binds the arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from .cache import entry as entries
from .frame_compiler import FrameCompiler
from .guards.guard import Guard, GuardKind, Lookup
from .guards.guard_tree import build_guard_tree
from .guards.source import InstanceDictSource, ItemSource, LocalSource, ModuleGlobalSource, Source, TypeSource
from .host.compile_directives import disabled, mark_of
from .interpreter.calling import has_meaning_of_its_own, made_functions

ORIGINAL = "_stator_original"  # slot of a compiled module that holds the original module


def original_of(target: Any) -> Any:
    """The original of a compiled function, method or module; any other object itself."""
    if entries.is_entry(target):
        return entries.original(target)
    if isinstance(target, MethodType) and entries.is_entry(target.__func__):
        return MethodType(entries.original(target.__func__), target.__self__)
    if hasattr(type(target), ORIGINAL):
        return getattr(target, ORIGINAL)
    return target


def compiled_call(target: Any, compiler: FrameCompiler) -> Callable[..., Any]:
    """A callable that runs `target` and compiles its frame: for functions, bound methods and instances."""
    target = original_of(target)
    # A wrapper is compiled instead: the target's own frame stays eager and only its callees are compiled, or capture
    # treats a call of the target as one operation (such as the result of a torch.func transform).
    if disabled(target) == "frame" or _is_known_whole(target):
        return functools.update_wrapper(compiler.entry(_caller_of(target)), target)
    if type(target) is FunctionType:
        return compiler.entry(target)
    if isinstance(target, MethodType) and type(target.__func__) is FunctionType:
        return MethodType(compiler.entry(target.__func__), target.__self__)
    call = original_of(type(target).__call__)
    if type(call) is FunctionType:
        return MethodType(_gated_entry(target, call, compiler), target)
    return functools.update_wrapper(compiler.entry(_caller_of(target)), target, updated=())


def _is_known_whole(target: Any) -> bool:
    """Whether capture treats calls of it as one operation instead of following its code."""
    return type(target) is FunctionType and id(target.__code__) in made_functions


def _gated_entry(target: Any, call: FunctionType, compiler: FrameCompiler) -> Callable[..., Any]:
    """The entry for calls of `target`, whose class has `call` as its `__call__`."""
    forward = forward_of(target)
    if forward is None or has_meaning_of_its_own(forward):
        function, gate = call, call_gate(target, call)
    else:
        function, gate = forward, forward_gate(target, forward)
    entry = compiler.entry(function, module=None if function is call else target)
    if not entries.is_entry(entry):
        return call
    entries.set_gate(entry, call, gate, _FallbackCall(compiler))
    return entry


_MOST_CALLS = 8  # the most `__call__` functions of an instance that are compiled, one after another


class _FallbackCall:
    """Calls instances for which the gate of their entry fails, by an entry of their class's `__call__`."""

    def __init__(self, compiler: FrameCompiler) -> None:
        self.compiler = compiler
        self.entries: dict[int, tuple[FunctionType, Callable[..., Any]]] = {}  # by the function's id

    def __call__(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        call = original_of(in_class(target, "__call__"))
        if type(call) is not FunctionType or (id(call) not in self.entries and len(self.entries) >= _MOST_CALLS):
            return target(*args, **kwargs)
        if id(call) not in self.entries:
            self.entries[id(call)] = call, self.compiler.entry(call)
        return self.entries[id(call)][1](target, *args, **kwargs)


def _caller_of(function: Callable[..., Any]) -> Any:
    """A Python function that calls a callable which is no Python function."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


def in_class(target: Any, name: str) -> Any:
    """The attribute `name` of the first class in the MRO that has it, or None."""
    return next((vars(base)[name] for base in type(target).__mro__ if name in vars(base)), None)


def forward_of(module: Any) -> FunctionType | None:
    """The `forward` that a call of the module runs if there are no hooks; None if the object is not such a module."""
    if not isinstance(module, nn.Module) or in_class(module, "__getattribute__") is not object.__getattribute__:
        return None
    own = in_class(module, "__call__"), in_class(module, "_call_impl"), in_class(module, "_compiled_call_impl")
    forward = in_class(module, "forward")
    if own != (nn.Module.__call__, nn.Module._call_impl, None) or type(forward) is not FunctionType:
        return None
    code = forward.__code__
    if code.co_flags & _SUSPENDABLE or not code.co_argcount or disabled(forward) or mark_of(forward):
        return None
    return forward


def call_gate(target: Any, function: FunctionType) -> Any:
    """A gate that holds while the class of the object keeps its `__call__`."""
    found = in_class(target, "__call__")
    return build_guard_tree([_lookups(_receiver(function), Lookup("__call__", found))], function)


def forward_gate(module: nn.Module, forward: FunctionType) -> Any:
    """A gate that holds while a call of the module runs `forward`: no function on the way is replaced, and there are
    no hooks."""
    receiver = _receiver(forward)
    own = InstanceDictSource(receiver)
    found = ("__call__", "_call_impl", "__getattribute__", "forward")
    lookups = [Lookup(name, in_class(module, name)) for name in found]
    guards = [_lookups(receiver, *lookups, Lookup("_compiled_call_impl", None, nn.Module))]
    guards += [Guard(own, GuardKind.NOT_IN, name) for name in ("_call_impl", "_compiled_call_impl", "forward")]
    guards += [Guard(ItemSource(own, name), GuardKind.LENGTH, 0) for name in _HOOKS]
    everywhere = [ModuleGlobalSource("torch.nn.modules.module", f"_global{name}") for name in _HOOKS]
    return build_guard_tree([*guards, *(Guard(source, GuardKind.LENGTH, 0) for source in everywhere)], forward)


def _receiver(function: FunctionType) -> Source:
    return LocalSource(function.__code__.co_varnames[0])


def _lookups(receiver: Source, *lookups: Lookup) -> Guard:
    return Guard(TypeSource(receiver), GuardKind.LOOKUPS, lookups)
