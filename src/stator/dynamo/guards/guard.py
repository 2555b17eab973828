"""Guards as pure data. A guard names a source, a kind of comparison, and the expected content."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from stator.base.errors import UserPlace
from stator.shapes.conditions import Condition
from stator.shapes.expr import Symbol

from .source import Source


class GuardKind(enum.Enum):
    """How `expected` is compared with the present content of the source."""

    IS = "is"  # the very same object (held weakly where possible: a dead object fails the guard)
    TYPE = "type is"  # type(x) is expected
    # equal, with equal exact type; for int, float, str, bytes, bool, None, complex, dtype, device, enum, tuples of
    # these
    EQUALS = "=="
    TENSOR = "tensor"  # expected is a TensorGuard
    CONTENT = "content"  # expected is a TensorContent: nobody has written to the tensor, or given it other memory
    LENGTH = "len"  # len(x) == expected, for list, tuple, dict, set
    DICT_KEYS = "keys"  # tuple(x) == expected, in order (constant keys)
    ABSENT = "no attribute"  # not hasattr(x, expected) / key expected not in x's instance dict
    NOT_IN = "not in"  # expected is not a key of the dict x
    CODE = "code"  # x is a Python function with this code object (so re-made closures match)
    DISTINCT = "is not"  # expected is a Source; the two hold different objects
    ALL_DISTINCT = "are distinct"  # expected is a tuple of Sources; no two hold the same object; the source is ignored
    SAME = "same object"  # expected is a Source; the two hold the same object
    GLOBAL_STATE = "state"  # expected is a GlobalState; the source is ignored
    # expected is a tuple of Lookups in a class, which is the source's constant; instances see unchanged attributes
    LOOKUPS = "lookups"
    # no weak reference to x has a callback, or expected(x), a predicate that looks at the callbacks, holds
    CALLBACKS = "callbacks"
    SIZES = "sizes"  # expected is a SizeFacts; the source only names the guard
    PREDICATE = "predicate"  # expected is a Python callable (x) -> bool; the slow last resort


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of looking `name` up in a class and its bases. `found` is set if object identity matters: for
    functions and other descriptors. Otherwise only the defining class `owner` matters. None and None: the name is
    absent."""

    name: str
    found: Any = None
    owner: type | None = None

    def __repr__(self) -> str:
        return self.name if self.found is not None or self.owner is not None else f"no {self.name}"


class FreeSize(enum.Enum):
    """The size of a dimension that a guard on the tensor does not fix: 1 to `LARGEST_SIZE`."""

    NOT_EMPTY = "*"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class ExtentOf:
    """The stride that equals the size times the stride of dimension `dim`."""

    dim: int

    def __str__(self) -> str:
        return f"extent of {self.dim}"


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """Metadata of a tensor that compiled code relies on. None at a position of `shape` or `stride`: any number.

    dispatch_keys: None for those of an ordinary tensor, made in inference mode or not.
    """

    python_type: type
    dtype: Any
    device: Any
    shape: tuple[int | FreeSize | None, ...]
    stride: tuple[int | ExtentOf | None, ...]
    requires_grad: bool
    dispatch_keys: int | None = None


@dataclass(frozen=True, slots=True)
class TensorContent:
    """The content of a tensor that compiled code has as a constant: its version, the address of its data, and words of
    the data with their byte offsets. The words show most writes that no version counts, as those through `.data`."""

    version: int
    address: int
    sample: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class GuardedFact:
    """A condition on sizes, and the user's line that needed it (None: the backend)."""

    condition: Condition
    place: UserPlace | None = None


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """Facts about the numbers at `sources`: sizes of tensors (SizeSource) and ints. `symbols`: their names in the
    facts, in the same order."""

    symbols: tuple[Symbol, ...]
    sources: tuple[Source, ...]
    facts: tuple[GuardedFact, ...]

    def __str__(self) -> str:
        return " and ".join(str(fact.condition) for fact in self.facts)


@dataclass(frozen=True, slots=True)
class GlobalState:
    """torch's global state at capture."""

    grad_enabled: bool
    inference_mode: bool
    default_dtype: Any
    default_device: Any
    num_threads: int
    deterministic: bool  # whether nondeterministic operators raise or warn is read by them at each call
    autocast: tuple[tuple[str, bool, Any], ...]
    autocast_cache: bool
    torch_function_enabled: bool
    observed: bool  # a dispatch mode, a torch-function mode or torch.jit.trace sees each operator


@dataclass(frozen=True, slots=True)
class Guard:
    """An assumption. `place` is the user's line that needed it, for recompile reasons. `movable`: a capture that knows
    of other objects at this source in other calls would not need the guard."""

    source: Source
    kind: GuardKind
    expected: Any = None
    place: UserPlace | None = None
    movable: bool = False

    def __str__(self) -> str:
        return f"{self.source} {self.kind.value} {self.expected!r}"

    def __hash__(self) -> int:
        return hash((self.source, self.kind))
