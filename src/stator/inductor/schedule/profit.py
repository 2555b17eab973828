"""Decides whether a legal fusion is worth it. Every threshold of the scheduler alone lives here."""

from __future__ import annotations

from collections.abc import Mapping

from stator.inductor.devices import DeviceTraits
from stator.inductor.lower.heuristics import LARGE_TABLE
from stator.inductor.sizes import SizeKnowledge, product

from .legality import Fusion, FusionCandidate
from .space import strides

MAX_MEMBERS = 32
MAX_OPERATIONS = 400  # beyond this, compile time and register spills grow faster than memory traffic shrinks
MAX_BUFFERS = 28

MIN_ROW = 16  # shorter rows make poor vectors
HEAVY = 96  # operations for each element that few rows leave to a kernel which fills the device
HEAVIEST = 256  # that any rows leave to it, since their blocks have elements that are no part of a row
LONG_WORK = 65536  # few rows leave threads idle, whereas threads share a single row


def exceeds_limits(first: FusionCandidate, second: FusionCandidate) -> bool:
    """The size limits, which are checked before legality."""
    members = len(first.members) + len(second.members)
    operations = sum(facts.operations for facts in (*first.facts, *second.facts))
    return members > MAX_MEMBERS or operations > MAX_OPERATIONS


def is_profitable(
    first: FusionCandidate,
    second: FusionCandidate,
    fusion: Fusion,
    sizes: Mapping[str, int],
    readers: Mapping[str, int],
    knowledge: SizeKnowledge,
    traits: DeviceTraits,
) -> bool:
    """Judges by the sizes of the example."""
    buffers = first.reads | first.writes | second.reads | second.writes
    if len(buffers) > MAX_BUFFERS:
        return False
    if not fusion.flow and not _siblings(first, second, fusion, sizes, knowledge):
        return False
    if not fusion.flow and traits.programs and fusion.space.inner and _stores_across(fusion, knowledge):
        return False
    if fusion.space.inner and not _rows_fit(first, second, fusion, knowledge, traits):
        return False
    if fusion.flow and _fills_a_table(second, sizes, knowledge):
        return False
    if _chooses_places(first) and _chooses_places(second):
        return False  # a kernel whose sums go to the rows of one number shares rows between threads, without atomics
    return _same_lanes(first, second, fusion, readers)


def _chooses_places(group: FusionCandidate) -> bool:
    return any(not access.plain for facts in group.facts for access in facts.stores)


def _fills_a_table(second: FusionCandidate, sizes: Mapping[str, int], knowledge: SizeKnowledge) -> bool:
    """True if rows are added to a much larger table. Filling the table takes longer than storing the rows, and with the
    rows stored their operands can die before the table is filled."""
    return any(
        not access.plain and sizes[access.buffer] >= LARGE_TABLE * knowledge.hint(facts.iterations)
        for facts in second.facts
        for access in facts.stores
    )


def _siblings(
    first: FusionCandidate,
    second: FusionCandidate,
    fusion: Fusion,
    sizes: Mapping[str, int],
    knowledge: SizeKnowledge,
) -> bool:
    """Without a value that flows, fusion pays when both groups read the same large buffer in the same loops."""
    total = product(loop.size for loop in fusion.space.loops)
    if fusion.paired != total:
        return False
    shared = sum(sizes[name] for name in first.reads & second.reads)
    return 2 * shared >= knowledge.hint(total)


def _rows_fit(
    first: FusionCandidate, second: FusionCandidate, fusion: Fusion, knowledge: SizeKnowledge, traits: DeviceTraits
) -> bool:
    space = fusion.space
    row = knowledge.hint(product(loop.size for loop in space.inner))
    rows = knowledge.hint(product(loop.size for loop in space.outer))
    if 1 < rows < traits.few_rows and row * rows > LONG_WORK:
        return False
    if not first.space.inner and not second.space.inner and row < MIN_ROW:
        return False  # both are pointwise, so rows exist only because of this fusion
    single_phase = not first.space.inner and second.space.inner  # the first only feeds the reduction
    work = max(facts.operations + facts.repeated for facts in first.facts)
    if single_phase and traits.programs and work > (HEAVY if rows < traits.programs else HEAVIEST):
        return False
    along = _rows_are_contiguous(fusion, knowledge)
    if not first.space.inner and not second.space.inner and not along:
        return False
    if single_phase and len(space.outer) == len(second.space.outer):
        return True
    return row <= (traits.row if along else traits.column)


def _rows_are_contiguous(fusion: Fusion, knowledge: SizeKnowledge) -> bool:
    """True if the inner loops walk through neighbouring elements of the widest access."""
    walk = strides(fusion.widest, fusion.space.loops, knowledge) if fusion.widest is not None else None
    return bool(walk) and walk[0][1] in fusion.space.inner  # type: ignore[index]


def _stores_across(fusion: Fusion, knowledge: SizeKnowledge) -> bool:
    """True if stores lie along other loops than the widest access: a copy that transposes what a sum reads by rows."""
    lanes = fusion.lanes_first | fusion.lanes_second
    walk = strides(fusion.widest, fusion.space.loops, knowledge) if fusion.widest is not None else None
    return bool(lanes and walk) and walk[0][1].symbol not in lanes  # type: ignore[index]


def _same_lanes(first: FusionCandidate, second: FusionCandidate, fusion: Fusion, readers: Mapping[str, int]) -> bool:
    """Stores that are contiguous along different loops need strided access. Only saved memory outweighs that cost."""
    one, other = fusion.lanes_first, fusion.lanes_second
    if not one or not other or one & other:
        return True
    if fusion.space.inner:
        return False
    return bool(fusion.flow) and all(readers.get(name, 0) <= 1 for name in fusion.flow)
