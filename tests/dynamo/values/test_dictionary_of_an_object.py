"""An object's `__dict__` that captured code has beside the object: behind a break, or as an argument of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


class Counted:
    count = 1

    def counted(self) -> int:
        self.count += 1
        return self.count


class Layer(torch.nn.Module):
    count = 1
    counted = Counted.counted


def behind_a_break(x: Any, one: Any) -> Any:
    entries = one.__dict__
    found = one.counted()
    stator.graph_break()
    entries.get("spam")
    found += one.counted()
    entries["made"] = found
    return torch.tanh(x) * found + one.counted(), entries["count"]


def name_then_entry(x: Any, one: Any, entries: Any) -> Any:
    one.count = 7
    return torch.tanh(x) * entries["count"]


def entry_then_name(x: Any, one: Any, entries: Any) -> Any:
    entries["count"] = 8
    return torch.tanh(x) * one.count


def both_read_before(x: Any, one: Any, entries: Any) -> Any:
    before = one.count + entries["count"]
    entries["count"] = 9
    one.count += 1
    entries["count"] += 1
    return torch.tanh(x) * (before + one.count), entries["count"]


def all_entries(x: Any, one: Any, entries: Any) -> Any:
    one.count += 1
    return torch.tanh(x) * len(entries), [entries[key] for key in entries if key in ("count", "spam")]


def deleted(x: Any, one: Any, entries: Any) -> Any:
    del one.count
    return torch.tanh(x) * one.count, "count" in entries


@pytest.mark.parametrize("kind", [Counted, Layer])
@pytest.mark.parametrize(
    "function", [name_then_entry, entry_then_name, both_read_before, all_entries, deleted, behind_a_break]
)
def test_both_ways_are_one(function: Callable[..., Any], kind: Any) -> None:
    x = torch.ones(2)
    found = []
    for run in (function, stator.compile(function, backend="eager")):
        one = kind()
        one.count = 3
        given = (one,) if function is behind_a_break else (one, one.__dict__)
        results = [run(x, *given)]
        one.count = 5
        results.append(run(x, *given))
        found.append((repr(results), one.count, [key for key in one.__dict__ if not key.startswith("_")]))
    assert found[1] == found[0]


def test_a_property_that_keeps_its_value_in_the_dictionary_and_breaks() -> None:
    class Kept:
        def __init__(self, function: Any) -> None:
            self.function = function

        def __get__(self, one: Any, owner: Any = None) -> Any:
            entries = one.__dict__
            if "kept" not in entries:
                stator.graph_break()
                if "kept" not in entries:
                    entries["kept"] = self.function(one)
            return entries["kept"]

    class Item(Counted):
        kept = Kept(Counted.counted)

    def function(x: Any) -> Any:
        item = Item()
        return x * item.counted(), item.kept, item.counted(), item.kept

    x = torch.ones(2)
    result, *numbers = stator.compile(function, backend="eager")(x)
    assert torch.equal(result, x * 2) and numbers == [3, 4, 3]
