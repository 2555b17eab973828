"""Seeds and states of torch's generators, and generators handed to random operators, in one graph: numbers and states
of each call are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

X = torch.arange(6.0)
OWN = torch.Generator()


def seeded(x: torch.Tensor) -> Any:
    torch.manual_seed(4)
    return x + torch.rand(6)


def seeded_by_an_argument(x: torch.Tensor, seed: int) -> Any:
    torch.manual_seed(seed)
    return x + torch.rand(6), torch.nn.functional.dropout(x)


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


def state_given_back(x: torch.Tensor) -> Any:
    state = torch.get_rng_state()
    return x + torch.rand(6), state


def from_a_generator(x: torch.Tensor) -> Any:
    a = torch.rand(6, generator=OWN)
    b = torch.randint(0, 9, [6], generator=OWN, dtype=torch.int32)
    c = torch.randperm(6, generator=OWN)
    return x + a * b + c, a, torch.normal(0.0, 1.0, (2,), generator=OWN)


def from_both(x: torch.Tensor) -> Any:
    return x + torch.rand(6) + torch.rand(6, generator=OWN) * torch.rand(6)


def only_drawn(x: torch.Tensor) -> Any:
    return torch.randn(3, generator=OWN)


def written_to(x: torch.Tensor) -> Any:
    a = torch.rand(6, generator=OWN)
    b = a[:3]
    a.add_(x)
    return a, b, a * 2


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


ALONE = [seeded, state_given_back, from_a_generator]
ALONE += [from_both, only_drawn, written_to, made, seeded_generator]


def shown(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return shown(value.get_state())
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    return [shown(one) for one in value] if isinstance(value, (list, tuple)) else value


def run(function: Callable[..., Any], *arguments: Callable[[int], Any], calls: int = 3) -> list[Any]:
    torch.manual_seed(1)
    OWN.manual_seed(2)
    found = []
    for call in range(calls):
        given = [make(call) for make in arguments]
        found.append((shown(function(X + call, *given)), shown(torch.get_rng_state()), shown(OWN)))
    return found


@pytest.mark.parametrize("function", ALONE, ids=lambda one: one.__name__)
def test_numbers_and_states_are_eager_s_in_one_graph(function: Any) -> None:
    stator.reset()
    expected = run(function)
    assert run(stator.compile(function, fullgraph=True, backend="eager")) == expected


@pytest.mark.parametrize("function", [from_a_generator, only_drawn, written_to, made], ids=lambda one: one.__name__)
def test_drawn_tensors_are_inputs_of_kernels(function: Any) -> None:
    stator.reset()
    expected = run(function)
    assert run(stator.compile(function, fullgraph=True)) == expected


def test_seeds_that_change_compile_once() -> None:
    stator.reset()
    expected = run(seeded_by_an_argument, lambda call: call + 10, calls=5)
    compiled = stator.compile(seeded_by_an_argument, fullgraph=True, backend="eager")
    counters.clear()
    assert run(compiled, lambda call: call + 10, calls=5) == expected
    assert counters.counts["graphs"] == 1


def drawn_between(x: torch.Tensor) -> Any:
    y = torch.rand(6)
    torch.manual_seed(3)
    z = torch.rand(6)
    return x + y * z


def drawn_by_what_is_computed(x: torch.Tensor) -> Any:
    y = x * 2 + 1
    return torch.multinomial(y, 2, generator=OWN) + torch.bernoulli(x / 10, generator=OWN)[:2]


BEHIND_DRAWS = [seeded_behind, drawn_between, forked, forked_without_a_seed, state_and_back]


@pytest.mark.parametrize("function", [*BEHIND_DRAWS, drawn_by_what_is_computed], ids=lambda one: one.__name__)
def test_others_end_the_graph(function: Any) -> None:
    stator.reset()
    expected = run(function)
    assert run(stator.compile(function, backend="eager")) == expected
    with pytest.raises(stator.Unsupported):
        stator.compile(function, fullgraph=True, backend="eager")(X)
