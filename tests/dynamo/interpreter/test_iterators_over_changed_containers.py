"""Iterators made in a graph that ends while they wait, over containers that the same graph filled or changed: held by
variables, by other containers, and by generators."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import counters


class Items(list[Any]):
    pass


def filled(made: Any, x: torch.Tensor) -> torch.Tensor:
    if isinstance(made, dict):
        made.update(a=1, b=2, c=3)
    elif isinstance(made, set):
        made.update((1, 2, 3))
    else:
        made.extend((1, 2, 3))
    return x + 1


def forwards(x: torch.Tensor, made: Any) -> Any:
    x = filled(made, x)
    held = [iter(made)]
    first = next(held[0])
    gc.isenabled()
    return first, list(held[0]), x * 2


def by_a_generator(x: torch.Tensor, made: Any) -> Any:
    def generate() -> Iterator[Any]:
        for item in made:
            yield item, x

    x = filled(made, x)
    generator = generate()
    first = next(generator)[0]
    gc.isenabled()
    return first, [item for item, _ in generator], x * 2


def in_what_it_is_over(x: torch.Tensor, made: Any) -> Any:
    x = filled(made, x)
    held = [iter(made), reversed(made)]
    first = next(held[0]), next(held[1])
    if isinstance(made, dict):
        made["a"] = held
    else:
        made[0] = held
    gc.isenabled()
    return first, [len(list(iterator)) for iterator in held], x * 2


def in_a_list_made_there(x: torch.Tensor, made: Any) -> Any:
    made = type(made)()
    return in_what_it_is_over(x, made)


def in_an_argument(x: torch.Tensor, made: Any, holder: Any = None) -> Any:
    holder = holder or {}
    x = filled(made, x)
    holder["forwards"], holder["backwards"] = iter(made), reversed(made)
    first = next(holder["forwards"]), next(holder["backwards"])
    gc.isenabled()
    return first, list(holder["forwards"]), list(holder["backwards"]), x * 2


@pytest.mark.parametrize("kind", [list, Items, dict, set])
@pytest.mark.parametrize(
    "program", [forwards, by_a_generator, in_what_it_is_over, in_a_list_made_there, in_an_argument]
)
def test_they_go_on_where_they_were(program: Callable[..., Any], kind: type) -> None:
    if kind is set and program not in (forwards, by_a_generator):
        pytest.skip("sets have neither an order to go back in nor places")
    expected = program(torch.ones(2), kind())
    counters.clear()
    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        *found, y = compiled(torch.ones(2), kind())
        assert found == list(expected[:-1])
        assert torch.equal(y, expected[-1])
    assert counters.counts["graphs"] > 0


@pytest.mark.parametrize("program", [forwards, by_a_generator])
def test_an_iterator_over_what_an_argument_held_before(program: Callable[..., Any]) -> None:
    compiled = stator.compile(program, backend="eager")
    for start in ([], [7], [7, 8, 9]):
        *expected, _ = program(torch.ones(2), list(start))
        *found, _ = compiled(torch.ones(2), list(start))
        assert found == expected
