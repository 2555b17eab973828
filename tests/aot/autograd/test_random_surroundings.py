"""Random mixtures of features with what surrounds a compiled module in training code: everything seen is eager's.

float64, 1e-9. A failing test prints a scenario without the steps that it fails without.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from tests.aot.autograd import random_features, random_surroundings

import stator

MORE = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 300)]


def _compile(store: Any) -> Any:
    return stator.compile(store, backend="aot_eager", options={"exact_random": True})


@pytest.mark.parametrize("seed", [*range(12), *MORE])
def test_as_in_eager(seed: int) -> None:
    warnings.simplefilter("ignore")
    scenario = random_surroundings.make(seed)
    if random_surroundings.difference(scenario, _compile) is not None:
        smaller = random_features.smaller(
            scenario, lambda one: random_surroundings.difference(one, _compile) is not None
        )
        pytest.fail(f"{smaller}\n  {random_surroundings.difference(smaller, _compile)}")
