"""Generator functions, coroutines and async generators given to `stator.compile`, or returned by what was: they run in
steps as in eager, what they call is compiled, and between the steps nothing of the compiler is on."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.host.native_status import native

pytestmark = pytest.mark.skipif(native is None, reason="needs the C extension")


class Graphs:
    """A backend that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        self.count += 1
        return gm.forward


@pytest.fixture
def graphs() -> Iterator[Graphs]:
    yield Graphs()
    assert native.hook_users() == 0 and native.hook_callback() is None


def step(x: Any) -> Any:
    return torch.relu(x) * 2 + 1


def plain(x: Any) -> Iterator[Any]:
    try:
        for _ in range(3):
            x = step(x)
            sent = yield x
            if sent is not None:
                x = x + sent
    except ValueError:
        yield step(x) + 10
    finally:
        step(x - 1)
    return step(x)


def delegating(x: Any) -> Iterator[Any]:
    step(x + 1)
    found = yield from plain(x)
    yield step(found * 2 if found is not None else x)
    return (yield from plain(x + 1))


def drive(generator: Any) -> list[Any]:
    """What comes of sending, throwing in, and running to the end."""
    found = [next(generator), generator.send(torch.ones(3)), generator.throw(ValueError("thrown"))]
    assert native.hook_users() == 0, "the hook is off while a generator waits"
    while True:
        try:
            found.append(next(generator))
        except StopIteration as stop:
            return [*found, stop.value]


def equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("function", [plain, delegating])
def test_what_a_generator_calls_is_compiled(function: Callable[..., Any], graphs: Graphs) -> None:
    torch.manual_seed(0)
    x = torch.randn(3)
    compiled = stator.compile(function, backend=graphs)
    equal(drive(compiled(x)), drive(function(x)))
    assert graphs.count == 1
    equal(drive(compiled(x)), drive(function(x)))
    assert graphs.count == 1


def test_a_generator_of_a_compiled_function(graphs: Graphs) -> None:
    def made(x: Any) -> Iterator[Any]:
        return plain(x + 1)

    x = torch.randn(3)
    equal(drive(stator.compile(made, backend=graphs)(x)), drive(made(x)))
    assert graphs.count == 2  # `x + 1` and the step


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Any) -> Iterator[Any]:
        for layer in self.layers:
            x = layer(x)
            yield x


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(x))


def test_a_module_whose_forward_is_a_generator(graphs: Graphs) -> None:
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(2, 3)
    compiled = stator.compile(model, backend=graphs)
    for _ in range(2):
        equal(list(compiled(x)), list(model(x)))
    assert graphs.count == 3


def test_tracebacks_show_the_program(graphs: Graphs) -> None:
    def fails(x: Any) -> Iterator[Any]:
        yield step(x)
        raise KeyError("of the program")

    def shown(function: Any) -> list[tuple[str, int | None]]:
        with pytest.raises(KeyError) as raised:
            list(function(torch.ones(2)))
        assert raised.value.__context__ is None
        return [(frame.name, frame.lineno) for frame in traceback.extract_tb(raised.tb) if frame.name == "fails"]

    assert shown(stator.compile(fails, backend=graphs)) == shown(fails) and graphs.count == 1


def test_generators_that_are_closed_or_dropped(graphs: Graphs) -> None:
    closed: list[str] = []

    def waiting(x: Any) -> Iterator[Any]:
        try:
            yield step(x)
        finally:
            closed.append(str(step(x).shape))

    compiled = stator.compile(waiting, backend=graphs)
    dropped, ended, untouched = compiled(torch.ones(2)), compiled(torch.ones(2)), compiled(torch.ones(2))
    assert inspect.isgenerator(untouched) and set(inspect.getgeneratorlocals(untouched)) == {"x", "closed"}
    next(dropped), next(ended)
    ended.close()
    del dropped
    untouched.close()
    assert len(closed) == 2 and native.hook_users() == 0


def test_a_generator_that_changes_threads(graphs: Graphs) -> None:
    generator = stator.compile(plain, backend=graphs)(torch.ones(3))
    found = [next(generator)]
    thread = threading.Thread(target=lambda: found.append(next(generator)))
    thread.start()
    thread.join()
    equal([*found, next(generator)], list(plain(torch.ones(3))))


@contextlib.asynccontextmanager
async def around(x: Any) -> AsyncIterator[Any]:
    yield step(x)
    await asyncio.sleep(0)


async def numbered(model: Any, x: Any) -> AsyncIterator[Any]:
    for number in range(2):
        await asyncio.sleep(0)
        yield model(x) + number


async def fails_later(x: Any) -> Any:
    await asyncio.sleep(0)
    raise RuntimeError("later")


async def serve(model: Any, x: Any) -> list[Any]:
    found = [model(x)]
    found += await asyncio.gather(work(model, x), work(model, x + 1))
    found += [item async for item in numbered(model, x)]
    async with around(x) as inside:
        found.append(inside)
    try:
        await fails_later(x)
    except RuntimeError:
        found.append(step(x))
    return found


async def work(model: Any, x: Any) -> Any:
    await asyncio.sleep(0)
    return model(x)


def test_coroutines(graphs: Graphs) -> None:
    torch.manual_seed(0)
    model, x = Layer(), torch.randn(2, 3)
    compiled = stator.compile(serve, backend=graphs)
    assert inspect.iscoroutinefunction(compiled)
    for _ in range(2):
        equal(asyncio.run(compiled(model, x)), asyncio.run(serve(model, x)))
    assert graphs.count == 2  # the model and the step


def test_fullgraph_refuses() -> None:
    with pytest.raises(stator.Unsupported, match="plain runs in steps"):
        stator.compile(plain, backend="eager", fullgraph=True)(torch.ones(2))
    with pytest.raises(stator.Unsupported, match="async"):
        stator.compile(work, backend="eager", fullgraph=True)(None, torch.ones(2)).close()


def counting() -> Iterator[int]:
    yield 1
    yield 2


def test_a_generator_that_calls_nothing_keeps_its_own_code():
    def made() -> Any:
        generator = counting()
        return generator, next(generator)

    generator, first = stator.compile(made, backend="eager")()
    assert first == 1
    assert generator.gi_code is counting.__code__
    assert stator.compile(counting, backend="eager")().gi_code is counting.__code__
