"""The function that a call of an object enters: its class's `__call__`; for a module without hooks, its `forward`.

A gate is a guard tree over the object. The C entry checks the gate at each call, before it binds the arguments.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

from torch import nn

from stator.dynamo.guards.guard import Guard, GuardKind, Lookup
from stator.dynamo.guards.guard_tree import build_guard_tree
from stator.dynamo.guards.source import (
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ModuleGlobalSource,
    Source,
    TypeSource,
)
from stator.dynamo.host.compile_directives import disabled, mark_of

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
