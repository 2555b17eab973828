"""Seeds and states of torch's generators, and generators handed to random operators, end the graph: numbers and states
of each call equal eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.arange(6.0)
OWN = torch.Generator()


def seeded(x: torch.Tensor) -> Any:
    torch.manual_seed(4)
    return x + torch.rand(6)


def seeded_behind(x: torch.Tensor) -> Any:
    y = x + torch.rand(6)
    torch.manual_seed(7)
    return y * 2


def forked(x: torch.Tensor) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        y = torch.rand(6)
    return x + y


def forked_without_a_seed(x: torch.Tensor) -> Any:
    with torch.random.fork_rng(devices=[]):
        y = torch.rand(6) + torch.randn(6)
    return x + y


def state_and_back(x: torch.Tensor) -> Any:
    state = torch.get_rng_state()
    y = torch.rand(6)
    torch.set_rng_state(state)
    return x + y


def from_a_generator(x: torch.Tensor) -> Any:
    a = torch.rand(6, generator=OWN)
    b = torch.randint(0, 9, [6], generator=OWN, dtype=torch.int32)
    c = torch.randperm(6, generator=OWN)
    return x + a * b + c, a, torch.normal(0.0, 1.0, (2,), generator=OWN)


def made(x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(3)
    other = torch.Generator(device="cpu")
    other.manual_seed(5)
    return x + torch.rand(6, generator=generator), torch.randn(2, generator=other), generator


def seeded_generator(x: torch.Tensor) -> Any:
    OWN.manual_seed(8)
    state = OWN.get_state()
    y = torch.rand(6, generator=OWN)
    OWN.set_state(state)
    return x + y, torch.rand(6, generator=OWN)


def drawn_between(x: torch.Tensor) -> Any:
    y = torch.rand(6)
    torch.manual_seed(3)
    z = torch.rand(6)
    return x + y * z


def drawn_by_what_is_computed(x: torch.Tensor) -> Any:
    y = x * 2 + 1
    return torch.multinomial(y, 2, generator=OWN) + torch.bernoulli(x / 10, generator=OWN)[:2]


PROGRAMS = [seeded, seeded_behind, forked, forked_without_a_seed, state_and_back, from_a_generator, made]
PROGRAMS += [seeded_generator, drawn_between, drawn_by_what_is_computed]


def shown(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return shown(value.get_state())
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    return [shown(one) for one in value] if isinstance(value, (list, tuple)) else value


def run(function: Callable[..., Any]) -> list[Any]:
    torch.manual_seed(1)
    OWN.manual_seed(2)
    return [(shown(function(X + call)), shown(torch.get_rng_state()), shown(OWN)) for call in range(3)]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda one: one.__name__)
def test_numbers_and_states_equal_eager_s(function: Any) -> None:
    stator.reset()
    expected = run(function)
    assert run(stator.compile(function, backend="eager")) == expected
    with pytest.raises(stator.Unsupported):
        stator.compile(function, fullgraph=True, backend="eager")(X)
