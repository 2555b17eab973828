"""Attributes and names that appear or vanish between two calls of compiled code."""

from __future__ import annotations

import pytest
import torch
from tests.programs.scenarios import Scenario, check, scenarios

x = torch.arange(4.0)


def tuple_is(compiled):
    f = compiled(lambda t, p, q: t * 2 if p is q else t)
    p = (1, 2)
    q = (1, 2)
    return f(x, p, q), f(x, p, p), f(x, p, q)


def kwargs_in(compiled):
    f = compiled(lambda t, **k: t * 2 if "a" in k else t)
    return f(x), f(x, a=1), f(x, b=1)


def cell_that_is_filled_later(compiled):
    def make():
        def g(t):
            try:
                return t * v
            except NameError:
                return t

        f = compiled(g)
        results = [f(x)]
        v = 3
        results.append(f(x))
        del v
        return [*results, f(x)]

    return make()


@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario) -> None:
    check(scenario)
