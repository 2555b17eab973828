"""Maximum pooling with positions: values, positions and layouts as eager's, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers

CASES = [(3, 2, 1), (2, 2, 0), (3, 1, 1, 1, True), (3, 2, 1, 1, True), (2, 1, 0, 2), ((3, 2), (1, 2), (1, 0))]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_positions(case: Sequence, memory_format: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 9, 11).to(dtype).contiguous(memory_format=memory_format)
    x[0, 0, 2, 3] = float("nan")
    x[1, 0] = -float("inf")
    x[0, 1] = 1.0  # the first of equals wins
    assert_lowers(lambda x: F.max_pool2d(x, *case, return_indices=True), x)


def test_an_unbatched_image() -> None:
    assert_lowers(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), torch.randn(5, 12, 20))


def test_max_pooling_whose_positions_nobody_reads():
    assert_lowers(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 5, 12, 20))


@pytest.mark.parametrize("case", [(9, 1, 4), ((7, 5), (2, 3), (3, 0), (1, 2)), (6, 4, 2, 1, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_windows_are_searched_by_rows_and_by_columns(case: Sequence, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 19, 23).to(dtype)
    x[0, 0, 2, 3] = float("nan")
    x[1, 0] = -float("inf")
    assert_lowers(lambda x: F.max_pool2d(x, *case), x)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("target", [7, (4, 1), (2, 28)])
def test_adaptive_means_over_large_windows_are_sums(memory_format, target):
    x = torch.randn(2, 5, 56, 56).to(memory_format=memory_format)
    lowered = assert_lowers(lambda x: F.adaptive_avg_pool2d(x * 2, target), x, tolerance=1e-5, strides=False)
    assert len(lowered.nodes) <= 2, "no tables of positions"
