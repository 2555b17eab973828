"""Loops and chains that are too long to follow are run by the interpreter."""

import torch

import stator
from stator.base import config, counters
from stator.dynamo import capture
from stator.dynamo.interpreter import long_loops


def test_what_a_long_loop_makes_is_not_followed_back_turn_by_turn(monkeypatch):
    """Behind too many turns the graph has to end before the first of the iterators, none of which can be handed on."""
    begun = []

    class Followed(capture.FrameCapture):
        def __init__(self, function, *rest):
            begun.append(function)
            super().__init__(function, *rest)

    monkeypatch.setattr(capture, "FrameCapture", Followed)
    monkeypatch.setattr(long_loops, "_MOST_TURNS", 300)

    def nested(x):
        made = filter(bool, range(3))
        for _ in range(600):
            made = filter(bool, made)
        return x + 1, list(made)

    stator.reset()
    assert repr(stator.compile(nested, backend="eager")(torch.ones(2))) == repr(nested(torch.ones(2)))
    assert 1 < len(begun) < 40


def test_many_instructions_without_a_tensor_are_not_followed(monkeypatch):
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    monkeypatch.setattr(long_loops, "_MOST_INSTRUCTIONS", 2000)

    def busy(x):
        total = 0
        for at in range(20):
            total += sum([other * at for other in range(20)])
        return total

    stator.reset()
    counters.clear()
    assert stator.compile(busy, backend="eager")(torch.ones(2)) == busy(torch.ones(2))
    assert counters.counts["graph_breaks"] == 1


def test_many_instructions_in_calls_without_a_tensor_are_not_followed(monkeypatch):
    """A function in C calls one of the program's for each of many items."""
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    monkeypatch.setattr(long_loops, "_MOST_INSTRUCTIONS", 2000)

    def busy(x):
        return sum(list(map(lambda number: number * 2 + 1, range(2000))))  # noqa: C417 - calls, no turns

    stator.reset()
    counters.clear()
    assert stator.compile(busy, backend="eager")(torch.ones(2)) == busy(torch.ones(2))
    assert counters.counts["graph_breaks"] == 1


def test_very_many_items_are_taken_by_the_interpreter(monkeypatch):
    monkeypatch.setattr(long_loops, "_MOST_ITEMS", 100)

    def program(x):
        x = x + 1
        made = list(range(200))
        return x * len(made)

    stator.reset()
    counters.clear()
    assert torch.equal(stator.compile(program, backend="eager")(torch.ones(2)), program(torch.ones(2)))
    assert counters.counts["graph_breaks"] == 1
    assert counters.counts["frames"] == 2


def test_a_long_loop_without_tensors_runs_by_itself():
    def function(x):
        total = 0
        for i in range(300_000):
            total += i
        return x + 1, total

    assert stator.compile(function, backend="eager")(torch.zeros(1))[1] == sum(range(300_000))
