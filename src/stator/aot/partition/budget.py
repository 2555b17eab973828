"""Chooses what to keep for the backward under a memory budget: the cheapest of several candidates that fits.

liveness.py estimates the memory of a choice on the graph; recompute.py makes choices as minimum cuts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import accumulate

from torch import fx

from .costs import bytes_of
from .forward_backward_sets import ForwardBackwardSets, JointGraph, read_by_backward
from .liveness import estimate_peak
from .recompute import DEAREST, HOLDING, HOLDING_AT_PEAK, RecomputeProblem, SavedChoice

# Prices of a held byte to try; recomputing a product of inner size k costs about k / 16 per byte
_PRICES = tuple(float(1 << power) for power in range(1, 13))
_FRACTIONS = (0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125)
_SEGMENTS = (2, 3, 4, 5, 6, 8, 10, 12, 16)
_KNAPSACK_UNITS = 256
# More is computed again only in a step that needs more than this share of the memory of eager ...
_NOTICEABLE = 0.8
# ... and where the peak falls by this share: less is not worth the time
_WORTHWHILE = 0.05


def choose_saved(joint: JointGraph, sides: ForwardBackwardSets, memory_budget: float = 1.0) -> SavedChoice:
    """What to keep.

    memory_budget: 1 for what is fastest, 0 for the lowest peak of a step, linear in bytes between. Where the peak does
    not depend on the kept bytes, the budget is for these. Library calls (products, convolutions, attention, sorting)
    are computed again only for budgets below 1 and in checkpoint regions; random numbers never. Raises ValueError for a
    budget outside of [0, 1].
    """
    if not 0.0 <= memory_budget <= 1.0:
        raise ValueError(f"memory_budget must lie between 0 and 1, not {memory_budget}")
    fusing = RecomputeProblem(joint, sides, library_again=False)
    plain, lean = fusing.solve(HOLDING), fusing.solve(HOLDING_AT_PEAK)
    fastest = _fastest(fusing, plain, lean)
    if memory_budget == 1.0:
        return fastest
    problem = RecomputeProblem(joint, sides, library_again=True)
    found = (plain, lean, *_by_price(problem, plain), *_by_segments(problem, fastest))
    choices = {choice.saved: choice for choice in found}
    peaks = {choice: estimate_peak(sides, choice.saved, problem.held) for choice in (*choices.values(), fastest)}
    least, most = min(peaks.values()), peaks[fastest]
    if least > (1 - _WORTHWHILE) * most:
        return _fewest_kept([choice for choice in peaks if peaks[choice] <= most], fastest, memory_budget)
    room = least + memory_budget * (most - least)
    return min((choice for choice in peaks if peaks[choice] <= room), key=lambda c: (c.recompute_cost, peaks[c]))


def _fewest_kept(choices: Sequence[SavedChoice], fastest: SavedChoice, memory_budget: float) -> SavedChoice:
    """Among choices of about equal peak the cheapest that keeps few bytes: the backward itself makes the peak."""
    least = min(choice.saved_bytes for choice in choices)
    room = least + memory_budget * (fastest.saved_bytes - least)
    fitting = [choice for choice in choices if choice.saved_bytes <= room]
    return min(fitting, key=lambda choice: (choice.recompute_cost, choice.saved_bytes))


def _fastest(problem: RecomputeProblem, plain: SavedChoice, lean: SavedChoice) -> SavedChoice:
    """`plain`; or `lean`, which takes up to a few percent more time, if it lowers a peak that is near eager's. In many
    steps the peak is where all gradients exist and few kept values are left: keeping less would not lower it."""
    if lean.saved_bytes >= plain.saved_bytes:
        return plain
    most = estimate_peak(problem.sides, plain.saved, problem.held)
    if most <= _NOTICEABLE * _eager_peak(problem):
        return plain
    least = estimate_peak(problem.sides, lean.saved, problem.held)
    return lean if least <= (1 - _WORTHWHILE) * most else plain


def _eager_peak(problem: RecomputeProblem) -> int:
    """The peak of eager, which keeps all that its backward reads."""
    callers = problem.shown | set(problem.sides.primals)
    return estimate_peak(
        problem.sides,
        read_by_backward(problem.sides),
        lambda node: 0 if node in callers else bytes_of(node),
        compiled=False,
    )


def _by_price(problem: RecomputeProblem, fastest: SavedChoice) -> Iterator[SavedChoice]:
    """Choices that hold a part of the bytes that the fastest choice holds.

    The price of a held byte rises until the choice fits. Equal layers all flip at one price, which leaves room: a
    knapsack fills it with values of the choice at the next lower price.
    """
    choices = [fastest, *(problem.solve(price) for price in (*_PRICES, DEAREST))]
    yield from choices
    for fraction in _FRACTIONS:
        most = int(fraction * fastest.saved_bytes)
        fitting = [choice for choice in choices if choice.saved_bytes <= most]
        above = [choice for choice in choices if choice.saved_bytes > most]
        if fitting and above:
            below = max(fitting, key=lambda choice: choice.saved_bytes)
            yield _filled(problem, below, min(above, key=lambda choice: choice.saved_bytes), most)


def _filled(problem: RecomputeProblem, below: SavedChoice, above: SavedChoice, most: int) -> SavedChoice:
    """`below`, and as many of the values that `above` holds as fit into `most` bytes."""
    kept = set(below.saved)
    items = [node for node in above.saved if node not in kept]
    gains = [problem.cost_of(node, {*above.saved, *below.saved}) for node in items]
    sizes = [problem.held(node) for node in items]
    picked = fill_knapsack(gains, sizes, most - below.saved_bytes)
    return problem.settle((*below.saved, *(items[position] for position in picked)))


def _by_segments(problem: RecomputeProblem, fastest: SavedChoice) -> Iterator[SavedChoice]:
    """Choices that keep the values crossing a few places of the forward, and compute the values between again.

    T. Chen et al., "Training deep nets with sublinear memory cost", 2016: the backward then holds the values of one
    segment at a time. The places are where least crosses, about evenly spaced in bytes that the fastest choice keeps.
    """
    crossing = _Crossings(problem, fastest)
    for count in _SEGMENTS:
        places = crossing.places(count)
        if len(places) == count - 1:
            yield problem.solve(DEAREST, {node for place in places for node in crossing.at(place)})


class _Crossings:
    """Which forward values are computed before a place and read after it. Places are positions of nodes."""

    def __init__(self, problem: RecomputeProblem, fastest: SavedChoice) -> None:
        nodes = [node for node in problem.sides.nodes if node in problem.sides.forward and node.op == "call_function"]
        order = {node: position for position, node in enumerate(nodes)}
        self.spans: list[tuple[int, int, fx.Node]] = []
        changes = [0] * (len(nodes) + 1)
        for node, candidate in problem.candidates.items():
            if node in order and candidate.keep is not None:
                # one of several results exists from the place of its operator
                first = order[node.all_input_nodes[0] if node.target is operator.getitem else node]
                last = max((order[reader] for reader in problem.readers[node]), default=order[node])
                self.spans.append((first, last, node))
                changes[first + 1] += candidate.held
                changes[last + 1] -= candidate.held
        self.bytes = list(accumulate(changes))
        kept = [0] * (len(nodes) + 1)
        for node in fastest.saved:
            if node in order:
                kept[order[node] + 1] = problem.held(node)
        self.before = list(accumulate(kept))  # bytes that the fastest choice keeps from before each place

    def places(self, count: int) -> list[int]:
        """Places that make `count` segments, or fewer where some would be empty."""
        total = self.before[-1]
        found: list[int] = []
        for number in range(1, count):
            low, high = ((number + shift) * total / count for shift in (-0.4, 0.4))
            window = [place for place, sum_ in enumerate(self.before) if low <= sum_ <= high]
            if window:
                found.append(min(window, key=lambda place: self.bytes[place]))
        return found

    def at(self, place: int) -> list[fx.Node]:
        return [node for first, last, node in self.spans if first < place <= last]


def fill_knapsack(gains: list[int], sizes: list[int], room: int) -> list[int]:
    """Positions of the items to take: about the greatest sum of gains with sizes that fit into `room`. Sizes are
    rounded up to a 256th of the room."""
    unit = max(1, -(-room // _KNAPSACK_UNITS))
    units = room // unit
    best = [0] * (units + 1)
    taken: list[list[bool]] = []
    for gain, size in zip(gains, sizes, strict=True):
        need = -(-size // unit)
        row = [False] * (units + 1)
        for free in range(units, need - 1, -1):
            if best[free - need] + gain > best[free]:
                best[free] = best[free - need] + gain
                row[free] = True
        taken.append(row)
    picked, free = [], units
    for position in range(len(gains) - 1, -1, -1):
        if taken[position][free]:
            picked.append(position)
            free -= -(-sizes[position] // unit)
    return picked[::-1]
