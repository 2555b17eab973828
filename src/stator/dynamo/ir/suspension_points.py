"""Where a generator may wait: at which instructions of the user's code, and where these stand in code made of it
(codegen/generator_frames.py). csrc/generators.c reads and writes what the generator holds there."""

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
    """Of a code object: the user's code that it was made of, and by the index of each instruction of that at which a
    generator waits, the unit of the code object where the generator goes on."""

    user_code: CodeType
    units: Mapping[int, int]

    def at(self, unit: int) -> int | None:
        return next((index for index, found in self.units.items() if found == unit), None)

    @property
    def creation(self) -> int:
        """Where a generator waits that has not begun: the first of the instructions."""
        return min(self.units)


_known: dict[
    int, tuple[weakref.ref[CodeType], SuspensionPoints | None]
] = {}  # by the code's id, as equal code is not the same


def suspension_points_of(code: CodeType) -> SuspensionPoints:
    """Of code of a generator, made or the user's own."""
    found = _known.get(id(code))
    if found is not None and found[0]() is code:
        if found[1] is not None:
            return found[1]
        return SuspensionPoints(code, _units_of(code, decode(code)))
    _remember(code, None)  # Places would refer to the code and keep it alive
    return suspension_points_of(code)


def note_suspension_points(made: CodeType, user_code: CodeType, instructions: Sequence[Instruction]) -> None:
    """`made` was assembled from these instructions, each with the index that it has in the user's code."""
    _remember(made, SuspensionPoints(user_code, _units_of(made, instructions)))


def _remember(code: CodeType, places: SuspensionPoints | None) -> None:
    key = id(code)
    _known[key] = weakref.ref(code, partial(_forget, _known, key)), places


def _forget(known: dict[int, Any], key: int, _: object) -> None:
    """Also when the interpreter ends, and names of the module are gone."""
    known.pop(key, None)


def _units_of(code: CodeType, instructions: Sequence[Instruction]) -> dict[int, int]:
    """Those of the code are found by their order: assembling may have split others."""
    waiting = [one for one in instructions if one.opname in _WAITING]
    units = code_units(code)
    behind = [units[one.index + 1] for one in decode(code) if one.opname in _WAITING]
    return {one.index: unit for one, unit in zip(waiting, behind, strict=True)}


def variables_of(code: CodeType) -> tuple[str, ...]:
    """The names of what a frame of this code keeps below its stack, in order."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars
