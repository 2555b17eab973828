"""Threads, tasks, forks, nesting, re-entrance: compiled functions give eager's results, and nobody waits for good."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.cache.entry import cache_of


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Threads take turns very often, and a warning (of a failed compilation) is an error."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            yield
    finally:
        sys.setswitchinterval(before)


def run_in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(number)` in threads that start at once; raises what one of them raised."""
    barrier, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for good"
    for error in errors:
        raise error


class Net(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).relu()
        for turn in range(self.number % 3 + 1):
            y = y * 1.1 + turn
        if self.number % 2:
            stator.graph_break()
        return y.sin()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_threads_compile_and_call_at_once_each_in_its_grad_mode(backend: str) -> None:
    torch.manual_seed(0)
    models = [Net(number) for number in range(4)]
    compiled = [stator.compile(model, backend=backend) for model in models]
    shared_model = Net(3)
    shared = stator.compile(shared_model, backend=backend)

    def work(number: int) -> None:
        for turn in range(3):
            grad = (turn + number) % 2 == 0
            with torch.set_grad_enabled(grad):
                x = torch.randn(2 + turn % 2, 6)
                for model, call in ((models[number], compiled[number]), (shared_model, shared)):
                    found, expected = call(x), model(x)
                    torch.testing.assert_close(found, expected)
                    assert found.requires_grad is grad
                    if grad:
                        weight = model.linear.weight
                        (one,), (other,) = (torch.autograd.grad(y.sum(), weight) for y in (found, expected))
                        torch.testing.assert_close(one, other)
        assert torch.is_grad_enabled() and not stator.is_compiling()

    run_in_threads(4, work)
    assert all(cache_of(call._stator_call).versions for call in [*compiled, shared])  # type: ignore[attr-defined]


def test_two_functions_of_one_converter_compile_while_the_backend_of_one_waits_for_the_other() -> None:
    """A backend that waits for a thread which calls something compiled with the same settings: no lock is held."""
    inner_done = threading.Event()

    class Pair(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            stator.graph_break()  # what follows is a frame of its own, compiled by the same converter
            return y * 2

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        if threading.current_thread() is threading.main_thread() and not inner_done.is_set():
            thread = threading.Thread(target=lambda: (compiled(torch.ones(5)), inner_done.set()), daemon=True)
            thread.start()
            thread.join(20)
        return gm.forward

    compiled = stator.compile(Pair(), backend=backend)
    assert compiled(torch.ones(3)).tolist() == [4, 4, 4]
    assert inner_done.is_set()


def test_tasks_interleave() -> None:
    compiled = stator.compile(lambda x, n: (x * n).sum(), backend="eager")

    async def work(n: int) -> float:
        total = 0.0
        for size in range(1, 4):
            with torch.no_grad():
                total += compiled(torch.ones(size), n).item()
            await asyncio.sleep(0)
        return total

    async def main() -> list[float]:
        return list(await asyncio.gather(*(work(n) for n in range(4))))

    assert asyncio.run(main()) == [6.0 * n for n in range(4)]


def test_a_coroutine_calls_compiled_functions_and_is_not_compiled_itself() -> None:
    inner = stator.compile(lambda x: x + (1 if stator.is_compiling() else 10), backend="eager")

    async def outer(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return inner(x) * 2

    assert asyncio.run(outer(torch.zeros(2))).tolist() == [2, 2]


FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def in_child(check: Callable[[], None]) -> None:
    """Run `check` in a forked child; fails when it raises or does not end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, which is the point
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(60)
            check()
            code = 0
        except BaseException as error:
            print(f"in the child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@FORK
@torch.no_grad()  # autograd's threads do not outlive a fork: after a backward of the parent a child cannot train
def test_a_forked_child_calls_and_compiles() -> None:
    compiled = stator.compile(Net(1), backend="inductor")
    model = compiled._stator_original
    x = torch.randn(3, 6)
    compiled(x)

    def check() -> None:
        other = torch.randn(4, 6)
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(compiled(other), model(other))
        fresh = stator.compile(lambda x: x.sin() * 3, backend="inductor")
        torch.testing.assert_close(fresh(other), other.sin() * 3)
        assert cache_of(fresh).versions

    in_child(check)
    torch.testing.assert_close(compiled(x), model(x))


@FORK
def test_a_child_compiles_what_another_thread_of_the_parent_was_compiling() -> None:
    started: list[int] = []  # no Event: its lock may be held in the moment of the fork
    go: list[int] = []

    def slow(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        started.append(1)
        while not go:
            time.sleep(0.01)
        return gm.forward

    compiled = stator.compile(lambda x: x * 5, backend=slow)
    thread = threading.Thread(target=lambda: compiled(torch.ones(2)), daemon=True)
    thread.start()
    while not started:
        time.sleep(0.01)

    def check() -> None:
        go.append(1)
        assert compiled(torch.ones(2)).tolist() == [5, 5]
        assert len(cache_of(compiled).versions) == 1
        assert gc.isenabled()  # it rested in the parent

    in_child(check)
    go.append(1)
    thread.join(30)


def test_compiled_functions_call_compiled_functions() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(gm)
        return gm.forward

    inner = stator.compile(lambda x: x + (1 if stator.is_compiling() else 10), backend=backend)
    outer = stator.compile(lambda x: inner(x) * 2, backend=backend, fullgraph=True)
    assert outer(torch.zeros(2)).tolist() == [2, 2] and len(graphs) == 1
    assert inner(torch.zeros(2)).tolist() == [1, 1] and len(graphs) == 2


def test_a_backend_may_call_what_it_compiles_and_other_compiled_functions() -> None:
    other = stator.compile(lambda x: x - 1, backend="eager")
    calls: list[float] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        calls.append(compiled(torch.ones(2))[0].item())  # the very function: runs eagerly
        calls.append(other(torch.ones(2))[0].item())
        return gm.forward

    compiled = stator.compile(lambda x: x * 3, backend=backend)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert calls == [3, 0] and len(cache_of(compiled).versions) == len(cache_of(other).versions) == 1


def test_recursive_functions_compile_themselves() -> None:
    @stator.compile(backend="eager")
    def power(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 0 else power(x * 2, n - 1)

    assert power(torch.ones(2), 5).tolist() == [32, 32]
    assert power(torch.ones(2), 3).tolist() == [8, 8]


def test_a_finalizer_that_calls_compiled_code_while_compiling() -> None:
    inner = stator.compile(lambda x: x + 1, backend="eager")
    results: list[list[float]] = []

    class Noisy:
        def __del__(self) -> None:
            results.append(inner(torch.zeros(1)).tolist())

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        Noisy()
        return gm.forward

    assert stator.compile(lambda x: x * 2, backend=backend)(torch.ones(1)).tolist() == [2]
    assert results == [[1.0]]
