"""Saved values whose memory the recording of a backward takes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from graph_world import World, double, world

from stator.runtime.cuda import graphs

__all__ = ["world"]  # around each test


def forward_of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A result, and three values that the backward reads."""
    return x.sum(), x * 2, x.sin(), x.cos()


def backward_of(arguments: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    product, sine, cosine = arguments
    arguments.clear()
    return product + sine, cosine * 3, sine - cosine


def gradients_of(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return backward_of([*forward_of(x)[1:]])


class Layer:
    """A forward and its backward."""

    def __init__(self, world: World, factor: float = 1.0) -> None:
        self.factor = factor
        self.forward = world.program(lambda x: forward_of(x * factor), sizes=[(0, 0)], visible=1)
        self.backward = world.program(backward_of, 3, boxed=True, sizes=[(at, 0) for at in range(3)])

    def run(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The result, and the saved values."""
        result, *saved = self.forward(x)
        assert torch.equal(result, (x * self.factor).sum())
        return result, saved

    def expected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients_of(x * self.factor)


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def steps(layer: Layer, count: int = 4) -> None:
    for _ in range(count):
        x = torch.randn(100)
        same(layer.backward(layer.run(x)[1]), layer.expected(x))


def takes(layer: Layer) -> bool:
    return any(one.takes_values() for one in layer.backward.recordings)


def test_gradients_lie_where_saved_values_lay(world: World) -> None:
    layer = Layer(world)
    steps(layer)
    assert takes(layer) and world.capture.captures == 2
    assert world.capture.pool.reach == 64 + 3 * 448 and list(world.capture.pools) == [0]


def test_a_value_that_a_caller_holds_is_not_taken(world: World) -> None:
    layer = Layer(world)
    for _ in range(4):
        x = torch.randn(100)
        _, saved = layer.run(x)
        sine = saved[1]
        same(layer.backward(saved), layer.expected(x))
        assert torch.equal(sine, x.sin())
        del sine
    assert takes(layer)


@pytest.mark.parametrize("before", [0, 3])
def test_a_graph_that_is_kept(before: int, world: World) -> None:
    """Two backwards of one forward read equal values."""
    layer = Layer(world)
    steps(layer, before)
    for _ in range(4):
        x = torch.randn(100)
        _, saved = layer.run(x)
        for _ in range(2):
            same(layer.backward(list(saved)), layer.expected(x))
    captures = world.capture.captures
    for _ in range(4):
        _, saved = layer.run(x)
        for _ in range(2):
            same(layer.backward(list(saved)), layer.expected(x))
    assert world.capture.captures == captures


@pytest.mark.parametrize("ends", ["behind the next forward", "never", "behind the fourth forward"])
def test_gradients_that_live_during_forwards(ends: str, world: World) -> None:
    layer, captures = Layer(world), []
    if ends == "behind the fourth forward":
        steps(layer, 3)  # whose gradients end before the next forward
    alive: list[tuple[Any, Any]] = []
    for _ in range(12):
        x = torch.randn(100)
        _, saved = layer.run(x)
        for found, expected in alive:
            same(found, expected)
        if ends != "never" or len(alive) == 3:
            alive.clear()
            found = None
        alive.append((layer.backward(saved), layer.expected(x)))
        del saved
        captures.append(world.capture.captures)
    assert captures[-1] == captures[-4] and not takes(layer)
    assert len({id(graph.pool) for graph in world.capture.graphs}) == 2


def test_a_capture_between_forward_and_backward_writes_elsewhere(world: World) -> None:
    layer, other = Layer(world), world.program(lambda x: (x * 3, x.exp(), x - 1))
    steps(layer)
    assert takes(layer)
    for _ in range(4):
        x, y = torch.randn(100), torch.randn(100)
        _, saved = layer.run(x)
        same(other(y), (y * 3, y.exp(), y - 1))
        same(layer.backward(saved), layer.expected(x))


def test_saved_values_outlive_their_recording(world: World) -> None:
    layer = Layer(world)
    steps(layer)
    x = torch.randn(100)
    _, saved = layer.run(x)
    expected, pool = layer.expected(x), world.pool
    del layer
    gc.collect()
    assert not pool.recordings and len(world.capture.graphs) == 1, "the graph keeps the pool of the values"
    other = world.program(double)
    for _ in range(4):
        y = torch.randn(100)
        assert torch.equal(other(y)[0], y * 2)
        same(backward_of(list(saved)), expected)
    saved.clear()
    assert not pool.results_are_used() and len(world.capture.graphs) == 1, "that of the other program"


def test_a_capture_that_fails_leaves_the_values(world: World) -> None:
    layer = Layer(world)
    steps(layer, 1)
    for number in range(4):
        x = torch.randn(100)
        _, saved = layer.run(x)
        world.capture.failing = "no memory" if number == 0 else None
        same(layer.backward(saved), layer.expected(x))
    assert layer.backward.recordings and not takes(layer)


def test_chains_of_forwards(world: World) -> None:
    layers = [Layer(world, factor) for factor in (1.0, 0.5, 2.0)]
    reach = []
    for _ in range(6):
        given = [torch.randn(100) for _ in layers]
        saved = [layer.run(x)[1] for layer, x in zip(layers, given, strict=True)]
        for layer, x in list(zip(layers, given, strict=True))[::-1]:
            same(layer.backward(saved.pop()), layer.expected(x))
        reach.append(world.capture.pool.reach)
    assert all(map(takes, layers)) and world.capture.captures == 6
    assert list(world.capture.pools) == [0] and reach[-1] <= 3 * (64 + 4 * 448)


def test_recordings_for_several_sizes_need_the_memory_of_forwards(world: World) -> None:
    layer = Layer(world)
    for size in (100, 100, 80, 80, 60, 60, 100, 80, 60, 100):
        x = torch.randn(size)
        same(layer.backward(layer.run(x)[1]), layer.expected(x))
    assert world.capture.captures == 6
    assert world.capture.pool.reach == sum(64 + 3 * size for size in (448, 320, 256))


@pytest.mark.parametrize("seed", range(30))
def test_random_orders(seed: int, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards and backwards of several layers and sizes in any order; saved values and gradients are dropped, kept,
    read again; functions are compiled anew."""
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", [0, 16 << 20][seed % 2])
    made = torch.Generator().manual_seed(seed)

    def draw(most: int) -> int:
        return int(torch.randint(most, (), generator=made))

    if seed % 3:
        world.capture.pool.choose = draw
    layers = [Layer(world, factor) for factor in (1.0, 0.5, 2.0)]
    other = world.program(lambda x: (x * 3, x.exp()), sizes=[(0, 0)])
    waiting: list[tuple[Layer, torch.Tensor, list[torch.Tensor]]] = []
    kept: list[tuple[Any, Any]] = []
    for _ in range(150):
        action, x = draw(8), torch.randn(20 * (1 + draw(2)), generator=made)
        if action < 3 and len(waiting) < 3:
            layer = layers[draw(3)]
            waiting.append((layer, x, layer.run(x)[1]))
        elif action < 6 and waiting:
            layer, x, saved = waiting.pop(draw(len(waiting)))
            again = draw(6) == 0
            found = layer.backward(list(saved) if again else saved)
            same(found, layer.expected(x))
            if again:
                waiting.append((layer, x, saved))
            if draw(3) == 0:
                kept.append((found, layer.expected(x)))
            del saved, found
        elif action == 6:
            found = other(x)
            same(found, (x * 3, x.exp()))
            if draw(2):
                kept.append((found, (x * 3, x.exp())))
            del found
        elif draw(8) == 0:
            layers[draw(3)] = Layer(world, 1.5)
        while kept and draw(2):
            kept.pop(draw(len(kept)))
        for found, expected in kept:
            same(found, expected)
        found = expected = None
        for layer, x, saved in waiting:
            same(saved, forward_of(x * layer.factor)[1:])
        layer = saved = None
