"""Generator functions, coroutines and async generators given to `stator.compile` run eagerly, and a warning says so.
Generators inside of captured code are another matter: tests/dynamo/codegen/test_breaks_in_generators.py."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.host.native_status import native

pytestmark = pytest.mark.skipif(native is None, reason="needs the C extension")


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
    return step(x)


async def numbered(x: Any) -> AsyncIterator[Any]:
    for number in range(2):
        await asyncio.sleep(0)
        yield step(x) + number


async def serve(x: Any) -> list[Any]:
    return [step(x), *[item async for item in numbered(x)]]


def drive(generator: Any) -> list[Any]:
    """What comes of sending, throwing in, and running to the end."""
    found = [next(generator), generator.send(torch.ones(3)), generator.throw(ValueError("thrown"))]
    with pytest.raises(StopIteration) as stop:
        next(generator)
    return [*found, stop.value.value]


class Layers(torch.nn.Module):
    def forward(self, x: Any) -> Iterator[Any]:
        return plain(x + 1)


@pytest.mark.parametrize("made", [plain, Layers(), lambda x: plain(x + 1)], ids=["function", "module", "returned"])
def test_generators_are_those_of_eager(made: Callable[..., Any], recwarn: pytest.WarningsRecorder) -> None:
    x = torch.randn(3)
    generator = stator.compile(made, backend="eager")(x)
    assert generator.gi_code is plain.__code__
    for found, expected in zip(drive(generator), drive(made(x)), strict=True):
        assert torch.equal(found, expected)
    assert native.hook_users() == 0 and native.hook_callback() is None
    warned = [str(one.message) for one in recwarn if "runs eagerly" in str(one.message)]
    assert len(warned) == (made is plain)


def test_coroutines_are_those_of_eager() -> None:
    x = torch.randn(2, 3)
    compiled = stator.compile(serve, backend="eager")
    assert inspect.iscoroutinefunction(compiled)
    with pytest.warns(RuntimeWarning, match=r"runs eagerly.*async"):
        found = asyncio.run(compiled(x))
    for one, expected in zip(found, asyncio.run(serve(x)), strict=True):
        assert torch.equal(one, expected)


@pytest.mark.parametrize(("function", "kind"), [(plain, "generator"), (serve, "async")])
def test_fullgraph_refuses(function: Callable[..., Any], kind: str) -> None:
    with pytest.raises(stator.Unsupported, match=kind):
        stator.compile(function, backend="eager", fullgraph=True)(torch.ones(2))
