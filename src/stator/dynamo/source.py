"""Where a value came from, as pure data: a path from the frame's inputs to an object.

Sources are frozen and hashable; the same path is the same source. Turning a source into bytecode (dynamo/emit) or
into a guard (dynamo/guard_tree) is somebody else's job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """Base of all sources. `str(source)` is the Python expression that a user would write."""


@dataclass(frozen=True, slots=True)
class LocalSource(Source):
    """A parameter of the frame, by name (includes *args and **kwargs names)."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class CellSource(Source):
    """The content of a free variable (closure cell) of the frame's function."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class FunctionSource(Source):
    """The function object whose frame is captured (root of defaults, closures and globals)."""

    def __str__(self) -> str:
        return "<function>"


@dataclass(frozen=True, slots=True)
class GlobalSource(Source):
    """A name in the globals dictionary of the frame itself."""

    name: str

    def __str__(self) -> str:
        return f"globals()[{self.name!r}]"


@dataclass(frozen=True, slots=True)
class ModuleGlobalSource(Source):
    """A name in the globals of another module (an inlined function's), reached through sys.modules[module].__dict__."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class BuiltinSource(Source):
    """A name in `builtins`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ConstantSource(Source):
    """An object fixed for the life of the compiled code (e.g. found by identity guard); never guarded itself."""

    name: str
    value: Any

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash((self.name, id(self.value)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantSource) and other.value is self.value


@dataclass(frozen=True, slots=True)
class AttrSource(Source):
    """`base.name` by getattr."""

    base: Source
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@dataclass(frozen=True, slots=True)
class InstanceDictSource(Source):
    """`base.__dict__`, read past any `__getattribute__`."""

    base: Source

    def __str__(self) -> str:
        return f"{self.base}.__dict__"


@dataclass(frozen=True, slots=True)
class ItemSource(Source):
    """`base[key]` with a constant key, for (subclasses of) list, tuple, dict, read by the built-in's accessor."""

    base: Source
    key: Any

    def __str__(self) -> str:
        return f"{self.base}[{_key_text(self.key)}]"

    def __hash__(self) -> int:
        return hash((self.base, self.key))

    def __eq__(self, other: object) -> bool:
        """Keys are the same object, or plain and equal: the == of others (of tensors) is their own affair."""
        if type(other) is not ItemSource:
            return False
        same_key = self.key is other.key or (
            type(self.key) is type(other.key) and type(self.key) in _PLAIN_KEYS and self.key == other.key
        )
        return same_key and self.base == other.base


@dataclass(frozen=True, slots=True)
class DictKeySource(Source):
    """The `index`-th key of a dict in insertion order (for keys that are not constants)."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"list({self.base})[{self.index}]"


@dataclass(frozen=True, slots=True)
class TypeSource(Source):
    """`type(base)`."""

    base: Source

    def __str__(self) -> str:
        return f"type({self.base})"


@dataclass(frozen=True, slots=True)
class ClosureSource(Source):
    """`base.__closure__[index].cell_contents` of a function `base`."""

    base: Source
    index: int

    def __str__(self) -> str:
        return f"{self.base}.__closure__[{self.index}].cell_contents"


@dataclass(frozen=True, slots=True)
class CallSource(Source):
    """The result of calling a pure, cheap function on other sources (e.g. `torch.is_grad_enabled()`)."""

    function: Any
    args: tuple[Source, ...] = ()

    def __str__(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class ReadSource(CallSource):
    """A part of an object that has no name, read by a function; a number there may change from call to call."""


_PLAIN_KEYS = (str, int, float, bool, bytes, tuple)


def _key_text(key: Any) -> str:
    """As a user would write it; other objects by their type, for their text may be long."""
    return repr(key) if type(key) in _PLAIN_KEYS or key is None else f"<{type(key).__name__}>"


def is_fixed(source: Source) -> bool:
    """Whether a place is expected to hold the very same function from call to call: module and class level."""
    return isinstance(source, (GlobalSource, ModuleGlobalSource)) or (
        isinstance(source, AttrSource) and isinstance(source.base, ConstantSource)
    )
