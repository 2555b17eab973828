"""Whether tensors over one memory have elements in common, beside the addresses themselves."""

import random

import torch

from stator.prims.record import TensorMeta
from stator.prims.shared_memory import may_meet


def meta_of(x: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(x.shape), x.stride(), x.dtype, x.device, x.storage_offset())


def addresses(meta: TensorMeta) -> set[int]:
    if 0 in meta.shape:
        return set()
    found = {meta.offset}
    for size, stride in zip(meta.shape, meta.stride, strict=True):
        found = {at + index * stride for at in found for index in range(size)}
    return found


def some_layout(draw: random.Random) -> TensorMeta:
    rank = draw.randint(0, 3)
    shape = tuple(draw.choice((0, 1, 2, 2, 3, 4)) for _ in range(rank))
    stride = tuple(draw.choice((0, 1, 1, 2, 3, 4, 5, 8, 12)) for _ in range(rank))
    return TensorMeta(shape, stride, torch.float32, torch.device("cpu"), draw.randint(0, 20))


def test_tensors_that_share_an_element_may_meet() -> None:
    draw = random.Random(0)
    for _ in range(3000):
        first, second = some_layout(draw), some_layout(draw)
        assert may_meet(first, second) or not addresses(first) & addresses(second), (first, second)


def test_parts_side_by_side_do_not_meet() -> None:
    x = torch.empty(4, 6, 5)
    for first, second in (
        (x[0], x[1]),
        (x[:, :3], x[:, 3:]),
        (x[..., ::2], x[..., 1::2]),
        (x[..., :2], x[..., 2:].transpose(0, 1)),
        (x[1:, 2], x[:, 3]),
        (x[:0], x),
    ):
        assert not may_meet(meta_of(first), meta_of(second))
