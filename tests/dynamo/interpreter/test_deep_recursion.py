"""Recursion beside compiled code goes as deep as in eager: deep inside, the frame hook is not there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import counters
from stator.dynamo.cache import compiled_frames
from stator.dynamo.host.native_status import native

pytestmark = pytest.mark.skipif(native is None, reason="needs the C extension")


@pytest.fixture
def deep() -> Iterator[int]:
    """A recursion limit that eager Python reaches on any stack: its own calls take none."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(60_000)
    yield 50_000
    sys.setrecursionlimit(before)


def depth(n: int) -> int:
    return depth_of_next(n) + 1 if n else 0


def depth_of_next(n: int) -> int:
    return depth(n - 1)


def compute(x: Any) -> Any:
    return torch.relu(x) + 1


def test_a_recursion_as_deep_as_the_limit(deep):
    def program(x: Any, n: int) -> Any:
        y = compute(x)
        stator.graph_break()
        return compute(y), depth(n)

    x = torch.arange(3.0)
    found, levels = stator.compile(program, backend="eager")(x, deep // 2)
    assert levels == deep // 2
    torch.testing.assert_close(found, compute(compute(x)))
    assert native.hook_users() == 0 and native.hook_callback() is None


def test_one_that_is_deeper_than_the_limit_raises_as_in_eager(deep):
    def program(x: Any) -> Any:
        try:
            depth(100_000)
        except RecursionError:
            return compute(x)
        return x

    torch.testing.assert_close(stator.compile(program, backend="eager")(torch.zeros(2)), torch.ones(2))
    assert native.hook_users() == 0


def test_what_is_called_behind_it_is_compiled_again(deep):
    graphs: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(1)
        return gm.forward

    def program(x: Any, n: int) -> Any:
        depth(n)
        stator.graph_break()
        return called(x)

    @torch.compiler.disable(recursive=False)
    def called(x: Any) -> Any:
        return compute(x)

    stator.compile(program, backend=backend)(torch.ones(2), deep // 4)
    assert graphs


def test_other_threads_meanwhile(deep):
    x = torch.arange(4.0)

    def program(x: Any, n: int) -> Any:
        y = compute(x)
        stator.graph_break()
        levels = depth(n)
        return compute(y) * levels

    compiled = stator.compile(program, backend="eager")
    expected = program(x, 1000)
    found: list[Any] = []

    def run() -> None:
        for _ in range(5):
            found.append(compiled(x, 1000))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for one in found:
        torch.testing.assert_close(one, expected)
    assert native.hook_users() == 0


def test_where_there_is_no_room_to_count_the_program_runs_as_it_is(monkeypatch):
    def no_room(*args: Any) -> Any:
        raise RecursionError("maximum recursion depth exceeded")

    def program(x: torch.Tensor) -> torch.Tensor:
        return compute(x)

    compiled, x = stator.compile(program, backend="eager"), torch.arange(3.0)
    monkeypatch.setattr(compiled_frames, "owner_of", no_room)
    monkeypatch.setattr(counters, "count", no_room)
    assert torch.equal(compiled(x), compute(x))


def test_classes_in_deeply_nested_tuples():
    def program(x: Any) -> Any:
        nested: Any = (str,)
        for _ in range(60):
            nested = (nested,)
        return compute(x), isinstance("", nested), issubclass(int, nested)

    x = torch.arange(3.0)
    assert stator.compile(program, backend="eager")(x)[1:] == (True, False)
