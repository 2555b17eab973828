"""Functions that are computed while capturing are pure: what only looks so is called again in every call."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch

import stator
from stator.dynamo.host.numpy_boundary import is_pure_function


@pytest.mark.parametrize("changes", [False, True], ids=["constant", "changing"])
def test_a_universal_function_of_python_code_is_called_every_time(changes: bool) -> None:
    def run(compiled: bool) -> list[float]:
        calls = []

        def count(x: int) -> int:
            calls.append(x)
            return x + 10 * len(calls)

        counted = np.frompyfunc(count, 1, 1)

        def function(x: torch.Tensor, number: int) -> torch.Tensor:
            return x + float(counted(number))

        f = stator.compile(function, backend="eager") if compiled else function
        return [f(torch.zeros(()), turn if changes else 2).item() for turn in range(6)]

    assert run(compiled=True) == run(compiled=False)


def test_universal_functions_in_c_are_pure() -> None:
    assert is_pure_function(np.sqrt) and is_pure_function(np.add)
    assert not is_pure_function(np.frompyfunc(abs, 1, 1)) and not is_pure_function(abs)


def test_a_check_of_instances_in_a_module_whose_name_begins_like_torch() -> None:
    module = ModuleType("torchlike")
    source = (
        "class Checked(type):\n    def __instancecheck__(cls, it): return it.flag\nclass Kind(metaclass=Checked): pass"
    )
    exec(source, module.__dict__)

    class Flagged:
        def __init__(self, flag: bool) -> None:
            self.flag = flag

    def function(x: torch.Tensor, it: Flagged) -> torch.Tensor:
        return x + 1 if isinstance(it, module.Kind) else x - 1

    compiled = stator.compile(function, backend="eager")
    for flag in (True, False, True):
        assert torch.equal(compiled(torch.ones(2), Flagged(flag)), function(torch.ones(2), Flagged(flag)))
