"""The instructions of the user's code at which a generator can be suspended, and their offsets in code made from it
(codegen/generator_frames.py). csrc/generators.c reads and writes the frame of a suspended generator."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

from stator.dynamo.bytecode import Instruction, code_units, decode

_CREATING = "RETURN_GENERATOR"
_WAITING = (_CREATING, "YIELD_VALUE")


@dataclass(frozen=True, slots=True)
class SuspensionPoints:
    """The suspension points of a code object. `user_code` is the code that it was made from. `units` maps each
    suspending instruction of the user's code, by index, to the code unit where the generator resumes."""

    user_code: CodeType
    units: Mapping[int, int]

    def at(self, unit: int) -> int | None:
        return next((index for index, found in self.units.items() if found == unit), None)

    @property
    def creation(self) -> int:
        """The suspension point of a generator that has not started: the first of all."""
        return min(self.units)


# by id: distinct code objects compare equal
_known: dict[int, tuple[weakref.ref[CodeType], SuspensionPoints | None]] = {}


def suspension_points_of(code: CodeType) -> SuspensionPoints:
    """The suspension points of a generator's code, generated or the user's own."""
    found = _known.get(id(code))
    if found is not None and found[0]() is code:
        if found[1] is not None:
            return found[1]
        return SuspensionPoints(code, _units_of(code, decode(code)))
    _remember(code, None)  # SuspensionPoints of the user's own code would keep the code alive
    return suspension_points_of(code)


def note_suspension_points(made: CodeType, user_code: CodeType, instructions: Sequence[Instruction]) -> None:
    """Record that `made` was assembled from these instructions, whose indices are those of the user's code."""
    _remember(made, SuspensionPoints(user_code, _units_of(made, instructions)))


def _remember(code: CodeType, places: SuspensionPoints | None) -> None:
    key = id(code)
    _known[key] = weakref.ref(code, partial(_forget, _known, key)), places


def _forget(known: dict[int, Any], key: int, _: object) -> None:
    """The dictionary is an argument because module names are gone when the interpreter exits."""
    known.pop(key, None)


def _units_of(code: CodeType, instructions: Sequence[Instruction]) -> dict[int, int]:
    """Suspending instructions correspond by their order, because assembling may have split other instructions."""
    waiting = [one for one in instructions if one.opname in _WAITING]
    units = code_units(code)
    behind = [units[one.index + 1] for one in decode(code) if one.opname in _WAITING]
    return {one.index: unit for one, unit in zip(waiting, behind, strict=True)}


def variables_of(code: CodeType) -> tuple[str, ...]:
    """The names of the variables in a frame of this code, in the order of the slots below the value stack."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars
