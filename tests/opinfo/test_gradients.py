"""Gradients of OpInfo's operators through compiled training: results, gradients, and which of them are None.

Values within recorder.TOLERANCES, dtypes, shapes and strides; through the functional graphs of forward and backward run
operator by operator, and through kernels. What is refused runs eagerly; those operators are listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradients
import pytest
import torch
from gradients import GradientCase
from recorder import DecompositionCheck
from samples import IDENTIFIERS, LAYOUTS, OPERATORS

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

NAMED = [(name, op) for name, op in zip(IDENTIFIERS, OPERATORS, strict=True) if op.supports_autograd]
PART = 60
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]
by_part = pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)

# Refused where all is one callable: the shape of a result, or a Python value, depends on data. `stator.compile` ends
# the graph there; in a graph that is handed to a backend they run in ATen (test_handed_over.py).
RUNS_EAGERLY = frozenset((
    "masked_select", "__getitem__",  # as many elements as a mask has True
    "repeat_interleave",  # without `output_size`
    "tensor_split", "narrow",  # at places that a tensor holds
    "linalg.lstsq", "linalg.lstsq.grad_oriented",  # residuals exist only for matrices of full rank
    "cov", "nn.functional.gaussian_nll_loss",  # weights and variances that are checked in Python
    # with a loop over a size in the backward
    "linalg.householder_product", "ormqr", "nn.functional.linear_cross_entropy.chunked_none",
))  # fmt: skip
if torch.__version__ < "2.12":  # whose own C++ asks for data there; in a captured graph something stands in for it
    RUNS_EAGERLY |= {"quantile", "nanquantile"}


def check(found: Iterator[GradientCase], run: Callable[[Any], Any], batch_size: int = 40) -> None:
    told = [
        f"{case.describe()}: {type(problem).__name__ if isinstance(problem, Exception) else ''} {problem}"
        for case, problem in gradients.problems(found, batch_size, run)
        if not (gradients.runs_eagerly(problem) and case.name in RUNS_EAGERLY)
    ]
    assert not told, "\n".join(told)


@by_part
def test_traced_gradients_equal_eager(part: list) -> None:
    torch.manual_seed(0)
    check(gradients.cases(part[::2], 1, dtypes=(torch.float32,)), gradients.by_operators)  # all: the slow test


@by_part
def test_compiled_gradients_equal_eager(part: list) -> None:
    torch.manual_seed(0)
    check(gradients.cases(part, 1, dtypes=(torch.float32,)), gradients.compiled)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_part
def test_traced_gradients_of_all_samples_equal_eager(part: list) -> None:
    torch.manual_seed(0)
    check(gradients.cases(part, None), gradients.by_operators)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_part
def test_compiled_gradients_of_all_samples_equal_eager(part: list) -> None:
    torch.manual_seed(0)
    check(gradients.cases(part, None), gradients.compiled)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_part
def test_compiled_gradients_equal_eager_in_every_layout(part: list) -> None:
    torch.manual_seed(0)
    check(gradients.cases(part, 6, tuple(LAYOUTS)), gradients.compiled)


@by_part
def test_decompositions_of_backward_operators(part: list) -> None:
    """Of every operator that forward and backward dispatch, in two layouts."""
    check_decompositions(part, 1, (None, "transposed"), (torch.float32, torch.bfloat16))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_part
def test_decompositions_of_backward_operators_in_every_layout(part: list) -> None:
    check_decompositions(part, 12, (None, *LAYOUTS), gradients.DTYPES)


def check_decompositions(
    part: list, count: int, layouts: tuple[str | None, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    torch.manual_seed(0)
    checker = DecompositionCheck()
    for case in gradients.cases(part, count, layouts, dtypes):
        if not case.is_random:
            with checker:
                gradients.eager([case])
    wrong = {name: found for name, found in checker.mismatches.items() if name not in ROUNDED}
    assert not wrong, "\n".join(f"{name}:\n    " + "\n    ".join(found) for name, found in wrong.items())


# Eager's own kernels are further from the float64 result than these decompositions: in bfloat16 batch norm's sums are
# rounded midway; the gradient of a layer norm of one element, which is zero, is what nearly cancels. Compared with
# float64 above.
ROUNDED = frozenset(("aten.native_batch_norm_backward.default", "aten.native_layer_norm_backward.default"))


def test_programs_that_are_refused_run_around_the_operator() -> None:
    """Through `stator.compile`: results and gradients are eager's, whatever of it is compiled."""
    torch.manual_seed(0)
    refused = [(name, op) for name, op in NAMED if name in RUNS_EAGERLY]
    wrong = []
    for case in gradients.cases(refused, 3, dtypes=(torch.float32,)):
        problem = gradients.difference(case, gradients.captured(case), gradients.eager([case])[0])
        if problem:
            wrong.append(f"{case.describe()}: {problem}")
    assert not wrong, "\n".join(wrong)
