"""The schedule as data: fused groups of loop nodes, and library calls, in order of execution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stator.inductor.buffers import Extern, Loops


@dataclass(frozen=True, slots=True)
class Group:
    """Loop nodes that become one kernel. They share their outer loops, `ranges`; a member with a body over other loops
    has been re-indexed to these. `internal`: buffers that live and die inside the kernel and need no memory (codegen
    keeps them in registers or in a scratch row). `reads`/`writes`: buffers in memory, in argument order.

    The first len(ranges) `vars` of every member are the shared loops, under the same symbols in all members. The
    further loops of a member, `vars` (pointwise) or `reduction_vars`, are the inner loops, `inner_ranges`: a member
    has either none or all of them, under the same symbols as other members.
    """

    name: str
    members: tuple[Loops, ...]
    ranges: tuple[Any, ...]
    internal: frozenset[str]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    inner_ranges: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Combination:
    """Groups that run side by side as one kernel: none writes what another reads or writes."""

    name: str
    parts: tuple[Group, ...]

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.reads))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        return tuple([name for part in self.parts for name in part.writes])

    @cached_property
    def members(self) -> tuple[Loops, ...]:
        return tuple([member for part in self.parts for member in part.members])


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[Group | Combination | Extern, ...]
