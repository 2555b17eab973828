"""Where a generator may wait: at which places of the user's code, and where these stand in code that is made of it
(codegen/generator_frames.py). What it holds there is read and written by csrc/generators.c."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any

from stator.dynamo.bytecode import Instruction, code_units, decode
from stator.dynamo.host.native_status import native


class Waits(enum.Enum):
    """At what instruction of the user's code a generator waits."""

    CREATED = "its RETURN_GENERATOR: it has not begun"
    YIELDED = "a YIELD_VALUE, behind which it goes on"
    BEFORE = "the one that it does next: a graph ended inside of it, and whoever resumes it has not been given anything"
    STEPPING = "the one that it does next, and then waits before the one behind"
    CALLING = "the one that entered a function, in the middle of which a graph ended: the function does one"
    INSIDE = "the same, behind that: what is still to run of the function is on top of its stack"


@dataclass(frozen=True, slots=True)
class Place:
    """`index` of an instruction in the decoded user's code."""

    waits: Waits
    index: int


# what a generator yields that waits before an instruction which yields nothing; never seen by a program
PAUSED: Any = None if native is None else native.paused


@dataclass(frozen=True, slots=True)
class Places:
    """Of a code object: the user's code that it was made of, and at which of its units a generator goes on that waits
    at a place."""

    user_code: CodeType
    units: Mapping[Place, int]

    def at(self, unit: int) -> Place | None:
        return next((place for place, found in self.units.items() if found == unit), None)


_known: dict[int, tuple[weakref.ref[CodeType], Places | None]] = {}  # by the code's id, as equal code is not the same


def places_of(code: CodeType) -> Places:
    """Of code of a generator, made or the user's own."""
    found = _known.get(id(code))
    if found is not None and found[0]() is code:
        if found[1] is not None:
            return found[1]
        return Places(code, _units_of(code, decode(code), {}))
    _remember(code, None)  # not what refers to the code
    return places_of(code)


def note_places(
    made: CodeType, user_code: CodeType, instructions: Sequence[Instruction], added: Mapping[int, Place]
) -> None:
    """`made` was assembled from these instructions, some of which have the index that they have in the user's code.
    `added`: what yields that were added are there for, by the id of their instruction."""
    _remember(made, Places(user_code, _units_of(made, instructions, added)))


def _remember(code: CodeType, places: Places | None) -> None:
    key = id(code)
    _known[key] = weakref.ref(code, partial(_forget, _known, key)), places


def _forget(known: dict[int, Any], key: int, _: object) -> None:
    """Also when the interpreter ends, and names of the module are gone."""
    known.pop(key, None)


_WAITING = {"RETURN_GENERATOR": Waits.CREATED, "YIELD_VALUE": Waits.YIELDED}


def _units_of(code: CodeType, instructions: Sequence[Instruction], added: Mapping[int, Place]) -> dict[Place, int]:
    """Those of the code are found by their order: assembling may have split others."""
    waiting = [one for one in instructions if one.opname in _WAITING]
    units = code_units(code)
    behind = [units[one.index + 1] for one in decode(code) if one.opname in _WAITING]
    return {
        added.get(id(one)) or Place(_WAITING[one.opname], one.index): unit
        for one, unit in zip(waiting, behind, strict=True)
    }


def variables_of(code: CodeType) -> tuple[str, ...]:
    """The names of what a frame of this code keeps below its stack, in order."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars
