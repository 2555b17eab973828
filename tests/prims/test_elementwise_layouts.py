"""Elementwise operators of random layouts and dtypes: broadcast, permuted, with gaps; the strides are eager's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from stator.prims.record import records

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16)
BINARY = (
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.maximum.default,
    aten.logical_and.default, aten.atan2.default, aten.pow.Tensor_Tensor, aten.fmod.Tensor, aten.xlogy.Tensor,
    aten.copysign.Tensor, aten.floor_divide.default, aten.clamp_min.Tensor,
)  # fmt: skip
TERNARY = (aten.where.self, aten.addcmul.default, aten.clamp.Tensor)


def laid_out_at_random(chooser: random.Random, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that broadcasts to `shape`."""
    rank = len(shape)
    own = [size if chooser.random() < 0.7 else 1 for size in shape]
    order = chooser.sample(range(rank), rank) if chooser.random() < 0.6 else list(range(rank))
    gaps = [2 if chooser.random() < 0.15 else 1 for _ in shape]
    storage = torch.ones([own[dim] * gaps[dim] for dim in order], dtype=dtype)
    tensor = storage.permute([order.index(dim) for dim in range(rank)])[tuple(slice(None, None, gap) for gap in gaps)]
    if chooser.random() < 0.25:
        dim = chooser.randrange(rank)
        tensor = tensor.expand([shape[dim] if at == dim else size for at, size in enumerate(own)])
    return tensor[(0,) * chooser.randrange(rank)] if chooser.random() < 0.15 else tensor


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore")  # casting complex to real
def test_strides_of_mixed_operands_are_eagers(seed: int) -> None:
    chooser = random.Random(seed)
    compared = 0
    for _ in range(800):
        shape = [chooser.choice((1, 2, 3, 5)) for _ in range(chooser.randint(1, 4))]
        op = chooser.choice(BINARY + TERNARY)
        args: list[Any] = [laid_out_at_random(chooser, shape, chooser.choice(DTYPES)) for _ in range(3)]
        if op is aten.where.self:
            args[0] = laid_out_at_random(chooser, shape, torch.bool)
        elif op in BINARY:
            args.pop()
        try:
            result = op(*args)
        except RuntimeError:  # a dtype without a kernel
            continue
        compared += 1
        meta = records[op].shape(*args)
        assert (meta.shape, meta.stride, meta.dtype) == (tuple(result.shape), result.stride(), result.dtype), (
            f"{op} of {[(arg.dtype, tuple(arg.shape), arg.stride()) for arg in args]}"
        )
    assert compared > 500
