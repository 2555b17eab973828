"""Two names that hold different generators in one call and the same one in the next: numbers and states are eager's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.arange(3.0)


def seeded_between(x: torch.Tensor, generator: random.Random) -> Any:
    first = random.random()
    generator.seed(3)
    return x + first, random.random(), generator.random()


def decided_behind_another(x: torch.Tensor, generator: random.Random) -> Any:
    found = []
    for _ in range(3):
        generator.random()
        found.append(1 if random.random() < 0.5 else 2)
    return x + found[0], found


def run(function: Callable[..., Any], generators: list[Any]) -> list[Any]:
    found = []
    for call, generator in enumerate(generators):
        torch.manual_seed(call)
        random.seed(call)
        generator.seed(call)
        result = function(X, generator)
        found.append(([repr(one) for one in result], random.random(), torch.rand(1).item()))
    return found


PYTHON = [random.Random(1), random._inst, random.Random(2), random._inst]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "generators"),
    [(seeded_between, PYTHON), (decided_behind_another, PYTHON)],
    ids=["seeded", "decided"],
)
def test_the_same_generator_under_another_name(function: Callable[..., Any], generators: list[Any]) -> None:
    stator.reset()
    expected = run(function, generators)
    assert run(stator.compile(function, backend="eager"), generators) == expected
