"""What an operator is decomposed into has its layout, also strides that address nothing but tell a memory format."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import stator

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pool": lambda x: F.adaptive_avg_pool2d(x, 1),
    "pool and more": lambda x: F.adaptive_avg_pool2d(x, 1) * 2 + 1,
    "pool in rows": lambda x: F.adaptive_avg_pool2d(x, (1, 2)),
}


@pytest.mark.each_pair
@pytest.mark.parametrize("shape", [(2, 4, 4, 4), (1, 4, 4, 4), (2, 1, 4, 4), (2, 4, 1, 1), (1, 1, 4, 4)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_strides_of_pooled_images(program: str, channels_last: bool, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    expected, found = PROGRAMS[program](x), stator.compile(PROGRAMS[program])(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
