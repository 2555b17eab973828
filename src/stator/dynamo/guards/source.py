"""The origin of a value as pure data: a path from the frame's inputs to an object.

Sources are frozen and hashable; equal paths are equal sources. codegen/ turns sources into bytecode, and guard_tree.py
turns them into guard tree nodes.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, ClassVar

from stator.dynamo.host.naming import class_name, is_python_class, qualified_name
from stator.dynamo.host.weak_references import can_be_referred_to, is_own_key


@dataclass(frozen=True, slots=True)
class Source:
    """Base of all sources. `str(source)` is the Python expression that a user would write, by the template `text`."""

    text: ClassVar[str] = "{0.name}"

    def __str__(self) -> str:
        return self.text.format(self)


@dataclass(frozen=True, slots=True)
class LocalSource(Source):
    """A parameter of the frame, by name (includes *args and **kwargs names)."""

    name: str


@dataclass(frozen=True, slots=True)
class CellSource(Source):
    """The content of a free variable (closure cell) of the frame's function."""

    name: str


@dataclass(frozen=True, slots=True)
class FunctionSource(Source):
    """The function object whose frame is captured (root of defaults, closures and globals)."""

    text: ClassVar[str] = "<function>"


@dataclass(frozen=True, slots=True)
class GlobalSource(Source):
    """A name in the globals dictionary of the frame itself."""

    text: ClassVar[str] = "globals()[{0.name!r}]"

    name: str


@dataclass(frozen=True, slots=True)
class ModuleGlobalSource(Source):
    """A name in the globals of another module (an inlined function's), reached through sys.modules[module].__dict__."""

    text: ClassVar[str] = "{0.module}.{0.name}"

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class BuiltinSource(Source):
    """A name in `builtins`."""

    name: str


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ConstantSource(Source):
    """An object fixed for the life of the compiled code (e.g. found by identity guard); never guarded itself. Classes
    and functions are held weakly, because assumptions must not keep them alive."""

    name: str
    held: Any

    def __init__(self, name: str, value: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "held", _Weakly(value) if _may_go(value) else value)

    @property
    def value(self) -> Any:
        """The object; None after its death."""
        return self.held() if type(self.held) is _Weakly else self.held

    def __repr__(self) -> str:
        return f"ConstantSource(name={self.name!r})"

    def __hash__(self) -> int:
        return hash((self.name, id(self.value)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantSource) and _same(other.held, self.held)


class _Weakly(weakref.ref):  # type: ignore[type-arg]
    """A subclass, to distinguish a source's own references from weak references of the program."""

    __slots__ = ()


def _may_go(value: object) -> bool:
    """Whether the value is a class or function that a program may create and drop."""
    return type(value) is FunctionType or (isinstance(value, type) and is_python_class(value))


def _same(one: object, other: object) -> bool:
    """Whether two sources hold one and the same object, which is alive."""
    if type(one) is _Weakly and type(other) is _Weakly:
        return one is other or (one() is other() is not None)
    return one is other


@dataclass(frozen=True, slots=True)
class AttrSource(Source):
    """`base.name` by getattr."""

    text: ClassVar[str] = "{0.base}.{0.name}"

    base: Source
    name: str


@dataclass(frozen=True, slots=True)
class InstanceDictSource(Source):
    """`base.__dict__`, read past any `__getattribute__`."""

    text: ClassVar[str] = "{0.base}.__dict__"

    base: Source


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class ItemSource(Source):
    """`base[key]` with a constant key, for (subclasses of) list, tuple, dict, read by the built-in's accessor. A key
    that compares by identity is held weakly if possible."""

    base: Source
    held: Any

    def __init__(self, base: Source, key: Any) -> None:
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "held", key if type(key) in _PLAIN_KEYS else _weakly(key))

    @property
    def key(self) -> Any:
        """The key; None after its death."""
        return self.held() if type(self.held) is _Weakly else self.held

    def __str__(self) -> str:
        return f"{self.base}[{_key_text(self.key)}]"

    def __repr__(self) -> str:
        return f"ItemSource(base={self.base!r}, key={_key_text(self.key)})"

    def __hash__(self) -> int:
        key = self.held
        return hash((self.base, key if type(key) in _PLAIN_KEYS else id(self.key)))

    def __eq__(self, other: object) -> bool:
        """Keys are identical, or plain and equal: the == of other keys (such as tensors) may run any code."""
        if type(other) is not ItemSource:
            return False
        one, another = self.held, other.held
        same_key = _same(one, another) or (type(one) is type(another) and type(one) in _PLAIN_KEYS and one == another)
        return same_key and self.base == other.base


def _weakly(key: Any) -> Any:
    """A key that was made only for the lookup is held strongly: a frozenset of constants, an object of capture's."""
    if is_own_key(key) or (type(key) is frozenset and all(type(one) in _PLAIN_KEYS for one in key)):
        return key
    return _Weakly(key) if can_be_referred_to(key) else key


@dataclass(frozen=True, slots=True)
class TypeSource(Source):
    """`type(base)`."""

    text: ClassVar[str] = "type({0.base})"

    base: Source


@dataclass(frozen=True, slots=True)
class ClosureSource(Source):
    """`base.__closure__[index].cell_contents` of a function `base`."""

    text: ClassVar[str] = "{0.base}.__closure__[{0.index}].cell_contents"

    base: Source
    index: int


@dataclass(frozen=True, slots=True)
class CallSource(Source):
    """The result of calling a pure, cheap function on other sources (e.g. `torch.is_grad_enabled()`)."""

    function: Any
    args: tuple[Source, ...] = ()

    def __str__(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}({', '.join(map(str, self.args))})"


def length_source(source: Source) -> Source:
    """The length of the container at `source`."""
    return CallSource(len, (source,))


@dataclass(frozen=True, slots=True)
class SizeSource(Source):
    """The size of a dimension of the tensor `base`."""

    text: ClassVar[str] = "{0.base}.size({0.dim})"

    base: Source
    dim: int


@dataclass(frozen=True, slots=True)
class StrideSource(Source):
    """The stride of a dimension of the tensor `base`."""

    text: ClassVar[str] = "{0.base}.stride({0.dim})"

    base: Source
    dim: int


@dataclass(frozen=True, slots=True)
class ReadSource(CallSource):
    """An unnamed part of an object, read by a function; a number there may change from call to call."""


_PLAIN_KEYS = (str, int, float, bool, bytes, tuple)


def _key_text(key: Any) -> str:
    """A plain key as a user would write it; other keys by type, because their repr may be long."""
    return repr(key) if type(key) in _PLAIN_KEYS or key is None else f"<{class_name(type(key))}>"


def is_fixed(source: Source) -> bool:
    """Whether a source is expected to hold one function for all calls: globals and class attributes."""
    return isinstance(source, (GlobalSource, ModuleGlobalSource)) or (
        isinstance(source, AttrSource) and isinstance(source.base, ConstantSource)
    )


def variable_of(source: Source) -> str | None:
    """The parameter of the frame from which a source leads on."""
    at: Any = source
    while not isinstance(at, LocalSource):
        at = next(iter(at.args), None) if isinstance(at, CallSource) else getattr(at, "base", None)
        if at is None:
            return None
    return at.name


def in_variable(source: Source, name: str) -> Source | None:
    """A number in a variable, or a size of a tensor in it, as that of another variable; None for other sources."""
    if isinstance(source, SizeSource | StrideSource):
        base = in_variable(source.base, name)
        return None if base is None else replace(source, base=base)
    return LocalSource(name) if isinstance(source, LocalSource) else None


def is_in_local_class(source: Source) -> bool:
    """Whether the source reads from a class that was defined inside a function."""
    if isinstance(source, CallSource):
        return any(map(is_in_local_class, source.args))
    base: Any = source
    while base is not None and not isinstance(base, ConstantSource):
        base = getattr(base, "base", None)
    return base is not None and isinstance(base.value, type) and "<locals>" in qualified_name(base.value)


def is_member(source: Source | None) -> bool:
    """Whether this is the source of a parameter or buffer of a module."""
    return is_buffer(source) or _is_item_of(source, "_parameters")


def is_buffer(source: Source | None) -> bool:
    """Whether this is the source of a module's buffer."""
    return _is_item_of(source, "_buffers")


def _is_item_of(source: Source | None, name: str) -> bool:
    return type(source) is ItemSource and type(source.base) is ItemSource and source.base.key == name
