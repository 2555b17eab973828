"""Finds matrix products that one launch may compute: with the pointwise group that reads their results, and beside
other products of one left side. The backend says which of these are worth it, and how programs share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.inductor.buffers import Extern, Loops, Lowered

from .accesses import memory_owner, summarize
from .groups import Group, ProductGroup, ProductPart, Products, Schedule, Tile
from .product_calls import (
    DTYPES,
    LOOPS,
    Effects,
    ProductCall,
    ProductSteps,
    conflict,
    element_at,
    over_elements,
    product_of_windows,
)
from .shared_depth import may_share_depth, with_shared_depth

Choose = Callable[[ProductGroup, bool], Tile | None]  # the second argument: programs may share the depth

MOST_PARTS = 8


def fuse_products(schedule: Schedule, lowered: Lowered, choose: Choose) -> tuple[Schedule, Lowered]:
    """Replace library calls by launches where `choose` gives them a tile. Results are those of the library up to
    rounding: sums are in float32, and what follows in the launch reads them before they are rounded."""
    if any(isinstance(step, Extern) and step.binds for step in schedule.steps):
        return schedule, lowered  # the order of checks of sizes is not looked at here
    fusion = _ProductFusion(schedule, lowered, choose)
    steps = fusion.run()
    return Schedule(tuple(steps)), replace(lowered, buffers=fusion.buffers)


class _ProductFusion(ProductSteps):
    def __init__(self, schedule: Schedule, lowered: Lowered, choose: Choose) -> None:
        super().__init__(schedule, lowered)
        self.choose = choose

    def product(self, step: Group | Extern, dtypes: Collection[torch.dtype] = DTYPES) -> ProductCall | None:
        return super().product(step, dtypes) or product_of_windows(self, step)

    def run(self) -> list[Group | Extern]:
        calls = {at: call for at, step in enumerate(self.steps) if (call := self.product(step)) is not None}
        if not calls:
            return self.steps
        before = list(self.steps)
        self._absorb({call.result for call in calls.values()})
        for at, step in enumerate(self.steps):
            call = self.product(step)
            if call is not None:
                alone = self._group([step], [call], None)  # type: ignore[list-item]
                assert alone is not None
                self.steps[at] = alone
        self._join()
        readers = self.by_buffer(0)
        steps = [final for step in self.steps for final in self._chosen(step, readers)]
        for step in [step for step in steps if isinstance(step, ProductGroup)]:
            if step.products.tile is not None and step.products.tile.split > 1:
                steps = with_shared_depth(steps, step, self.buffers)
        return self._returned(steps, before)

    def _returned(self, steps: list[Group | Extern], before: Sequence[Group | Extern]) -> list[Group | Extern]:
        """Move calls that no launch replaces back towards their places. Behind these, they would keep operands alive
        for long: the loops that widen gradients of weights may be the last steps of a backward."""
        places = {id(step): at for at, step in enumerate(before)}
        found: list[tuple[int, Group | Extern, Effects]] = []
        for step in steps:
            parts = step.products.steps if isinstance(step, ProductGroup) else ((step,),)
            at, last = len(found), found[-1][0] if found else 0
            place, effects = max(places.get(id(one), last) for part in parts for one in part), self.effects(step)
            if isinstance(step, Extern):
                while at and found[at - 1][0] > place and not conflict(found[at - 1][2], effects):
                    at -= 1
            found.insert(at, (place, step, effects))
        return [step for _, step, _ in found]

    def _chosen(
        self, step: Group | Extern, readers: Mapping[str, Sequence[Group | Extern]]
    ) -> Sequence[Group | Extern]:
        """The launch, or its parts as launches of their own, or the calls that it would replace."""
        if not isinstance(step, ProductGroup):
            return [step]
        products = step.products
        tile = self.choose(step, may_share_depth(step, readers, self.lowered))
        if tile is not None:
            return [replace(step, products=replace(products, tile=tile))]
        if len(products.parts) == 1:
            return products.steps[0]
        alone = [self._combined(step.name, [(step, at)]) for at in range(len(products.parts))]
        return [final for part in alone for final in self._chosen(part, readers)]

    # ---- launches ---------------------------------------------------------------------------------

    def _group(
        self, externs: Sequence[Extern], calls: Sequence[ProductCall], follower: Group | None
    ) -> ProductGroup | None:
        """The launch for products of one left side and shape, and for the group that reads them; None if that group
        does not run over the products' elements, one by one."""
        first = calls[0]
        sums = tuple([f"the sums of {call.result}" for call in calls])
        members = [self.rounded(call, name) for call, name in zip(calls, sums, strict=True)]
        internal: set[str] = set()
        if follower is not None:
            place = element_at(0, first.strides, self.lowered.sizes.ranges(LOOPS, first.ranges))
            results = [call.result for call in calls]
            moved = over_elements(follower, results, first.ranges, self.lowered, place=place)
            if moved is None:
                return None
            members += moved
            internal = {call.result for call in calls if not self.is_read(call.result, (*externs, follower))}
            internal |= follower.internal
        part = ProductPart(tuple([call.right for call in calls]), sums, first.columns, tuple(members))
        steps = (*externs, *(() if follower is None else (follower,)))
        sizes = first.batch, first.rows, first.depth
        products = Products(first.left, *sizes, first.dtype, (part,), (steps,), ends=first.ends, windows=first.windows)
        name = follower.name if follower is not None else f"product_{first.result}"
        return _named(name, products, frozenset(internal))

    # ---- the pointwise group behind a product -----------------------------------------------------

    def _absorb(self, results: set[str]) -> None:
        for follower in [step for step in self.steps if isinstance(step, Group)]:
            read = results.intersection(follower.reads)
            if follower.inner_ranges or not read:
                continue
            at = next(at for at, step in enumerate(self.steps) if step is follower)
            found = [
                (where, call)
                for where, step in enumerate(self.steps[:at])
                if isinstance(step, Extern)
                and not read.isdisjoint(step.outputs)
                and (call := self.product(step)) is not None
            ]
            found = [one for one in found if found[-1][1] is one[1] or _together(found[-1][1], one[1])]
            if not found or not all(self.may_move(where, at) for where, _ in found):
                continue
            externs = [self.steps[where] for where, _ in found]
            group = self._group(externs, [call for _, call in found], follower)  # type: ignore[arg-type]
            if group is not None and not self._overwrites_operands(group):
                self.steps[at] = group
                self.steps = [step for step in self.steps if not any(step is one for one in externs)]

    def _overwrites_operands(self, group: ProductGroup) -> bool:
        """True if programs would write where others still read a side."""
        owners = {memory_owner(name, self.buffers) for name in group.products.operands}
        return any(memory_owner(name, self.buffers) in owners for name in group.writes)

    # ---- products side by side --------------------------------------------------------------------

    def _join(self) -> None:
        """Join launches of one left side."""
        at = 0
        while at < len(self.steps):
            found = None
            if isinstance(self.steps[at], ProductGroup):
                found = next((other for other in range(at + 1, len(self.steps)) if self._fit(at, other)), None)
            if found is None:
                at += 1
                continue
            one, other = self.steps[at], self.steps[found]
            if self.may_move(found, at) and not self._depends(other, one):
                place, gone = at, found
            elif self.may_move(at, found) and not self._depends(other, one):
                place, gone = found, at
            else:
                at += 1
                continue
            assert isinstance(one, ProductGroup) and isinstance(other, ProductGroup)
            parts = [(group, part) for group in (one, other) for part in range(len(group.products.parts))]
            self.steps[place] = self._combined(one.name, parts)
            del self.steps[gone]

    def _fit(self, at: int, other: int) -> bool:
        one, two = self.steps[at], self.steps[other]
        if not isinstance(one, ProductGroup) or not isinstance(two, ProductGroup):
            return False
        first, second = one.products, two.products
        return (
            _key(first) == _key(second)
            and len(first.parts) + len(second.parts) <= MOST_PARTS
            and not self._depends(two, one)
            and (self.may_move(other, at) or self.may_move(at, other))
        )

    def _depends(self, step: Group | Extern, earlier: Group | Extern) -> bool:
        """True if the two steps must not run at one time."""
        assert isinstance(step, Group) and isinstance(earlier, Group)
        reads, writes, before, written = (
            {memory_owner(name, self.buffers) for name in names}
            for names in (step.reads, step.writes, earlier.reads, earlier.writes)
        )
        return bool(written & (reads | writes)) or bool(writes & before)

    def _combined(self, name: str, parts: Sequence[tuple[ProductGroup, int]]) -> ProductGroup:
        first = parts[0][0].products
        chosen = [group.products.parts[at] for group, at in parts]
        steps = [group.products.steps[at] for group, at in parts]
        internal = frozenset([buffer for group, _ in parts for buffer in group.internal])
        label = name if len(parts) > 1 else f"{name}_{parts[0][1]}"
        return _named(label, replace(first, parts=tuple(chosen), steps=tuple(steps)), internal)


def _together(one: ProductCall, other: ProductCall) -> bool:
    """True if the same programs may compute both products, tile by tile."""
    first, second = ((call.left, call.right.strides, call.ends, call.windows) for call in (one, other))
    same = (one.batch, one.rows, one.columns, one.depth, one.dtype)
    return first == second and same == (other.batch, other.rows, other.columns, other.depth, other.dtype)


def _key(products: Products) -> Any:
    """What parts of one launch have in common."""
    part = products.parts[0]
    rights = [right.strides for right in part.rights]
    sizes = products.batch, products.rows, products.depth
    return products.left, products.ends, products.windows, *sizes, products.dtype, rights


def _named(name: str, products: Products, internal: frozenset[str]) -> ProductGroup:
    """A group of all parts, whose arguments are in the order of their first use."""
    members = tuple([member for part in products.parts for member in part.epilogue])
    sums = {name for part in products.parts for name in part.sums}
    reads = dict.fromkeys(products.operands)
    writes: dict[str, None] = {}
    for member in members:
        for op in member.body.ops:
            buffer: Any = op.args[0] if op.args else None
            if op.name == "load" and buffer not in sums and buffer not in internal and buffer not in writes:
                reads[buffer] = None
            elif op.name == "store" and buffer not in internal:
                writes[buffer] = None
    inside = internal & _written(members)
    return ProductGroup(name, members, (), inside, tuple(reads), tuple(writes), products=products)


def _written(members: Sequence[Loops]) -> frozenset[str]:
    return frozenset([name for member in members for name in summarize(member).writes])
