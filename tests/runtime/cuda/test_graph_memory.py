"""How much memory recordings need, and that it is given back."""

from __future__ import annotations

import gc

import pytest
import torch
from graph_world import World, double, world

from stator.runtime.cuda import graphs

__all__ = ["world"]  # around each test


def test_a_recording_that_copies_an_input_replaces_one_that_read_it_in_place(world: World) -> None:
    program, w = world.program(lambda x, w: (x * w,), 2, parameters=[1]), torch.randn(7)
    batches = [torch.randn(7), torch.randn(7)]
    for turn in (0, 0, 1, 0, 1, 0):
        assert torch.equal(program(batches[turn], w)[0], batches[turn] * w)
    (recording,) = program.recordings
    assert set(recording.places.by_position) == {0}
    assert world.capture.captures == 2 and world.capture.pool.reach == 64


def test_a_recording_for_a_parameter_or_a_result_stays_beside_one_for_another(world: World) -> None:
    one, two = world.program(double), world.program(lambda x, w: (x * w,), 2, parameters=[1])
    layers = [torch.randn(7), torch.randn(7)]
    for _ in range(4):
        for w in layers:
            assert torch.equal(two(one(w)[0], w)[0], w * 2 * w)
    captures = world.capture.captures
    y = torch.randn(7)  # no result: copied
    assert torch.equal(two(y, layers[0])[0], y * layers[0])
    assert world.capture.captures == captures + 1
    for w in layers:
        assert torch.equal(two(one(w)[0], w)[0], w * 2 * w)
    assert world.capture.captures == captures + 1


def test_recordings_for_two_batches_need_the_memory_of_one(world: World) -> None:
    """The backward reads the results of the forward: its recording is freed with the forward's, before the next
    recording takes memory."""
    forward = world.program(lambda x, w: (x * w, x.sin(), x.cos()), 2, parameters=[1])
    backward = world.program(lambda x, product, sine, cosine: (product + sine, cosine + x, x * 3), 4)
    batches, w = [torch.randn(100), torch.randn(100)], torch.randn(100)

    def step(x: torch.Tensor) -> None:
        found = backward(x, *forward(x, w))
        for actual, expected in zip(found, (x * w + x.sin(), x.cos() + x, x * 3), strict=True):
            torch.testing.assert_close(actual, expected)

    step(batches[0])
    step(batches[0])
    before = world.capture.pool.reach
    for turn in (1, 0, 1, 0):
        step(batches[turn])
    assert world.capture.pool.reach == before
    assert len(forward.recordings) == len(backward.recordings) == 1


def test_a_pool_lives_from_the_last_recording_that_is_freed_to_the_next(world: World) -> None:
    program, x = world.program(double), torch.ones(7)
    program(x)
    program(x)
    pool = world.capture.pool
    assert torch.equal(program(torch.ones(7))[0], x * 2)
    assert world.capture.captures == 2 and len(program.recordings) == 1
    assert world.capture.pool is pool and not world.pool.freed


@pytest.mark.parametrize("kept", ["one of many", "most"])
def test_a_second_recording_holds_little_that_nobody_uses(
    kept: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large result that is in use in the next call, such as logits, does not double what is saved for a backward."""
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", 0)
    program = world.program(lambda x: (x * 2, x.sin(), x.cos(), x + 1))
    held: list[torch.Tensor] = []
    for _ in range(6):
        x = torch.randn(100)
        results = list(program(x))
        for actual, expected in zip(results, (x * 2, x.sin(), x.cos(), x + 1), strict=True):
            torch.testing.assert_close(actual, expected)
        held[:] = results[: 1 if kept == "one of many" else 3]
        del results, actual
    assert len(program.recordings) == (1 if kept == "one of many" else 2)


@pytest.mark.parametrize("most", [0, 16 << 20], ids=["large", "small"])
def test_gradients_that_live_during_the_next_forward_are_not_copied(
    most: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward is recorded first, in memory that includes that of the gradients; both move at most once."""
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", most)
    for seed in range(8):
        capture, drawn = world.capture, torch.Generator().manual_seed(seed)
        capture.pool.choose = lambda count, drawn=drawn: int(torch.randint(count, (), generator=drawn))
        forward = world.program(lambda x, w: (x * w, x.sin(), x.cos()), 2, parameters=[1])
        backward = world.program(lambda product, sine, cosine: (product + sine, cosine * 3), 3)
        w, gradients = torch.randn(100), []
        for number in range(12):
            x = torch.randn(100)
            saved = forward(x, w)
            gradients.clear()
            gradients += backward(*saved)
            del saved
            if number == 5:
                captures = capture.captures
            for actual, expected in zip(gradients, (x * w + x.sin(), x.cos() * 3), strict=True):
                torch.testing.assert_close(actual, expected)
            del actual
        assert not backward.copied and not forward.copied
        assert capture.captures == captures
        if forward.evasions:  # nothing is left of the pool that both have used
            assert capture.pools[0] not in {graph.pool for graph in capture.graphs}
        del forward, backward
        gc.collect()


def test_backwards_take_memory_that_no_forward_writes_to(world: World) -> None:
    def back(arguments: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        product, sine = arguments
        arguments.clear()
        return product + sine, sine * 3

    forward, backward = world.program(lambda x: (x * 2, x.sin())), world.program(back, 2, boxed=True)
    gradients: list[torch.Tensor] = []
    for _ in range(6):
        x = torch.randn(100)
        saved = list(forward(x))
        gradients.clear()
        gradients += backward(saved)
        torch.testing.assert_close(gradients, [x * 2 + x.sin(), x.sin() * 3])
    assert world.capture.captures == 2 and len(world.capture.pools) == 2


def test_gradients_that_live_during_forwards_of_other_sizes_are_not_copied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", 0)
    monkeypatch.setattr(graphs, "MOST_EVASIONS", 1)
    drawn = torch.Generator().manual_seed(0)
    world.capture.pool.choose = lambda count: int(torch.randint(count, (), generator=drawn))
    forward = world.program(lambda x: (x * 2, x.sin(), x.cos()), sizes=[(0, 0)])
    backward = world.program(lambda product, sine, cosine: (product + sine, cosine * 3), 3, sizes=[(0, 0)])
    gradients: list[torch.Tensor] = []
    captures = []
    for _ in range(6):
        for size in range(50, 600, 50):
            x = torch.randn(size)
            saved = forward(x)
            gradients.clear()
            gradients += backward(*saved)
            del saved
            for actual, expected in zip(gradients, (x * 2 + x.sin(), x.cos() * 3), strict=True):
                torch.testing.assert_close(actual, expected)
            del actual
        captures.append(world.capture.captures)
    assert forward.evasions and not backward.copied and not forward.copied
    assert captures[-1] == captures[-2]


@pytest.mark.parametrize("count", [3, 9])
def test_large_results_of_several_calls_are_kept_without_copies(
    count: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many recordings take turns as results are in use, up to four, and more results are copied."""
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", 0)
    program, kept = world.program(double), []
    for _ in range(20):
        x = torch.randn(7)
        kept = [*kept, (x, program(x)[0])][-count:]
        for one, result in kept:
            assert torch.equal(result, one * 2)
        del result
    assert len(program.recordings) == (4 if count == 3 else 1)
    assert bool(program.copied) == (count == 9)
