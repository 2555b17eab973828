"""`out=` tensors of another size than the result: the operator resizes them, and capture does not go on with the old
size."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator


@pytest.fixture(autouse=True)
def resizing_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "An output with one or more elements was resized", UserWarning)
        yield


def _whole(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(2, dtype=dtype)


WRITERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "elementwise": lambda x, out: torch.sigmoid(x, out=out),
    "reduction": lambda x, out: torch.sum(x, 0, out=out),
    "composite": lambda x, out: torch.linalg.norm(x, dim=1, out=out),
    "product": lambda x, out: torch.matmul(x, x.t(), out=out),
    "several": lambda x, out: torch.sort(x, out=(out, _whole(torch.int64))),
    "factory": lambda x, out: torch.linspace(0, 1, 7, out=out),
    "list": lambda x, out: torch.cat([x, x], out=out),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_tensor_made_inside_has_its_new_size(writer: str, backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        out = _whole()
        WRITERS[writer](x, out)
        return out.shape, out.stride(), out + 1, out

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    wanted, given = f(x), stator.compile(f, backend=backend)(x)
    assert given[:2] == wanted[:2]
    assert torch.equal(given[2], wanted[2]) and torch.equal(given[3], wanted[3])


@pytest.mark.parametrize("writer", WRITERS)
def test_an_input_is_resized(writer: str) -> None:
    def f(x: torch.Tensor, out: torch.Tensor) -> int:
        WRITERS[writer](x, out)
        return out.numel()

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    wanted, given = _whole(), _whole()
    assert f(x, wanted) == stator.compile(f, backend="eager")(x, given)
    assert torch.equal(wanted, given)


def test_where_the_size_fits_there_is_one_graph() -> None:
    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.mul(x, 2, out=out)
        return out + 1

    x, out = torch.ones(3), torch.zeros(3)
    assert stator.compile(f, backend="eager", fullgraph=True)(x, out).tolist() == [3.0, 3.0, 3.0]
    assert out.tolist() == [2.0, 2.0, 2.0]
