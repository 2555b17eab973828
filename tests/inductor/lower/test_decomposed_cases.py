"""Cases that a lowering leaves out are made of simpler operators, not called in the library; and equal eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers

import stator
from stator.base import counters
from stator.graph.tracing.functional import trace_operator
from stator.inductor.lower import can_lower
from stator.prims.record import TensorMeta

aten = torch.ops.aten


def image(*shape: int) -> torch.Tensor:
    """With ties, NaN, and a channel of -inf."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).round()
    x[0, 0, 1, 1] = x[0, 0, 2, 2] = float("nan")
    x[0, 1] = -float("inf")
    return x


CASES: dict[str, Callable[..., Any]] = {
    "dilated maxima with positions": lambda x: F.max_pool2d(x, 2, 1, 1, dilation=2, return_indices=True),
    "maxima of a large window": lambda x: F.max_pool2d(x, 7, 2, 3, return_indices=True),
    "adaptive maxima": lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True),
    "averages of a large window": lambda x: F.avg_pool2d(x[:, 2:], 7, 2, 3, count_include_pad=False),
    "adaptive averages": lambda x: F.adaptive_avg_pool2d(x[:, 2:], (3, 4)),
    "an odd norm": lambda x: torch.linalg.vector_norm(x[:, 2:], 3, (-1, -2)),
    "softmax of one number": lambda x: torch.softmax(x[0, 2, 0, 0], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_cases_without_a_lowering_are_decomposed(name: str) -> None:
    assert can_lower(aten.max_pool2d_with_indices.default)
    assert_lowers(CASES[name], image(2, 4, 9, 11), tolerance=1e-5, strides=False)


def test_the_library_is_called_where_nothing_else_is_left() -> None:
    x = torch.randn(2, 3, dtype=torch.float32)
    assert_lowers(lambda x: torch.kthvalue(x, 1, 1), x, library=1)


def test_one_operator_taken_apart_says_what_it_is_made_of() -> None:
    meta = TensorMeta((2, 3), (3, 1), torch.float32, torch.device("cpu"))
    module = trace_operator(aten.silu.default, (meta,), {}, keep=lambda target: target is not aten.silu.default)
    assert [str(node.target) for node in module.graph.nodes if node.op == "call_function"] == [
        "aten.neg.default",
        "aten.exp.default",
        "aten.add.Tensor",
        "aten.div.Tensor",
    ]
    whole = trace_operator(aten.sort.default, (meta,), {}, keep=lambda target: False)
    assert "aten.sort.default" in [str(node.target) for node in whole.graph.nodes]


VIEWS: dict[str, Callable[..., Any]] = {
    "transposed": lambda x: x.t() * 2,
    "expanded": lambda x: x[:, :1].expand(3, 5) + 1,
    "every second": lambda x: (x + 1)[:, ::2],
    "split": lambda x: torch.split(x * 1j, 2, 1)[1],
    "reshaped with a copy": lambda x: x.t().reshape(2, 6) - 1,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_complex_tensors_are_not_copied(name: str) -> None:
    """Loops do not compute with complex numbers, but a view of them is only another layout."""
    x = torch.randn(3, 4, dtype=torch.complex64)
    counters.clear()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, eager = stator.compile(VIEWS[name], fullgraph=True)(x), VIEWS[name](x)
    assert torch.equal(ours, eager)
    assert ours.stride() == eager.stride()
    called = {key.removeprefix("inductor_fallback:aten.") for key in counters.counts if key.startswith("inductor_fall")}
    assert called <= {"mul.Tensor", "add.Tensor", "sub.Tensor", "clone.default"}
