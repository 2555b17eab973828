"""A compiled nn.Module that stays the module: a subclass of its class, sharing its attributes, whose call is compiled.

Nothing here captures or compiles; the entry is made by the caller's converter.
"""

from __future__ import annotations

import copy
import copyreg
import inspect
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from stator.dynamo.callables import ORIGINAL, compiled_call, original_of
from stator.dynamo.frame_compiler import FrameCompiler

_CALL, _COMPILE, _FORWARD = "_stator_call", "_stator_compile", "_stator_forward"


class CompiledModule:
    """Mixed into the class of a compiled module. The instance has the very `__dict__` of the original: parameters,
    buffers, submodules, hooks, flags and methods are read and written through, in both directions."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Made classes are not the user's: registration in the user's `__init_subclass__` must not see them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """An independent module, compiled in the same way."""
        made = compile_module(copy.deepcopy(original_of(self), memo), getattr(self, _COMPILE))
        memo[id(self)] = made
        return made

    def __copy__(self) -> Any:
        return compile_module(copy.copy(original_of(self)), getattr(self, _COMPILE))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as the original module: what is compiled belongs to this process."""
        original = original_of(self)
        reduced = original.__reduce_ex__(protocol)
        if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            # pickle insists that __newobj__ makes the class of what it was asked to pickle
            return (copyreg._reconstructor, (type(original), object, None), *reduced[2:])  # type: ignore[attr-defined]
        return reduced

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_stator_")]


class _CallSignature:
    """`inspect.signature` of an instance, which cannot be read off a compiled call; classes keep their own."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return inspect.signature(original_of(instance))


def _is_same(one: Any, other: Any) -> bool:
    """Bound methods are made anew each time they are asked for."""
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    return one is other


class _Forward:
    """`forward` of a compiled module: compiled too, also where one was set on the instance. The original, and what its
    own code calls, see the plain one."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return owner.__dict__["_stator_compiled_class"].forward
        target = original_of(instance).forward
        known = getattr(instance, _FORWARD, None)
        if known is None or not _is_same(known[0], target):
            known = target, compiled_call(target, getattr(instance, _COMPILE)())
            object.__setattr__(instance, _FORWARD, known)
        return known[1]

    def __set__(self, instance: Any, value: Any) -> None:
        original_of(instance).forward = value

    def __delete__(self, instance: Any) -> None:
        del original_of(instance).forward


# made classes lead to the user's, so only who has an instance holds one
_classes: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def compile_module(module: torch.nn.Module, make_converter: Callable[[], FrameCompiler]) -> torch.nn.Module:
    """`module`, compiled. `make_converter` gives the settings; each compiled module has a converter of its own."""
    module = original_of(module)
    cls = type(module)
    reference = _classes.get(cls)
    made = None if reference is None else reference()
    if made is None:
        made = _make_class(cls)
        _classes[cls] = weakref.ref(made)
    compiled: Any = object.__new__(made)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    object.__setattr__(compiled, ORIGINAL, module)
    object.__setattr__(compiled, _COMPILE, make_converter)
    object.__setattr__(compiled, _CALL, compiled_call(module, make_converter()))
    return compiled


def _make_class(cls: type) -> type:
    body = {
        # not in the shared __dict__, where the original would see them
        "__slots__": (_CALL, ORIGINAL, _COMPILE, _FORWARD),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__signature__": _CallSignature(),
        "forward": _Forward(),
        "_stator_compiled_class": cls,
        "_get_name": lambda self: original_of(self)._get_name(),
    }
    made = type(cls)(cls.__name__, (CompiledModule, cls), body)
    # looked up on the class, bound by the slot's descriptor: a call goes straight to the entry
    setattr(made, "__call__", getattr(made, _CALL))  # noqa: B010
    return made
