"""Makes kernels of the convolutions that we compute ourselves, each with the pointwise group that reads its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.inductor.buffers import Extern, Loops, Lowered, View
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.loops.body import IndexRef, LoopBody, Op, Ref

from .accesses import memory_owner, summarize
from .groups import SUMS, ConvolutionGroup, Group, Schedule, TiledGroup
from .product_calls import LOOPS, ProductSteps, element_at, over_elements

# Operations that the loops behind a convolution may not have: reductions, and what needs a state of its own
_REFUSED = frozenset(("reduce", "welford", "get", "indirect", "random", "normal"))


def convolution_kernels(schedule: Schedule, lowered: Lowered, fuse: bool = True) -> Schedule:
    """Replace each call of a `DirectConvolution` by a kernel. fuse: with loops that follow."""
    if not any(isinstance(step, Extern) and isinstance(step.target, DirectConvolution) for step in schedule.steps):
        return schedule
    return Schedule(tuple(_Convolutions(schedule, lowered).run(fuse)))


class _Convolutions(ProductSteps):
    def run(self, fuse: bool) -> list[Group | Extern]:
        for at, step in enumerate(self.steps):
            if isinstance(step, Extern) and isinstance(step.target, DirectConvolution):
                self.steps[at] = self._alone(step, step.target)
        if fuse:
            for step in [step for step in self.steps if isinstance(step, Group) and not isinstance(step, TiledGroup)]:
                self._absorb(step)
        return self.steps

    def _alone(self, call: Extern, convolution: DirectConvolution) -> ConvolutionGroup:
        images, weight, bias = call.args
        (result,) = call.outputs
        assert result is not None
        images, weight = (
            one if isinstance(one, View) else View(one, replace(self.buffers[one].layout, offset=0))
            for one in (images, weight)
        )
        members = (_stored(call, convolution, result, bias, self.lowered),)
        return _group(call, convolution, images, weight, members, frozenset())

    def _absorb(self, follower: Group) -> None:
        """Put a pointwise group behind the last of the convolutions that it reads."""
        at = next(at for at, step in enumerate(self.steps) if step is follower)
        for place in reversed(range(at)):
            step = self.steps[place]
            if isinstance(step, ConvolutionGroup) and len(step.members) == 1 and step.writes[0] in follower.reads:
                fused = self._together(step, follower) if self.may_move(place, at) else None
                if fused is not None:
                    self.steps[at] = fused
                    del self.steps[place]
                return

    def _together(self, group: ConvolutionGroup, follower: Group) -> ConvolutionGroup | None:
        convolution, (result,) = group.convolution, group.writes
        if follower.inner_ranges:
            return None
        ranges = (1, convolution.rows, convolution.columns)
        moved = over_elements(follower, [result], ranges, self.lowered, _REFUSED)
        if moved is None or not all(_is_float32(member) and _along_channels(member) for member in moved):
            return None
        internal = follower.internal
        if not self.is_read(result, (group, follower)):
            internal |= {result}
        members = (*group.members, *moved)
        fused = _group(group.call, convolution, group.images, group.weight, members, internal)
        owners = {memory_owner(name, self.buffers) for name in fused.reads}
        if any(memory_owner(name, self.buffers) in owners for name in fused.writes):
            return None
        return replace(fused, name=follower.name)


def _stored(
    call: Extern, convolution: DirectConvolution, result: str, bias: str | View | None, lowered: Lowered
) -> Loops:
    """The loops that store the sums, with the bias."""
    ranges = (1, convolution.rows, convolution.columns)
    limits = lowered.sizes.ranges(LOOPS, ranges)
    indices = [element_at(0, (0, convolution.columns, 1), limits)]
    ops = [Op("load", (SUMS, IndexRef(0), None, 0), torch.float32)]
    if bias is not None:
        base, offset = (bias.base, bias.layout.offset) if isinstance(bias, View) else (bias, 0)
        indices.append(element_at(offset, (0, 0, 1), limits))
        ops.append(Op("load", (base, IndexRef(1), None, 0), torch.float32))
        ops.append(Op("add", (Ref(0), Ref(1)), torch.float32))
    ops.append(Op("store", (result, IndexRef(0), Ref(len(ops) - 1), None, None), None))
    return Loops((result,), LoopBody(LOOPS, ranges, (), (), tuple(indices), tuple(ops)), call.origins)


def _group(
    call: Extern,
    convolution: DirectConvolution,
    images: View,
    weight: View,
    members: Sequence[Loops],
    internal: frozenset[str],
) -> ConvolutionGroup:
    reads = dict.fromkeys((images.base, weight.base))
    written: dict[str, None] = {}
    for member in members:
        facts = summarize(member)
        reads |= dict.fromkeys(access.buffer for access in facts.loads if access.buffer not in (SUMS, *written))
        written |= dict.fromkeys(access.buffer for access in facts.stores)
    writes = tuple([name for name in written if name not in internal])
    inside = internal & written.keys()
    return ConvolutionGroup(
        f"convolution_{call.outputs[0]}",
        tuple(members),
        (),
        frozenset(inside),
        tuple(reads),
        writes,
        convolution=convolution,
        call=call,
        images=images,
        weight=weight,
    )


def _is_float32(member: Loops) -> bool:
    """True for loops of values as wide as the sums."""
    return all(op.dtype in (None, torch.float32, torch.bool) for op in member.body.ops)


def _along_channels(member: Loops) -> bool:
    """True if all memory that the loops write lies channel by channel, as the sums do, and all that they read does so
    or does not vary with channels. Transposed in a loop of its own, other memory takes less time."""
    for op in member.body.ops:
        if op.name in ("load", "store"):
            place: Any = op.args[1]
            step = member.body.indices[place.position].coefficient(LOOPS[2])
            if step != 1 and (op.name == "store" or step != 0):
                return False
    return True
