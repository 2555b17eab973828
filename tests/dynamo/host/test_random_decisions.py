"""Random numbers of Python: whole numbers, items, orders, branches on them, seeds and states. What each call gives, and
the state that it leaves, is eager's; nothing is drawn while capturing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

X = torch.arange(6.0)
OWN = random.Random(3)


def branch(x: torch.Tensor) -> Any:
    if random.random() < 0.5:
        return x + random.random()
    return x - random.uniform(1, 2)


def never(x: torch.Tensor) -> Any:
    for _ in range(20):
        if random.uniform(0, 1) < 0.0 or random.random() >= 1:
            x = x + 1
    return x * 2


def truth(x: torch.Tensor) -> Any:
    return x + 1 if random.random() else x


def whole_numbers(x: torch.Tensor) -> Any:
    a, b = random.randint(1, 5), random.randrange(0, 10, 2)
    return x * a + b, a, b


def as_size(x: torch.Tensor) -> Any:
    return torch.roll(x, OWN.randrange(6)), x[: random.randint(1, 4)].sum()


def choices_of_numbers(x: torch.Tensor) -> Any:
    return x * random.choice([0.5, 0.25, 4.0]) + random.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10))


def choices_of_functions(x: torch.Tensor) -> Any:
    return random.choice([torch.sin, torch.cos, torch.tanh])(x), OWN.choice(["a", "b"])


def shuffled(x: torch.Tensor) -> Any:
    numbers, words = [1, 2, 3, 4, 5, 6], ["a", "b"]
    random.shuffle(numbers)
    random.shuffle(words)
    return x * numbers[0] + numbers[1], numbers, words


def shuffled_argument(x: torch.Tensor, items: list[Any]) -> Any:
    random.shuffle(items)
    return x + 1


def sampled(x: torch.Tensor) -> Any:
    a, b = random.sample(range(100), 2)
    return x * a + b, random.sample([1.0, 2.0, 3.0], 3), OWN.sample(["p", "q"], 1)


def distributions(x: torch.Tensor) -> Any:
    found = [random.gauss(0, 1), random.gauss(1, 2), OWN.betavariate(1, 2), random.expovariate(2.0)]
    return x * found[0], found, random.triangular(0, 1, 0.5), random.normalvariate(0.0, 1.0)


def seeded(x: torch.Tensor) -> Any:
    before = random.random()
    random.seed(5)
    items = list(range(7))
    random.shuffle(items)
    return x * random.random() + before, items, random.randint(0, 9), random.choice("ab")


def state_and_back(x: torch.Tensor) -> Any:
    state = random.getstate()
    one = random.random()
    random.setstate(state)
    return x * one, random.random() - one


def state_kept(x: torch.Tensor) -> Any:
    state = random.getstate()
    return x * random.random(), state


def made(x: torch.Tensor) -> Any:
    generator = random.Random(11)
    order = list("abcdef")
    generator.shuffle(order)
    return x + generator.random(), order, generator.getstate(), generator.gauss(0, 1)


def made_and_given_back(x: torch.Tensor) -> Any:
    generator = random.Random(11)
    y = x * generator.uniform(1, 2)
    return y, generator


def infinite(x: torch.Tensor) -> Any:
    far, nothing = float("inf"), random.random() * 1e308 * 1e308
    return x + 1 if random.random() * far > 1 else x, nothing - far == 0, x - 1 if random.random() - far < 3 else x


ALONE = [
    infinite,
    branch,
    never,
    truth,
    whole_numbers,
    as_size,
    choices_of_numbers,
    choices_of_functions,
    shuffled,
]
ALONE += [sampled, distributions, seeded, state_and_back, state_kept, made, made_and_given_back]


def shown(value: Any) -> Any:
    if isinstance(value, random.Random):
        return "generator", value.getstate(), value.random()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [shown(one) for one in value] if isinstance(value, (list, tuple)) else value


def run(function: Callable[..., Any], *arguments: Callable[[int], Any], calls: int = 12) -> list[Any]:
    """What each call gives, and the states of both generators behind it."""
    random.seed(1)
    OWN.seed(2)
    found = []
    for call in range(calls):
        given = [make(call) for make in arguments]
        found.append((shown(function(X + call, *given)), given, hash(random.getstate()), hash(OWN.getstate())))
    return found


@pytest.mark.parametrize("function", ALONE, ids=lambda one: one.__name__)
def test_numbers_and_states_are_those_of_eager(function: Any) -> None:
    stator.reset()
    expected = run(function)
    assert run(stator.compile(function, backend="eager")) == expected


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", [never, whole_numbers, as_size], ids=lambda one: one.__name__)
def test_numbers_that_decide_nothing_are_in_one_graph(function: Any, backend: str) -> None:
    stator.reset()
    expected = run(function)
    assert run(stator.compile(function, fullgraph=True, backend=backend)) == expected


def test_a_list_from_outside_is_shuffled() -> None:
    stator.reset()
    expected = run(shuffled_argument, lambda call: ["a", "b", "c"])
    assert run(stator.compile(shuffled_argument, backend="eager"), lambda call: ["a", "b", "c"]) == expected


def test_numbers_that_decide_nothing_compile_once() -> None:
    stator.reset()
    compiled = stator.compile(whole_numbers, fullgraph=True, backend="eager")
    run(compiled)
    counters.clear()
    run(compiled)
    assert not counters.counts["graphs"]


def test_a_graph_that_fails_draws_the_same_numbers_again() -> None:
    def fails(x: torch.Tensor, index: torch.Tensor) -> Any:
        factor = random.choice([1.0, 2.0, 3.0]) + OWN.randint(1, 9)
        try:
            return x[index] * factor
        except IndexError:
            return x * factor, random.random()

    stator.reset()
    given = (lambda call: torch.tensor([1, 20 if call % 3 == 2 else 2]),)
    results = [
        [(one, *states) for one, _, *states in run(function, *given)]
        for function in (fails, stator.compile(fails, backend="eager"))
    ]
    assert results[0] == results[1]


def test_overridden_methods_are_followed() -> None:
    class Half(random.Random):
        def random(self) -> float:
            return super().random() / 2

    half = Half(4)

    def program(x: torch.Tensor) -> Any:
        return x * half.uniform(0, 1), half.random()

    stator.reset()
    expected = [shown(program(X)) for _ in range(4)]
    half.seed(4)
    compiled = stator.compile(program, backend="eager")
    assert [shown(compiled(X)) for _ in range(4)] == expected


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: random.random() == None,  # noqa: E711
        lambda: random.random() < "a",  # type: ignore[operator]
        lambda: random.random() * 10**400 > 5,
        lambda: random.sample([1, 2], k=2, counts=[1, 1]),
    ],
    ids=["none", "text", "large", "counts"],
)
@pytest.mark.filterwarnings("error:stator")
def test_what_no_float_is_compared_with_is_left_to_the_program(drawn: Callable[[], Any]) -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return x + 1, drawn()
        except (TypeError, OverflowError) as error:
            return x, str(error)

    stator.reset()
    expected = run(program, calls=2)
    assert run(stator.compile(program, backend="eager"), calls=2) == expected
