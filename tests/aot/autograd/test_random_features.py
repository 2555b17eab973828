"""Random mixtures of what programs and their callers do to autograd, compiled: everything seen is what eager shows.

float64, 1e-9. A failing test prints a scenario without the steps that it fails without.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
from tests.aot.autograd import random_features

import stator

MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 400)]


def _compile(backend: str, store: Any) -> Any:
    return stator.compile(store, backend=backend, options={"exact_random": True})


def _check(seed: int, backend: str) -> None:
    warnings.simplefilter("ignore")
    compile = partial(_compile, backend)
    scenario = random_features.make(seed)
    if random_features.difference(scenario, compile) is not None:
        smaller = random_features.smaller(scenario, lambda one: random_features.difference(one, compile) is not None)
        pytest.fail(f"{smaller}\n  {random_features.difference(smaller, compile)}")


@pytest.mark.parametrize("seed", [*range(20), *MORE])
def test_operator_by_operator(seed: int) -> None:
    _check(seed, "aot_eager")


@pytest.mark.parametrize("seed", [*range(4), *MORE[:96]])
def test_with_kernels(seed: int) -> None:
    _check(seed, "inductor")
