"""The indices of a mask's elements come from kernels: results and strides of `nonzero`, `torch.where`, `x[mask]`
and `masked_select` equal eager's, for masks of all layouts and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Counts
from tests.threads import threads

import stator
from stator.runtime.mask_indices import true_indices

SHAPES = [(), (1,), (0,), (70,), (3, 4), (0, 4), (4, 0), (2, 3, 5), (100, 65), (1, 9, 70), (5, 6, 7, 8)]
DTYPES = [torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.complex64]

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "nonzero": lambda mask, x: mask.nonzero(),
    "nonzero as tuple": lambda mask, x: mask.nonzero(as_tuple=True),
    "where": lambda mask, x: torch.where(mask),
    "argwhere of a computed mask": lambda mask, x: torch.argwhere((mask != 0) & (x > 0)),
    "selected": lambda mask, x: x[mask != 0] * 2,
    "selected of a computed tensor": lambda mask, x: (x * 2)[mask != 0].sum(),
    "masked_select": lambda mask, x: torch.masked_select(x, mask != 0),
    "by indices": lambda mask, x: x[torch.where(mask != 0)].exp() if x.dim() else x,
}


def in_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "reversed":
        order = tuple(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    return torch.stack((tensor, tensor), -1)[..., 0] if layout == "every second" else tensor


def as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_eager_in_all_layouts(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    program = PROGRAMS[name]
    compiled = stator.compile(program, dynamic=True, options={"recompile_limit": 100})
    for shape in SHAPES:
        for layout in ("dense", "reversed", "every second") if len(shape) > 1 else ("dense",):
            mask = in_layout(torch.randn(shape).round().to(dtype), layout)
            x = in_layout(torch.randn(shape), layout)
            for found, expected in zip(as_list(compiled(mask, x)), as_list(program(mask, x)), strict=True):
                torch.testing.assert_close(found, expected, check_stride=True)


def test_neither_nonzero_nor_a_selection_runs_in_the_library() -> None:
    counts = Counts()
    compiled = stator.compile(lambda x: (x[x > 0] * 2, torch.where(x > 1), (x < 0).nonzero()))
    compiled(torch.randn(30, 20))
    for name in ("nonzero.default", "index.Tensor", "masked_select.default"):
        assert counts[f"inductor_fallback:aten.{name}"] == 0
    assert counts["inductor_fallback:stator.true_indices.default"] == 3 and counts["graph_breaks"] == 0


def test_gradients_of_rows_and_elements() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sin().sum() + x.mul(3)[x[:, 0] < 0].cos().sum()

    compiled = stator.compile(program, dynamic=True)
    for rows in (7, 12, 1):
        x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(*[torch.autograd.grad(one(x), x) for one in (compiled, program)])


@pytest.mark.parametrize("count", [1, 3])
def test_parts_of_several_threads_meet(count: int) -> None:
    with threads(count):
        for shape in ((32768,), (32769,), (200_001,), (7, 40_000), (40_000, 7), (60, 61, 62), (1025,), (1057, 1)):
            for share in (0.0, 0.001, 0.05, 0.5, 0.97, 1.1):
                mask = torch.rand(shape) < share
                assert torch.equal(true_indices(mask), mask.nonzero().t())


def test_every_byte_but_zero_is_true() -> None:
    bytes_ = torch.arange(256, dtype=torch.uint8).repeat(3)
    assert torch.equal(true_indices(bytes_.view(torch.bool)), bytes_.nonzero().t())
