"""Sets of constants give their members in the order in which CPython's own give them, whatever was done to them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import stator
from stator.base import config

STEPS = {
    "add": "{a}.add({v})",
    "discard": "{a}.discard({w})",
    "union": "{n} = {a} | {b}",
    "intersection": "{n} = {a} & {b}",
    "difference": "{n} = {a} - {b}",
    "symmetric_difference": "{n} = {a} ^ {b}",
    "methods": "{n} = {a}.union({b}, [{v}]).difference(range({w}))",
    "intersection_update": "{a} &= {b}",
    "difference_update": "{a} -= {{{v}, {w}}}",
    "symmetric_difference_update": "{a} ^= {{{v}, {w}, {v} % 11}}",
    "or_update": "{a} |= {b}",
    "update": "{a}.update({b}, [{v}, {w}])",
    "update_by_range": "{a}.update(range({w}))",
    "copy": "{n} = {a}.copy()",
    "from_set": "{n} = set({b})",
    "from_frozenset": "{n} = set(frozenset({a}) | {{{v}}})",
    "display": "{n} = {{*{a}, {v}, *{b}, {w}}}",
    "from_dict": "{n} = set(dict.fromkeys(range({v} % 30)))",
    "text": "{n} = {{str(one) for one in {a}}} & {{str(one) for one in {b}}}; {n} = {{int(one) for one in {n}}}",
    "pop": "seen.append({a}.pop() if {a} else None)",
    "seen": "seen.append(list({a}))",
}


def program(seed: int) -> Any:
    draw = random.Random(seed)
    lines, made = ["def program(x, given):", "    seen = []", "    s0 = {3, 1, 40}"], 1
    for _ in range(14):
        step = STEPS[draw.choice(list(STEPS))]
        both = {"a": f"s{draw.randrange(made)}", "b": draw.choice([f"s{draw.randrange(made)}", "given"])}
        lines.append("    " + step.format(n=f"s{made}", v=draw.randrange(100), w=draw.randrange(13), **both))
        made += step.startswith("{n}")
    lines.append("    return x * 2, seen, [list(one) for one in (" + "".join(f"s{at}, " for at in range(made)) + ")]")
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    return names["program"]


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_random_programs_see_the_order_of_the_interpreter(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    for seed in range(first, first + 20):
        function, given = program(seed), set(random.Random(seed).sample(range(60), 7))
        expected = function(torch.ones(2), set(given))
        found = stator.compile(function, backend="eager")(torch.ones(2), set(given))
        assert found[1:] == expected[1:], f"program {seed}"


def test_the_order_of_a_set_from_outside_is_watched() -> None:
    def function(x: Any, given: Any) -> Any:
        return x + 1, list(given | {100})

    compiled = stator.compile(function, backend="eager")
    one, other = set([8, 16]), set([16, 8])  # noqa: C405
    assert list(one) != list(other)
    for given in (one, other, one):
        assert compiled(torch.ones(1), given)[1] == function(torch.ones(1), given)[1]


def test_a_small_set_leaves_as_it_is() -> None:
    def function(x: Any) -> Any:
        made = {33, 1, 17}
        made.add(2)
        return x + 1, made, frozenset([16, 8, 0])

    found, expected = stator.compile(function, backend="eager")(torch.ones(1)), function(torch.ones(1))
    assert [list(one) for one in found[1:]] == [list(one) for one in expected[1:]]


def test_the_only_member_of_a_set_from_outside_is_popped() -> None:
    def program(x: torch.Tensor, given: set[int]) -> Any:
        (size,) = {tuple(x.shape)}.pop()
        try:
            found = given.pop()
            given.pop()
        except KeyError as error:
            return x * size, found, str(error)

    given = {5}
    doubled, found, message = stator.compile(program, backend="eager", fullgraph=True)(torch.ones(2), given)
    assert (doubled.tolist(), found, message, given) == ([2.0, 2.0], 5, "'pop from an empty set'", set())


def test_which_of_several_from_outside_comes_first_ends_the_graph() -> None:
    def program(x: torch.Tensor, given: set[int]) -> Any:
        return (x + 1) * given.pop(), given

    first, second = {40, 3, 9}, {40, 3, 9}
    expected = program(torch.ones(2), first)
    found = stator.compile(program, backend="eager")(torch.ones(2), second)
    assert torch.equal(found[0], expected[0])
    assert (first, second, found[1] is second) == (expected[1], expected[1], True)
