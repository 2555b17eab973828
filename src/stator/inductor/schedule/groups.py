"""The schedule as data: fused groups of loop nodes and single library calls, in order of execution."""

from __future__ import annotations

from dataclasses import dataclass

from stator.inductor.buffers import Extern, Loops


@dataclass(frozen=True, slots=True)
class Group:
    """Loop nodes that become one kernel. They share their outer loops, `ranges`; members whose bodies were written over
    other loops have been re-indexed to these. `internal`: buffers that live and die inside the kernel and need no
    memory (a register or a row of scratch, as codegen chooses). `reads`/`writes`: buffers in memory, in argument order.

    The first len(ranges) `vars` of every member are the shared loops, under the same symbols in all members. What a
    member has beyond them, further `vars` (pointwise) or `reduction_vars`, are the inner loops: all members that have
    any have the same, under the same symbols, `inner_ranges`.
    """

    name: str
    members: tuple[Loops, ...]
    ranges: tuple[int, ...]
    internal: frozenset[str]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    inner_ranges: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[Group | Extern, ...]
