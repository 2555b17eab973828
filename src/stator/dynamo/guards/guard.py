"""What a capture relied on, as pure data. A guard names a source, a kind, and what was found there."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from stator.base.errors import UserPlace

from .source import Source


class GuardKind(enum.Enum):
    """How `expected` is compared with what the source holds now."""

    IS = "is"  # the very same object (held weakly where possible: a dead object fails the guard)
    TYPE = "type is"  # type(x) is expected
    # same exact type and equal; for int, float, str, bytes, bool, None, complex, dtype, device, enum, tuples of these
    EQUALS = "=="
    TENSOR = "tensor"  # expected is a TensorGuard
    LENGTH = "len"  # len(x) == expected, for list, tuple, dict, set, deque
    DICT_KEYS = "keys"  # tuple(x) == expected, in order (constant keys)
    ABSENT = "no attribute"  # not hasattr(x, expected) / key expected not in x's instance dict
    NOT_IN = "not in"  # expected is not a key of the dict x
    CODE = "code"  # x is a Python function with this code object (so re-made closures match)
    DISTINCT = "is not"  # expected is a Source; the two hold different objects
    ALL_DISTINCT = "are distinct"  # expected is a tuple of Sources; no two hold the same object; the source is ignored
    SAME = "same object"  # expected is a Source; the two hold the same object
    GLOBAL_STATE = "state"  # expected is a GlobalState; the source is ignored
    # expected is a tuple of Lookups of a class, whose source is its constant: what instances see is as it was
    LOOKUPS = "lookups"
    PREDICATE = "predicate"  # expected is a Python callable (x) -> bool; the slow last resort


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a lookup of `name` in a class and its bases found. `found` is held where the very object counts: functions
    and other descriptors. Else it counts only which class `owner` defines it. None and None: it is not there."""

    name: str
    found: Any = None
    owner: type | None = None

    def __repr__(self) -> str:
        return self.name if self.found is not None or self.owner is not None else f"no {self.name}"


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """Metadata of a tensor that compiled code relies on. None in `shape` or `stride` at a position: not relied on.

    dispatch_keys: None for those of an ordinary tensor, made in inference mode or not.
    """

    python_type: type
    dtype: Any
    device: Any
    shape: tuple[int | None, ...]
    stride: tuple[int | None, ...]
    requires_grad: bool
    dispatch_keys: int | None = None


@dataclass(frozen=True, slots=True)
class GlobalState:
    """Interpreter-wide torch state at capture."""

    grad_enabled: bool
    inference_mode: bool
    default_dtype: Any
    default_device: Any
    num_threads: int
    deterministic: bool  # whether operators are to raise or to warn is asked by them, in each call
    autocast: tuple[tuple[str, bool, Any], ...]
    autocast_cache: bool
    torch_function_enabled: bool
    observed: bool  # each operator: by a mode for dispatch or for torch functions, or by torch.jit.trace


@dataclass(frozen=True, slots=True)
class Guard:
    """One reliance. `place` is the user's line that caused it, for recompile reasons. `movable`: another capture, which
    knows that there are other objects at this place in other calls, would do without."""

    source: Source
    kind: GuardKind
    expected: Any = None
    place: UserPlace | None = None
    movable: bool = False

    def __str__(self) -> str:
        return f"{self.source} {self.kind.value} {self.expected!r}"

    def __hash__(self) -> int:
        return hash((self.source, self.kind))
