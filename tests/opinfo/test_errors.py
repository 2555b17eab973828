"""What eager refuses, compiled code refuses too. Fake tensors refuse with eager's type of exception."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from samples import IDENTIFIERS, OPERATORS
from torch.utils._python_dispatch import TorchDispatchMode

import stator
from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeMode
from stator.prims.record import records

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

# Eager's types differ from its own for the same mistake elsewhere; ours are the usual ones.
OTHER_TYPES = {
    "aten.arange.start_step",  # infinite bounds
    "aten.adaptive_avg_pool1d.default",  # no output size
    "aten.narrow_copy.default",
    "aten.empty_permuted.default",
}
WITH_ERRORS = [(name, op) for name, op in zip(IDENTIFIERS, OPERATORS, strict=True) if op.error_inputs_func is not None]


class ErrorCheck(TorchDispatchMode):
    """Runs the operator on fake tensors whenever eager raises."""

    def __init__(self) -> None:
        super().__init__()
        self.mismatches: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as expected:
            entry = records.get(func)
            if entry is not None and entry.shape is not None and str(func) not in OTHER_TYPES:
                self.compare(func, args, kwargs, expected)
            raise

    def compare(self, func: Any, args: Any, kwargs: Any, expected: Exception) -> None:
        try:
            FakeMode().dispatch(func, args, kwargs)
        except Unsupported:
            pass
        except Exception as error:
            if type(error) is not type(expected):
                self.mismatches.append(
                    f"{func}: {type(error).__name__}: {error}\n    but eager: {type(expected).__name__}: {expected}"
                )


@pytest.mark.parametrize("op", [op for _, op in WITH_ERRORS], ids=[name for name, _ in WITH_ERRORS])
def test_errors_have_eagers_type(op: Any) -> None:
    torch.manual_seed(0)
    checker = ErrorCheck()
    for case in op.error_inputs_func(op, "cpu"):  # not by `op.error_inputs`, which walks the call stack for each
        sample = case.sample_input
        try:
            with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), checker:
                op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # that eager raises is OpInfo's promise; which operator below does is what we look at
            continue
    assert not checker.mismatches, "\n".join(checker.mismatches)


@pytest.mark.parametrize("op", [op for _, op in WITH_ERRORS], ids=[name for name, _ in WITH_ERRORS])
def test_compiled_code_refuses_too(op: Any) -> None:
    torch.manual_seed(0)
    program = lambda sample: op.op(sample.input, *sample.args, **sample.kwargs)  # noqa: E731
    for case in op.error_inputs_func(op, "cpu"):
        try:
            program(case.sample_input)
        except Exception as error:
            # kernels have no limit of dimensions, and `out` of another dtype gets converted results
            if "64 dims" in str(error) or "Expected out tensor to have dtype" in str(error):
                continue
        else:  # the operator of OpInfo raises, not the function of torch
            continue
        with pytest.raises(Exception):
            stator.compile(program, dynamic=True)(case.sample_input)
