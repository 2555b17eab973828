"""Tensors of the meta device in compiled graphs: operators on them are called, those beside them are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stator

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "made beside": lambda x: (x + 1, torch.empty_like(x, device="meta"), torch.ones(3, device="meta").sin() + 1),
    "moved there": lambda x: (
        (x * 2).view(12)[::2].to("meta") * 2,
        x.to("meta")[1:].clone(),
        x.to("meta").T.contiguous(),
    ),
    "layers": lambda x: F.layer_norm(F.linear(x.to("meta"), x.to("meta")), (3,)).softmax(0).max(1),
    "joined": lambda x: torch.cat([x.to("meta"), torch.ones(2, 4, device="meta")])[0],
    "random": lambda x: torch.rand_like(x, device="meta"),
}


def described(results: Any) -> list[Any]:
    results = results if isinstance(results, tuple) else (results,)
    return [(one.shape, one.stride(), one.dtype, one.device) for one in results]


@pytest.mark.parametrize("options", [{}, {"exact_rounding": True}], ids=["", "exact"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_with_tensors_without_data_are_compiled(name: str, options: dict[str, object]) -> None:
    x = torch.randn(3, 4)
    compiled = stator.compile(PROGRAMS[name], fullgraph=True, options={**options, "verify": True})
    actual, expected = compiled(x), PROGRAMS[name](x)
    assert described(actual) == described(expected)
    if name == "made beside":
        torch.testing.assert_close(actual[0], expected[0])


def test_one_is_written_to_and_differentiated() -> None:
    x = torch.ones(3, 4, device="meta", requires_grad=True)
    compiled = stator.compile(lambda x: (x * 2).add_(1).sin().sum(), fullgraph=True)
    compiled(x).backward()
    assert x.grad is not None
    assert (x.grad.shape, x.grad.device) == (x.shape, x.device)
