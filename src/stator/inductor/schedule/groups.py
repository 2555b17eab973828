"""The schedule as data: fused groups of loop nodes, and library calls, in order of execution."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[Group | Extern, ...]
