"""A compiled nn.Module that still is the module: a subclass of its class that shares its attributes; its call is
compiled.

`dynamo` captures and compiles the call.
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

from stator.dynamo.cache.entry import call_from_slot
from stator.dynamo.callables import ORIGINAL, compiled_call, original_of
from stator.dynamo.frame_compiler import FrameCompiler

_CALL, _COMPILE, _FORWARD, _AROUND = "_stator_call", "_stator_compile", "_stator_forward", "_stator_around"


class CompiledModule:
    """Mixed into the class of a compiled module. The instance shares the `__dict__` of the original: parameters,
    buffers, submodules, hooks, flags and methods are read and written through, in both directions."""

    __slots__: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keeps generated classes from the user's `__init_subclass__`, which may register classes."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """An independent module, compiled with equal settings."""
        copied = copy.deepcopy(original_of(self), memo)
        made = compile_module(copied, getattr(self, _COMPILE), getattr(self, _AROUND))
        memo[id(self)] = made
        return made

    def __copy__(self) -> Any:
        return compile_module(copy.copy(original_of(self)), getattr(self, _COMPILE), getattr(self, _AROUND))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles the original module: compiled code belongs to this process."""
        original = original_of(self)
        reduced = original.__reduce_ex__(protocol)
        if reduced[0] is copyreg.__newobj__:  # type: ignore[attr-defined]
            # pickle requires that __newobj__ makes the class of the pickled object
            return (copyreg._reconstructor, (type(original), object, None), *reduced[2:])  # type: ignore[attr-defined]
        return reduced

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_stator_")]


_SLOTS = (_CALL, ORIGINAL, _COMPILE, _FORWARD, _AROUND)  # slots, because the original shares the __dict__


class _SlottedModule(CompiledModule):
    """Gives all compiled modules one layout, so that they may change their class."""

    __slots__ = _SLOTS


class _CallSignature:
    """`inspect.signature` of an instance, which a compiled call does not show; classes keep their own."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return inspect.signature(original_of(instance))


def _equals(self: Any, other: object) -> bool:
    """Equality with the original, so that registries of modules, as those of FSDP, know the compiled module."""
    return original_of(self) is original_of(other)


def _hash(self: Any) -> int:
    return hash(original_of(self))


def _is_same(one: Any, other: Any) -> bool:
    """Identity, also of bound methods, which Python makes anew at each access."""
    if isinstance(one, MethodType) and isinstance(other, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    return one is other


class _Forward:
    """`forward` of a compiled module, compiled too, also where `forward` was set on the instance. The original module,
    and the code of its own methods, see the plain `forward`."""

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


class _Class:
    """`__class__` of a compiled module: the original's class. Libraries assign another one, as parametrizations and
    FSDP do; the original gets it, and the compiled module becomes its compiled form."""

    def __get__(self, instance: Any, owner: type) -> type:
        return type(getattr(instance, ORIGINAL))

    def __set__(self, instance: Any, cls: type) -> None:
        original = getattr(instance, ORIGINAL)
        original.__class__ = cls
        object.__dict__["__class__"].__set__(instance, _compiled_class(type(original)))


def _call_original(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What other compilers read in place of the call of a compiled module."""
    return self._stator_original(*args, **kwargs)


# Weak values: a generated class refers to the user's class, so only its instances may keep it alive.
_classes: weakref.WeakKeyDictionary[type, weakref.ref[type]] = weakref.WeakKeyDictionary()


def _as_it_is(module: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    return call


def compile_module(
    module: torch.nn.Module,
    make_compiler: Callable[[], FrameCompiler],
    around: Callable[[torch.nn.Module, Callable[..., Any]], Callable[..., Any]] = _as_it_is,
) -> torch.nn.Module:
    """`module`, compiled. `make_compiler` makes a frame compiler with the chosen settings for each compiled module.
    around(module, call): the callable that calls run, given the compiled call of a module."""
    module = original_of(module)
    compiled: Any = object.__new__(_compiled_class(type(module)))
    object.__setattr__(compiled, "__dict__", module.__dict__)
    object.__setattr__(compiled, ORIGINAL, module)
    object.__setattr__(compiled, _COMPILE, make_compiler)
    object.__setattr__(compiled, _AROUND, around)
    object.__setattr__(compiled, _CALL, around(module, compiled_call(module, make_compiler())))
    return compiled


def is_compiled_with(module: torch.nn.Module, around: Callable[..., Any]) -> bool:
    """Whether `compile_module` made the module with this `around`."""
    return hasattr(type(module), ORIGINAL) and getattr(module, _AROUND) is around


def _compiled_class(cls: type) -> type:
    reference = _classes.get(cls)
    made = None if reference is None else reference()
    if made is None:
        made = _make_class(cls)
        _classes[cls] = weakref.ref(made)
    return made


def _make_class(cls: type) -> type:
    is_plain = cls.__basicsize__ == torch.nn.Module.__basicsize__  # no slots of its own
    body: dict[str, Any] = {
        "__slots__": () if is_plain else _SLOTS,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__signature__": _CallSignature(),
        "__class__": _Class(),
        "forward": _Forward(),
        "_stator_compiled_class": cls,
        "_get_name": lambda self: original_of(self)._get_name(),
    }
    if cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__:
        body |= {"__eq__": _equals, "__hash__": _hash}
    made = type(cls)(cls.__name__, (_SlottedModule if is_plain else CompiledModule, cls), body)
    setattr(made, "__call__", call_from_slot(getattr(made, _CALL), _call_original))  # noqa: B010
    return made
