"""Memory returns: what was compiled goes with what it was made from, and calls and compilations leave nothing."""

from __future__ import annotations

import gc
import linecache
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.graph.fake.fake_mode import FakeTensor


class Thing:
    """An object that guards look at."""

    def __init__(self) -> None:
        self.scale = 2.0


def make_module() -> list[Any]:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(x).relu()
            stator.graph_break()
            return self.other(y)

    net = Net()
    compiled = stator.compile(net, backend=BACKEND[0])
    compiled(torch.randn(2, 4)).sum().backward()
    compiled.forward(torch.randn(2, 4))
    return [net, compiled, net.one.weight, net.one.weight.grad, net.one, Net]


def make_closure() -> list[Any]:
    big, thing = torch.randn(64), Thing()

    def closure(x: torch.Tensor) -> torch.Tensor:
        return x * thing.scale + big.sum()

    compiled = stator.compile(closure, backend=BACKEND[0])
    compiled(torch.randn(3))
    return [closure, compiled, big, thing]


def make_function_of_its_own() -> list[Any]:
    names: dict[str, Any] = {"torch": torch}
    exec("def made(x):\n    y = x.sin()\n    return y + 1", names)
    function = names.pop("made")
    compiled = stator.compile(function, backend=BACKEND[0])
    compiled(torch.randn(3))
    return [function, compiled, function.__code__]


def make_arguments() -> list[Any]:
    x, thing = torch.randn(3, requires_grad=True), Thing()
    by_argument(x, thing).sum().backward()
    return [x, thing]


def make_method() -> list[Any]:
    class Scaler:
        def __init__(self) -> None:
            self.table = torch.arange(3.0)

        @stator.compile(backend="eager")
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table

    scaler = Scaler()
    scaler.scale(torch.ones(3))
    return [scaler, scaler.table, Scaler]


by_argument = stator.compile(lambda x, thing: x * thing.scale, backend="eager")
BACKEND = ["eager"]
MAKERS = [make_module, make_closure, make_function_of_its_own, make_arguments, make_method]


def settle() -> None:
    for _ in range(2):
        gc.collect()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_nobody_holds_is_gone(maker: Callable[[], list[Any]], backend: str) -> None:
    BACKEND[0] = backend
    references = [weakref.ref(thing) for thing in maker()]
    settle()
    alive = [reference() for reference in references]
    assert alive == [None] * len(alive)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiling_and_deleting_leaves_no_object_behind(backend: str) -> None:
    """Nor any text of graphs, which torch.fx by itself keeps for tracebacks."""
    BACKEND[0] = backend
    for _ in range(3):
        make_module(), make_closure()
    settle()
    before, fakes, texts = len(gc.get_objects()), count(FakeTensor), len(linecache.cache)
    for _ in range(8):
        make_module(), make_closure()
    settle()
    assert count(FakeTensor) == fakes
    assert len(linecache.cache) <= texts
    assert len(gc.get_objects()) - before <= 20


def count(kind: type) -> int:
    return sum(type(thing) is kind for thing in gc.get_objects())


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_calls_leave_no_object_behind(backend: str) -> None:
    thing = Thing()
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    compiled = stator.compile(module, backend=backend)
    function = stator.compile(lambda x, *, by=1, **more: x * by * thing.scale, backend=backend)
    x = torch.randn(2, 4)

    def call() -> None:
        compiled(x).sum().backward()
        function(x)
        function(x, by=2, other=3)

    for _ in range(10):
        call()
    settle()
    before = len(gc.get_objects())
    for _ in range(1000):
        call()
    settle()
    assert len(gc.get_objects()) - before <= 10


def test_a_version_goes_with_the_objects_that_it_compares_with() -> None:
    function = stator.compile(lambda x, module: module(x), backend="eager")

    def use() -> None:
        function(torch.ones(1, 2), torch.nn.Linear(2, 2))

    for _ in range(10):  # more than the limit: no version outlives its module
        use()
        gc.collect(1)
    assert len(function._cache.versions) <= 1 and not function._cache.eager  # type: ignore[attr-defined]


def test_what_the_program_lets_go_of_is_gone_also_in_calls_that_compile() -> None:
    """Without the collector's help: capturing leaves no circles behind that hold the program's objects."""

    class Thing:
        pass

    gone: list[bool] = []

    @stator.disable
    def look(reference: weakref.ref[Thing]) -> None:
        gone.append(reference() is None)

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            thing = Thing()
            x = x + 1
            reference = weakref.ref(thing)
            look(reference)
            thing = None
            look(reference)
        return x

    compiled = stator.compile(function, backend="eager")
    was_on = gc.isenabled()
    gc.disable()
    try:
        compiled(torch.ones(2))
    finally:
        if was_on:
            gc.enable()
    assert gone == [False, True] * 3
