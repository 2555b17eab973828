"""Lowered nodes to an ordered list of fused groups and library calls: the stage's one entry point."""

from __future__ import annotations

from collections.abc import Sequence

from stator.base.config import Options
from stator.inductor.buffers import Extern, Loops, Lowered
from stator.inductor.loops.body import Op

from .groups import Group, Schedule
from .normalize import collapse, normalize

_DEFAULT = Options()


def schedule(lowered: Lowered, options: Options = _DEFAULT) -> Schedule:
    steps: list[Group | Extern] = []
    for node in lowered.nodes:
        if isinstance(node, Extern):
            steps.append(node)
        else:
            steps.append(make_group(f"kernel{len(steps)}", [normalize(node)], frozenset()))
    return Schedule(tuple(steps))


def make_group(name: str, members: Sequence[Loops], internal: frozenset[str]) -> Group:
    """A group of members over the same outer loops, in order of execution."""
    shared = min(len(member.body.vars) for member in members)
    changed, ranges, inner = collapse(members, shared)
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for member in changed:
        for op in member.body.ops:
            _argument(op, internal, reads, writes)
    return Group(name, changed, ranges, internal, tuple(reads), tuple(writes), inner)


def _argument(op: Op, internal: frozenset[str], reads: dict[str, None], writes: dict[str, None]) -> None:
    if op.name == "load":
        buffer = op.args[0]
        if buffer not in internal and buffer not in writes:
            reads[buffer] = None  # type: ignore[index]
    elif op.name == "store" and op.args[0] not in internal:
        writes[op.args[0]] = None  # type: ignore[index]
