"""Tensors of more than 2**31 elements, whose places need indices of 64 bits; compared in parts that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.gpu.device import DEVICE

import stator

MORE = 2**31 + 5 if DEVICE == "cuda" else 2**16 + 5
PART = 2**26
LAST = [0, 1, MORE // 2, MORE - 6, MORE - 5, MORE - 2, MORE - 1]


def needs(gibibytes: float) -> None:
    """This many times 2**30 elements of one byte; other processes use the device, too."""
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < gibibytes * 2**30:
        pytest.skip("needs more memory than is free")


@pytest.fixture
def large() -> Iterator[torch.Tensor]:
    needs(5)
    yield torch.randint(-100, 100, (MORE,), dtype=torch.int8, device=DEVICE)


def test_elementwise(large: torch.Tensor) -> None:
    found = stator.compile(lambda x: (x + 1) * 3)(large)
    for start in range(0, MORE, PART):
        part = large[start : start + PART]
        assert torch.equal(found[start : start + PART], (part + 1) * 3), start


def test_the_same_kernel_after_a_small_call(large: torch.Tensor) -> None:
    compiled = stator.compile(lambda x: x * 2, dynamic=True)
    assert torch.equal(compiled(large[:100]), large[:100] * 2)
    found = compiled(large)
    assert torch.equal(found[-PART:], large[-PART:] * 2) and torch.equal(found[:PART], large[:PART] * 2)


def test_reductions(large: torch.Tensor) -> None:
    found, top = stator.compile(lambda x: (x.sum(dtype=torch.int64), x.amax()))(large)
    assert found == sum(part.sum(dtype=torch.int64) for part in large.split(PART)) and top == large.max()


def test_rows_and_columns(large: torch.Tensor) -> None:
    table = large[: MORE // 2048 * 2048].view(-1, 2048)
    rows, columns = stator.compile(lambda x: (x.sum(1, dtype=torch.int32), x.sum(0, dtype=torch.int64)))(table)
    assert torch.equal(rows, torch.cat([part.sum(1, dtype=torch.int32) for part in table.split(2**15)]))
    assert torch.equal(columns, sum(part.sum(0, dtype=torch.int64) for part in table.split(2**15)))


def test_places_are_read_and_written(large: torch.Tensor) -> None:
    places = torch.tensor(LAST, device=DEVICE)

    def program(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        read = x[places] * 2
        x[places] = torch.ones_like(read) * 7
        return read

    expected = large[places] * 2
    assert torch.equal(stator.compile(program)(large, places), expected)
    assert torch.equal(large[places], torch.full_like(expected, 7)) and (large[1000:2000] == 7).sum() < 100


def test_strides_that_reach_beyond(large: torch.Tensor) -> None:
    spread = large[: MORE - 5].view(4, -1)[:, ::1000]  # few elements, far from each other
    f = lambda x: x.float().cumsum(1) + x.t().float().sum()  # noqa: E731
    torch.testing.assert_close(stator.compile(f)(spread), f(spread), rtol=1e-5, atol=1e-1)
