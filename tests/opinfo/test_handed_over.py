"""Operators whose result has a size that depends on data, or that ask for data otherwise, in graphs that are handed to
a backend: compiled, or refused with an error of stator. Results and gradients equal eager.
"""

from __future__ import annotations

from collections.abc import Sequence

import gradients
import handed_over
import pytest
import torch
from compiled import UNSUPPORTED, Case, cases, eager, inputs
from recorder import value_differences
from samples import IDENTIFIERS, OPERATORS
from test_gradients import RUNS_EAGERLY
from torch.utils import _pytree as pytree

from stator.base import counters

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators
NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
# Checked when the graph runs: it is compiled as a whole.
CHECKED = frozenset(("nn.functional.gaussian_nll_loss",))
by_backend = pytest.mark.parametrize("backend", handed_over.BACKENDS)


def forward_problem(case: Case, backend: str) -> str | None:
    with torch.no_grad():
        found = handed_over.run(case, backend, inputs([case]))
    dtype = _coarsest(case.tensors)
    return value_differences(_comparable(found, dtype), _comparable(eager([case])[0], dtype))


def _coarsest(tensors: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The least exact dtype of several: what is computed of float32 weights is no more exact for data in float64."""
    found = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return max(found, key=lambda dtype: torch.finfo(dtype).eps) if len(found) > 1 else None


def _comparable(result: object, dtype: torch.dtype | None) -> list[object]:
    leaves = [
        part.to_dense() if isinstance(part, torch.Tensor) and part.is_sparse else part
        for part in pytree.tree_leaves(result)
    ]
    if dtype is None:
        return leaves
    return [part.to(dtype) if isinstance(part, torch.Tensor) and part.is_floating_point() else part for part in leaves]


def gradient_problem(case: gradients.GradientCase, backend: str) -> str | None:
    def run(*given: torch.Tensor) -> list[object]:
        return [pytree.tree_leaves(handed_over.run(case, backend, given))]

    found, expected = gradients._differentiated([case], run)[0], gradients.eager([case])[0]
    dtype = _coarsest(case.tensors)
    return gradients.difference(case, _gradients_contiguous(found, dtype), _gradients_contiguous(expected, dtype))


def _gradients_contiguous(results: gradients.Results, dtype: torch.dtype | None) -> gradients.Results:
    """A compiled graph takes tangents laid out as its results are."""
    found = [None if gradient is None else gradient.contiguous() for gradient in results[1]]
    return _comparable(results[0], dtype), _comparable(found, dtype)  # type: ignore[return-value]


@by_backend
@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_results_equal_eager(name: str, backend: str) -> None:
    check_results(name, backend, 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_backend
@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_results_of_all_samples_equal_eager(name: str, backend: str) -> None:
    check_results(name, backend, 1000)


def check_results(name: str, backend: str, count: int) -> None:
    torch.manual_seed(0)
    named = [(one, op) for one, op in NAMED if one == name]
    told = [
        f"{case.describe()}: {problem}"
        for case in cases(named, count, (None,))
        if (problem := forward_problem(case, backend))
    ]
    assert not told, "\n".join(told)


@by_backend
@pytest.mark.parametrize("name", sorted(RUNS_EAGERLY | CHECKED))
def test_gradients_equal_eager(name: str, backend: str) -> None:
    check_gradients(name, backend, 4, (torch.float32,))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_backend
@pytest.mark.parametrize("name", sorted(RUNS_EAGERLY | CHECKED))
def test_gradients_of_all_samples_equal_eager(name: str, backend: str) -> None:
    check_gradients(name, backend, None, gradients.DTYPES)


def check_gradients(name: str, backend: str, count: int | None, dtypes: tuple[torch.dtype, ...]) -> None:
    torch.manual_seed(0)
    named = [(one, op) for one, op in NAMED if one == name]
    counters.clear()
    told = [
        f"{case.describe()}: {problem}"
        for case in gradients.cases(named, count, dtypes=dtypes)
        if (problem := gradient_problem(case, backend))
    ]
    assert not told, "\n".join(told)
    assert not (counters.counts["refused_graphs"] and name in CHECKED)
