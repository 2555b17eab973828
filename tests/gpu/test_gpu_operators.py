"""Operators of torch's database, compiled for the device, beside eager on it; one graph for each operator's dtypes."""

from __future__ import annotations

import copy
from typing import Any

import gradients
import pytest
import torch
from compiled import cases, problems
from samples import IDENTIFIERS, LAYOUTS, OPERATORS
from test_gradients import RUNS_EAGERLY
from tests.gpu.device import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.bool)
NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
DIFFERENTIABLE = [(name, op) for name, op in NAMED if op.supports_autograd]
# reductions, copies and products for which the layout of the operands decides what a kernel reads
OF_EVERY_LAYOUT = (
    "add", "sum", "softmax", "cat", "transpose", "matmul", "index_select", "nn.functional.conv2d", "cumsum",
    "max.reduction_with_dim",
)  # fmt: skip


# ---- where eager's kernels for GPUs differ from those for CPUs

# They read tensors that are made of numbers, whose values tracing knows on the CPU only
READS_NUMBERS = frozenset(("combinations", "corrcoef"))
# Numbers of a dropout that does not happen, and other results that are memory as it was
ATTENTION = ("torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward")
# Without training they return statistics that are memory as it was; those of the CPU return none
NORMS = frozenset(("native_batch_norm", "_native_batch_norm_legit"))


def with_defined_results(name: str, op: Any) -> Any:
    if name not in ATTENTION and name not in NORMS:
        return op
    made = copy.copy(op)
    made.op = lambda *args, **kwargs: _defined(name, op.op(*args, **kwargs), args)
    return made


def _defined(name: str, results: Any, args: Any) -> Any:
    training = name in NORMS and args[5]
    return results if training else results[: 2 if name in ATTENTION else 1]


def is_known(name: str, problem: str) -> bool:
    return DEVICE == "cuda" and name in READS_NUMBERS and "(data-dependent)" in problem


def check(name: str, op: Any, dtypes: tuple[torch.dtype, ...], *, count: int = 2, layouts: Any = (None,)) -> None:
    found = list(cases([(name, with_defined_results(name, op))], count, layouts, dtypes, DEVICE))
    if not found:
        pytest.skip("eager takes no sample, or gives other results each time")
    told = [one for one in problems(found, batch_size=50, no_further=True) if not is_known(name, one)]
    assert not told, "\n".join(told)


@pytest.mark.parametrize(("name", "op"), NAMED, ids=IDENTIFIERS)
def test_operator_of_floats(name: str, op: Any) -> None:
    check(name, op, FLOATS)


@pytest.mark.parametrize(("name", "op"), NAMED, ids=IDENTIFIERS)
def test_operator_of_integers(name: str, op: Any) -> None:
    check(name, op, WHOLE)


@pytest.mark.parametrize("name", OF_EVERY_LAYOUT)
def test_operator_in_every_layout(name: str) -> None:
    check(name, OPERATORS[IDENTIFIERS.index(name)], (torch.float32, torch.bfloat16), count=6, layouts=tuple(LAYOUTS))


@pytest.mark.parametrize(("name", "op"), DIFFERENTIABLE, ids=[name for name, _ in DIFFERENTIABLE])
def test_gradients_of_operator(name: str, op: Any) -> None:
    found = list(gradients.cases([(name, with_defined_results(name, op))], 2, dtypes=(torch.float32,), device=DEVICE))
    if not found:
        pytest.skip("eager differentiates no sample")
    told = [
        f"{case.describe()}: {type(problem).__name__ if isinstance(problem, Exception) else ''} {problem}"
        for case, problem in gradients.problems(found, 40, gradients.compiled)
        if not (gradients.runs_eagerly(problem) and case.name in RUNS_EAGERLY) and not is_known(name, str(problem))
    ]
    assert not told, "\n".join(told)
