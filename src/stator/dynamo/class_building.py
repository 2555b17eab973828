"""What makes the classes of captured code: while it is followed, of what stands for their contents, and again when the
program runs, if a class or something of it leaves the graph. Hooks of the program are not run here: they are followed.
"""

from __future__ import annotations

import _abc
import abc
import collections
import enum
import typing
from typing import Any

from torch.autograd.function import FunctionMeta

from stator.base.errors import Unsupported

from .native_status import native


class _WithoutHook:
    """Stands before the bases of a class while that is made, so that no hook of theirs is called."""

    def __init_subclass__(cls, **named: Any) -> None:
        pass


class _WithoutHookOrDict:
    """The same for bases whose instances have no dictionary."""

    __slots__ = ()

    def __init_subclass__(cls, **named: Any) -> None:
        pass


def hook_of(bases: tuple[type, ...]) -> type | None:
    """The first class in the order of resolution whose `__init_subclass__` is the program's, of a class of these bases.
    What typing.Generic does there depends on the class only."""
    orders = (base.__mro__ for base in bases)
    found = [cls for order in orders for cls in order if "__init_subclass__" in vars(cls) and cls is not object]
    return next((cls for cls in found if cls is not typing.Generic), None)


def new_class(meta: type, name: str, bases: tuple[type, ...], names: tuple[str, ...], *values: Any) -> type:
    """type.__new__ with these members and, for abstract classes, what abc does then."""
    members = dict(zip(names, values, strict=True))
    if hook_of(bases) is None:
        made: type = type.__new__(meta, name, bases, members)
    else:
        made = _new_past_hooks(meta, name, bases, members)
    if issubclass(meta, abc.ABCMeta):
        _abc._abc_init(made)  # type: ignore[attr-defined]
    return made


def _new_past_hooks(meta: type, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
    cell = members.pop("__classcell__", None)
    made: Any
    first = _WithoutHook if any(base.__dictoffset__ for base in bases) else _WithoutHookOrDict
    made = type.__new__(meta, name, (first, *bases), members)
    try:
        made.__bases__ = bases
    except TypeError as error:
        for base in bases:
            native.unlist_subclass(made, base)
        raise Unsupported("class-definition", f"bases with hooks, whose layout is their own: {error}") from None
    if cell is not None:
        cell.cell_contents = made
    return made  # type: ignore[no-any-return]


def with_nodes(cls: type) -> type:
    """A subclass of torch.autograd.Function, with the class of its nodes."""
    FunctionMeta.__init__(cls, cls.__name__, cls.__bases__, {})  # type: ignore[arg-type]
    return cls


def new_enumeration(meta: Any, name: str, bases: tuple[type, ...], names: tuple[str, ...], *values: Any) -> type:
    """A class statement of an enumeration."""
    namespace = meta.__prepare__(name, bases)
    for key, value in zip(names, values, strict=True):
        namespace[key] = value
    return meta.__new__(meta, name, bases, namespace)


def functional_enumeration(module: str, cls: Any, *args: Any, **named: Any) -> type:
    """`Enum(name, names)` called in that module."""
    return enum.EnumMeta.__call__(cls, *args, **{"module": module, **named})


def named_tuple(module: str, *args: Any, **named: Any) -> type:
    """`collections.namedtuple` called in that module."""
    return collections.namedtuple(*args, **{"module": module, **named})  # type: ignore[arg-type]


def typed_named_tuple(module: str, name: str, fields: Any) -> type:
    """`typing.NamedTuple(name, fields)` called in that module."""
    made = typing.NamedTuple(name, fields)  # type: ignore[misc]
    made.__module__ = module
    return made  # type: ignore[no-any-return]


def statement_of_typing(meta: Any, name: str, bases: tuple[Any, ...], names: tuple[str, ...], *values: Any) -> type:
    """A class statement with typing.NamedTuple or typing.TypedDict as a base."""
    made: type = meta.__new__(meta, name, bases, dict(zip(names, values, strict=True)))
    return made
