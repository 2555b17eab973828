"""Comprehensions that CPython 3.12 inlines, whose variable has the name of a free one of the function: two slots, one
name. (Before 3.12 a comprehension is a function of its own, and all of this holds as well.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.bytecode import assemble, decode

Function = Callable[[list[torch.Tensor]], Any]


def functions() -> list[Function]:
    x = torch.ones(2)

    def break_behind(items: list[torch.Tensor]) -> Any:
        z = [x + 1 for x in items]
        stator.graph_break()
        return x + z[0]

    def break_inside(items: list[torch.Tensor]) -> Any:
        w = [(x + 1, stator.graph_break(), x * 2)[2] for x in items]
        return x + w[0] * w[1]

    def call_inside(items: list[torch.Tensor]) -> Any:
        w = [break_inside([x, x + 1]) for x in items]
        return x - w[1]

    def own_name(items: list[torch.Tensor]) -> Any:
        w = [own_name + 1 for own_name in items]
        found = sorted(locals())
        return w[0], own_name.__name__ == "own_name", "w" in found

    def kept_inside(items: list[torch.Tensor]) -> Any:
        before = items[0] + 1
        kept = [lambda: x for x in (x, items)[1]]
        return before, kept[0]() * 2, len(kept)

    return [break_behind, break_inside, call_inside, own_name, kept_inside]


@pytest.mark.parametrize("at", range(5), ids=[one.__name__ for one in functions()])
@pytest.mark.parametrize("inlined", [False, True], ids=["frame", "inlined"])
def test_the_two_are_told_apart(at, inlined):
    function = functions()[at]
    items = [torch.arange(2.0), torch.arange(2.0) + 5]
    target = (lambda items: function(items)) if inlined else function
    compiled = stator.compile(target, backend="eager")
    expected = function(items)
    for _ in range(2):
        found = compiled(items)
        torch.testing.assert_close(_tensors(found), _tensors(expected))
        assert _others(found) == _others(expected)


def _tensors(value: Any) -> list[torch.Tensor]:
    parts = value if isinstance(value, tuple) else (value,)
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _others(value: Any) -> list[Any]:
    parts = value if isinstance(value, tuple) else (value,)
    return [part for part in parts if not isinstance(part, torch.Tensor)]


@pytest.mark.parametrize("function", functions(), ids=lambda function: function.__name__)
def test_code_decoded_and_put_together_is_the_same_code(function):
    code = function.__code__
    assert assemble(decode(code), code).co_code == code.co_code
