"""Scatters that meet one place several times, through the whole compiler: every reduction, dtype and start value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool]
TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.float64: (1e-10, 1e-10), torch.bfloat16: (1.6e-2, 1e-2)}


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 0.5).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 4, shape, generator=generator).to(dtype)


def assert_compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """Equal to eager, in kernels alone. Floats are added in another order, and half floats rounded once."""
    counters.clear()
    with torch.no_grad():
        ours = stator.compile(function, fullgraph=True)(*inputs)
        eager = function(*inputs)
    assert not [name for name in counters.counts if name.startswith("inductor_fallback:")]
    relative, absolute = TOLERANCES.get(eager.dtype, (0.0, 0.0))
    torch.testing.assert_close(ours, eager, rtol=relative, atol=absolute, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_last_of_several_writes_wins(dtype: torch.dtype) -> None:
    """Also where there is enough work for several threads."""
    x, source = values((4, 50000), dtype, 0), values((64, 50000), dtype, 1)
    index = torch.randint(0, 4, (64, 50000), generator=torch.Generator().manual_seed(2))
    assert_compiled(lambda x, i, s: x.scatter(0, i, s), x, index, source)
    rows = torch.tensor([3, 1, 3, 0, 1])  # of these, eager keeps the last only where it runs in one thread
    assert_compiled(lambda x, i, s: x.index_copy(0, i, s), x[:, :8], rows, source[:5, :8])
    assert_compiled(lambda x, i, s: x.index_put((i,), s), x[:, :8], rows, source[:5, :8])


@pytest.mark.parametrize("reduce", ["amax", "amin", "prod", "mean"])
def test_nan_reaches_the_result(reduce: str) -> None:
    x, source = values((4,), torch.float32, 0), values((6,), torch.float32, 1)
    source[2] = float("nan")
    index = torch.tensor([0, 1, 1, 2, 2, 0])
    assert_compiled(lambda x, i, s: x.index_reduce(0, i, s, reduce), x, index, source)


@pytest.mark.parametrize("accumulate", [True, False])
def test_assignments_through_a_mask(accumulate: bool) -> None:
    x, mask = torch.randn(4, 3), torch.tensor([True, False, True, False])
    assert_compiled(lambda x, m, v: x.index_put((m,), v, accumulate), x, mask, torch.randn(3))
    assert_compiled(lambda x, m, v: x.index_put((m,), v, accumulate), x, mask, torch.tensor(2.0))
    assert_compiled(lambda x, m, v: x.index_put((m,), v, accumulate), x, x > 0, torch.randn(1))


def test_an_index_out_of_range_is_eagers_error() -> None:
    def program(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, index, source, "amax")

    compiled = stator.compile(program, fullgraph=True)
    x, source = torch.randn(4), torch.randn(2)
    with torch.no_grad():
        compiled(x, torch.tensor([0, 3]), source)
        for function in (compiled, program):
            with pytest.raises(RuntimeError, match="index 4 is out of bounds"):
                function(x, torch.tensor([0, 4]), source)
