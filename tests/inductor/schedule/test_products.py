"""Where steps stand once the pass over products has looked at them."""

from __future__ import annotations

from typing import Any

import torch
from tests.inductor.all_sizes import symbolic_fakes
from tests.inductor.claimed_gpu import lowered_on_gpu

from stator.inductor.buffers import Extern
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import ProductGroup, Schedule, Tile
from stator.inductor.schedule.products import fuse_products
from stator.inductor.schedule.verifier import verify_schedule
from stator.shapes.environment import Environment

SIZE = 64


def gradients(tangent: torch.Tensor, *saved: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A backward of layers whose weights' gradients are widened at its end."""
    narrow = []
    for value, weight in zip(saved[::2], saved[1::2], strict=True):
        tangent = torch.cos(tangent) * value
        narrow.append(tangent.t() @ value)
        tangent = tangent @ weight
    return tangent, *[one.float() for one in narrow]


def fused(choose: Any) -> tuple[Schedule, Schedule]:
    """The schedule without the pass, and with it."""
    tensors = [torch.empty(SIZE, SIZE, dtype=torch.bfloat16) for _ in range(9)]
    lowered = lowered_on_gpu(gradients, symbolic_fakes(tensors, [()] * 9, Environment()))
    before = schedule(lowered)
    after, lowered = fuse_products(before, lowered, choose)
    verify_schedule(after, lowered)
    return before, after


def test_the_library_is_called_where_it_was() -> None:
    before, after = fused(lambda group, shares: None)
    assert after.steps == before.steps
    assert not any(isinstance(step, Extern) for step in after.steps[-4:])  # which widen gradients


def test_launches_stand_where_their_loops_do() -> None:
    def choose(group: ProductGroup, shares: bool) -> Tile | None:
        widens = any(op.dtype is torch.float32 for member in group.members for op in member.body.ops[-2:])
        return Tile(16, 16, 16, 4, 2) if widens else None

    before, after = fused(choose)
    launches = [step for step in after.steps if isinstance(step, ProductGroup)]
    assert launches
    left = [step for step in before.steps if step in after.steps]
    assert [step for step in after.steps if not isinstance(step, ProductGroup)] == left
