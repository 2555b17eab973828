"""Random mixtures of autograd features, inside of compiled programs and in their callers, compared with eager.

float64, 1e-9. A failing test prints a scenario without the steps that it fails without.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from tests.aot.autograd import random_callers, random_surroundings

import stator


def _check(kind: Any, seed: int, backend: str) -> None:
    def compile(store: Any) -> Any:
        return stator.compile(store, backend=backend, options={"exact_random": True} if backend != "eager" else None)

    warnings.simplefilter("ignore")
    scenario = kind.make(seed)
    if kind.difference(scenario, compile) is not None:
        smaller = random_callers.smaller(scenario, lambda one: kind.difference(one, compile) is not None)
        pytest.fail(f"{smaller}\n  {kind.difference(smaller, compile)}")


def _seeds(quick: int, all: int) -> list[Any]:
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, all))]


@pytest.mark.parametrize("seed", _seeds(20, 400))
def test_operator_by_operator(seed: int) -> None:
    _check(random_callers, seed, "aot_eager")


@pytest.mark.parametrize("seed", _seeds(12, 100))
def test_captured_and_run_as_they_are(seed: int) -> None:
    _check(random_callers, seed, "eager")


@pytest.mark.parametrize("seed", _seeds(4, 100))
def test_with_kernels(seed: int) -> None:
    _check(random_callers, seed, "inductor")


@pytest.mark.parametrize("seed", _seeds(12, 300))
def test_with_what_surrounds_training(seed: int) -> None:
    """Adds hooks of modules, scalers, accumulation and sparse gradients."""
    _check(random_surroundings, seed, "aot_eager")
