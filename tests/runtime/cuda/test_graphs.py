"""Recorded programs give the results of their calls, whatever callers do with results and inputs."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest
import torch
from graph_world import World, double, world

from stator.base import counters
from stator.runtime.cuda import graphs
from stator.runtime.cuda.graph_capture import CudaCapture

__all__ = ["world"]  # around each test


def test_a_program_runs_then_is_recorded_then_replayed(world: World) -> None:
    program = world.program(double)
    for _ in range(5):
        x = torch.randn(7)
        assert torch.equal(program(x)[0], x * 2)
    assert (world.capture.calls, world.capture.captures, world.capture.replays) == (1, 1, 4)


def test_results_in_a_list_stay(world: World) -> None:
    program = world.program(double)
    inputs = [torch.randn(7) for _ in range(20)]
    results = [program(x)[0] for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        assert torch.equal(result, x * 2)
    assert world.capture.captures <= 2


@pytest.mark.parametrize("large", [False, True])
def test_the_last_result_stays(world: World, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", 0)
    program = world.program(double)
    x = y = torch.randn(7)
    before = None
    for _ in range(9):
        x = torch.randn(7)
        result = program(x)[0]
        assert before is None or torch.equal(before, y * 2)
        assert torch.equal(result, x * 2)
        before, y = result, x
    assert world.capture.captures <= 3 and world.capture.calls == 1


def test_views_arrays_and_storages_of_results_stay(world: World) -> None:
    program = world.program(double)
    for keep in (
        lambda y: y[2:],
        lambda y: y.numpy(),
        lambda y: y.untyped_storage(),
        lambda y: torch.utils.dlpack.to_dlpack(y),
        lambda y: torch.from_numpy(y.numpy()),
    ):
        for _ in range(3):
            program(torch.randn(7))
        x = torch.randn(7)
        kept = keep(program(x)[0])
        for _ in range(3):
            program(torch.randn(7))
        if isinstance(kept, torch.UntypedStorage):
            kept = torch.empty(0).set_(kept)
        if type(kept).__name__ == "PyCapsule":
            kept = torch.utils.dlpack.from_dlpack(kept)
        assert torch.equal(torch.as_tensor(kept)[-5:], x[-5:] * 2)


def test_chained_programs(world: World) -> None:
    one, two = world.program(double), world.program(lambda x: (x + 1, x - 1))
    for _ in range(6):
        x = torch.randn(7)
        y = one(x)[0]
        a, b = two(y)
        assert torch.equal(a, x * 2 + 1) and torch.equal(b, x * 2 - 1) and torch.equal(y, x * 2)


def test_an_input_that_lies_in_a_result_is_not_copied(world: World) -> None:
    one, two = world.program(double), world.program(lambda x: (x + 1,))
    for _ in range(5):
        result = two(one(torch.ones(7))[0])[0]
        assert torch.equal(result, torch.full((7,), 3.0))
        del result
    (recording,) = two.recordings
    assert not recording.places.by_position


def test_results_fed_back(world: World) -> None:
    program = world.program(lambda x: (x * 0.5 + 1,))
    y = expected = torch.randn(7)
    for _ in range(12):
        y, expected = program(y)[0], expected * 0.5 + 1
        assert torch.equal(y, expected)


def test_large_results_fed_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", 0)
    test_results_fed_back(world)


def test_one_program_for_many_layers(world: World) -> None:
    program = world.program(lambda x, w: (x @ w,), 2, parameters=[1])
    layers = [torch.randn(5, 5) for _ in range(6)]
    for _ in range(6):
        x = expected = torch.randn(3, 5)
        for w in layers:
            x, expected = program(x, w)[0], expected @ w
            torch.testing.assert_close(x, expected)
    calls = world.capture.calls
    program(torch.randn(3, 5), layers[0])
    assert world.capture.calls == calls


def test_parameters_are_read_where_they_lie(world: World) -> None:
    program = world.program(lambda x, w: (x * w,), 2, parameters=[1])
    w = torch.randn(7)
    for _ in range(4):
        x = torch.randn(7)
        assert torch.equal(program(x, w)[0], x * w)
        w.add_(1)
    (recording,) = program.recordings
    assert set(recording.places.by_position) == {0}
    w = torch.randn(7)  # another address is recorded anew, and what was recorded for the first is freed
    for _ in range(3):
        assert torch.equal(program(x, w)[0], x * w)
    (recording,) = program.recordings


def test_a_parameter_with_replaced_memory(world: World) -> None:
    program = world.program(lambda w: (w * 2,), parameters=[0])
    w = torch.nn.Parameter(torch.randn(7))
    for _ in range(10):
        w.data = torch.randn(7)
        assert torch.equal(program(w)[0], w * 2)
        w.untyped_storage().resize_(0)
        w.untyped_storage().resize_(28)
        w.copy_(torch.randn(7))
        assert torch.equal(program(w)[0], w * 2)


def test_written_inputs(world: World) -> None:
    def step(x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor]:
        state.add_(x)
        return (state * 2,)

    program = world.program(step, 2, written=[1])
    state, expected = torch.zeros(7), torch.zeros(7)
    for number in range(12):
        if number % 3 == 0:
            state = state.clone()  # another address
        x = torch.randn(7)
        expected = expected + x
        result = program(x, state)[0]
        assert torch.equal(state, expected) and torch.equal(result, expected * 2)


def test_results_that_are_inputs_or_their_views(world: World) -> None:
    program = world.program(lambda x: (x, x.view(2, 3)[1], x * 2, None, 5))
    for _ in range(4):
        x = torch.randn(6)
        itself, view, y, nothing, number = program(x)
        assert itself is x and view.data_ptr() == x[3:].data_ptr() and view.shape == (3,)
        assert torch.equal(y, x * 2) and nothing is None and number == 5


@pytest.mark.parametrize("kept", [False, True])
def test_results_that_share_memory(world: World, kept: bool) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y[1:3], y.view(2, 3).t()

    program = world.program(call)
    results = []
    for _ in range(5):
        x = torch.randn(6)
        y, part, turned = program(x)
        y[1] = 100.0
        assert part[0] == 100.0 and turned[1, 0] == 100.0
        y[1] = x[1] * 2
        assert torch.equal(turned, (x * 2).view(2, 3).t())
        results.append((x, y))
        if not kept:
            results.clear()
    for x, y in results:
        assert torch.equal(y, x * 2)


def test_changes_of_results(world: World) -> None:
    program = world.program(double)
    for _ in range(5):
        x = torch.randn(7)
        y = program(x)[0]
        assert y._version == 0 and torch.equal(y, x * 2)
        y.zero_()
        y.requires_grad_()


def test_gradients_are_accumulated(world: World) -> None:
    """A first gradient is taken over as .grad, and later ones are added to it."""
    program = world.program(lambda x: (x * 3,))
    grad, expected = None, torch.zeros(7)
    for number in range(8):
        x = torch.randn(7)
        found = program(x)[0]
        grad = found if grad is None else grad.add_(found)
        expected += x * 3
        torch.testing.assert_close(grad, expected)
        if number == 4:
            grad, expected = None, torch.zeros(7)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("pending", [1, 2, 4])
def test_several_forwards_before_their_backwards(
    world: World, pending: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", 0)
    forward = world.program(lambda x, w: (x.mul(w).sum(), x.mul(w), x.sin()), 2, parameters=[1])

    def back(arguments: list[torch.Tensor]) -> tuple[torch.Tensor]:
        product, sine, tangent = arguments
        arguments.clear()
        return (product * sine * tangent,)

    backward = world.program(back, 3, boxed=True)
    w = torch.randn(7)
    grads = []
    for _ in range(6):
        inputs = [torch.randn(7) for _ in range(pending)]
        saved = [list(forward(x, w)) for x in inputs]
        for x, one in zip(inputs, saved, strict=True):
            loss, *rest = one
            one.clear()
            torch.testing.assert_close(loss, (x * w).sum())
            given = [*rest, torch.ones(())]
            del rest
            grads.append((x, backward(given)[0]))
            assert not given
    for x, grad in grads:
        torch.testing.assert_close(grad, x * w * x.sin())


def test_a_boxed_program_that_is_not_replayed_gets_its_list(world: World) -> None:
    taken: list[int] = []

    def call(arguments: list[torch.Tensor]) -> tuple[torch.Tensor]:
        (x,) = arguments
        arguments.clear()
        taken.append(1)
        return (x * 2,)

    program = world.program(call, boxed=True)
    assert program.boxed
    given = [torch.ones(3)]
    assert torch.equal(program(given)[0], torch.full((3,), 2.0)) and not given and taken == [1]


def test_sizes_have_recordings_of_their_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_SIZES", 3)
    program = world.program(lambda x, n: (x * n,), 2, numbers=[1], sizes=[(0, 0)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            for size in (2, 3, 4, 5, 6):
                x = torch.randn(size)
                assert torch.equal(program(x, 2)[0], x * 2)
    assert world.capture.captures == 3
    assert len(caught) == 1 and "at most 3 combinations of sizes" in str(caught[0].message)
    x = torch.randn(2)
    assert torch.equal(program(x, 7)[0], x * 7)


def test_settings_of_libraries_have_recordings_of_their_own(world: World) -> None:
    program = world.program(lambda x: (x * 2 + len(world.capture.setting),))
    for number in range(8):
        world.capture.setting = ("deterministic",) * (number // 4)
        x = torch.randn(7)
        assert torch.equal(program(x)[0], x * 2 + number // 4)
    assert world.capture.captures == 2


def test_a_repeated_result_stays_one_tensor(world: World) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, x, y

    program = world.program(call)
    for _ in range(4):
        first, _, second = program(torch.randn(7))
        assert first is second


def test_a_program_that_cannot_be_recorded_runs_as_it_is(world: World) -> None:
    world.capture.failing = "it waits for the device"
    program = world.program(double)
    with pytest.warns(RuntimeWarning, match="without a CUDA graph: it waits for the device"):
        for _ in range(4):
            x = torch.randn(7)
            assert torch.equal(program(x)[0], x * 2)
    assert world.capture.calls == 4 and not program.recordings


def test_expanded_and_overlapping_inputs(world: World) -> None:
    program = world.program(double)
    for _ in range(4):
        x = torch.randn(1, 3).expand(4, 3)
        assert torch.equal(program(x)[0], x * 2)
    overlapping = world.program(double)
    for _ in range(4):
        x = torch.randn(8).as_strided((3, 4), (2, 1))
        assert torch.equal(overlapping(x)[0], x * 2)


def test_inputs_without_elements(world: World) -> None:
    program = world.program(lambda x, y: (x * 2, y.sum()), 2)
    for _ in range(4):
        x, y = torch.randn(7), torch.randn(0)
        found, total = program(x, y)
        assert torch.equal(found, x * 2) and total == 0


def test_inputs_that_come_back_at_their_address_are_not_copied(world: World) -> None:
    program = world.program(double)
    x = torch.randn(7)
    for _ in range(4):
        x.add_(1)
        assert torch.equal(program(x)[0], x * 2)
    (recording,) = program.recordings
    assert not recording.places.by_position
    for _ in range(20):  # copied once it moves
        x = torch.randn(7)
        assert torch.equal(program(x)[0], x * 2)
    assert world.capture.captures <= 3


def test_a_program_s_own_recording_runs_it_as_it_is(world: World) -> None:
    program = world.program(double)
    world.capture.outer = True
    for _ in range(4):
        program(torch.randn(7))
    assert world.capture.captures == world.capture.replays == 0


def test_programs_that_die_free_their_memory(world: World) -> None:
    one, two = world.program(double), world.program(lambda x: (x + 1,))
    for _ in range(3):
        y = one(torch.ones(7))[0]
        two(y)
    del y
    assert world.capture.pool.taken
    graph = weakref.ref(one.recordings[0])
    del one
    gc.collect()
    assert graph() is None
    del two
    gc.collect()
    assert not world.capture.pool.taken and not world.pool.recordings


def test_results_outlive_their_program(world: World) -> None:
    scratch = world.program(double)
    for _ in range(3):
        scratch(torch.ones(7))
    dying = world.program(lambda x: (x + 1,))
    for _ in range(3):
        x = torch.randn(7)
        y = dying(x)[0]
        del y
    y = dying(x)[0]
    del dying
    gc.collect()
    for _ in range(3):
        assert torch.equal(scratch(x)[0], x * 2)
    assert torch.equal(y, x + 1)
    del y
    gc.collect()


def test_a_replay_spares_results_of_programs_recorded_later(world: World) -> None:
    first, second = world.program(double), world.program(lambda x: (x + 1,))
    for _ in range(3):
        first(torch.randn(7))
        second(torch.randn(7))
    kept = []
    for _ in range(4):
        x = torch.randn(7)
        kept.append((x, second(x)[0]))
        first(torch.randn(7))
        for one, result in kept:
            assert torch.equal(result, one + 1)


@pytest.mark.parametrize("most", [0, 16 << 20])
def test_random_programs(world: World, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in random order, on inputs old and new, whose results are dropped, kept, changed and passed on."""
    monkeypatch.setattr(graphs, "MOST_COPIED_BYTES", most)
    chosen = torch.Generator().manual_seed(0)

    def draw(count: int) -> int:
        return int(torch.randint(count, (), generator=chosen))

    parameters = [torch.randn(7) for _ in range(3)]
    for turn in range(6):
        scale = float(turn + 1)
        programs = [
            (world.program(lambda x, w, s=scale + at: (x * s + w, x - w), 2, parameters=[1]), scale + at)
            for at in range(4)
        ]
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(120):
            program, factor = programs[draw(len(programs))]
            w = parameters[draw(3)]
            x = kept[draw(len(kept))][0] if kept and draw(2) else torch.randn(7)
            expected = x * factor + w, x - w
            for result, value in zip(program(x, w), expected, strict=True):
                assert torch.equal(result, value)
                if draw(2):
                    if draw(3) == 0:
                        result.add_(1)
                        value = value + 1
                    kept.append((result, value))
            del result
            while kept and draw(2):
                kept.pop(draw(len(kept)))
            for result, value in kept:
                assert torch.equal(result, value)


def test_threads_do_not_share_memory(world: World) -> None:
    program = world.program(double)
    failures: list[str] = []

    def work(seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(40):
                x = torch.randn(50, generator=made)
                if not torch.equal(program(x)[0], x * 2):
                    failures.append("wrong numbers")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class Stream:
    """Notes whom it waits for."""

    def __init__(self, number: int, waits: list[tuple[int, int]]) -> None:
        self.number, self.waits = number, waits

    def wait_stream(self, other: Stream) -> None:
        self.waits.append((self.number, other.number))


def test_a_replay_waits_for_all_streams_that_may_read_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for that of the last replay alone: an earlier one may read a result that was dropped since."""
    capture, waits, used = object.__new__(CudaCapture), [], []
    capture.device, capture._streams = torch.device("cuda", 0), {}
    streams = [Stream(number, waits) for number in range(3)]

    def follow(number: int, results_are_used: bool) -> list[tuple[int, int]]:
        waits.clear()
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: number, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[number])
        capture.follow(lambda: used.append(results_are_used) or results_are_used)
        return sorted(waits)

    assert follow(0, True) == follow(0, True) == []
    assert len(used) == 1  # one stream alone is quick
    assert follow(1, True) == [(1, 0)]
    assert follow(2, True) == [(2, 0), (2, 1)]
    assert follow(1, False) == [(1, 0), (1, 2)]
    assert follow(1, True) == []
    assert follow(2, True) == [(2, 1)]


def test_memory_of_copied_inputs_is_freed_behind_replays_on_all_streams(world: World) -> None:
    run = world.program(double)
    for _ in range(4):
        run(torch.randn(8))
    assert not world.capture.freed
    del run
    gc.collect()
    assert [tensor.shape for tensor in world.capture.freed] == [(8,)]

    class Memory:
        def __init__(self) -> None:
            self.streams: list[Stream] = []
            self.record_stream = self.streams.append

    capture, tensor = object.__new__(CudaCapture), Memory()
    capture._streams = {number: Stream(number, []) for number in range(2)}
    capture.free_behind_replays([tensor])  # type: ignore[list-item]
    assert tensor.streams == [*capture._streams.values()]


def test_results_are_used_while_somebody_holds_them(world: World) -> None:
    run = world.program(double)
    for _ in range(2):
        run(torch.ones(3))
    kept = [run(torch.ones(3))]
    assert world.pool.results_are_used()
    run = None
    gc.collect()
    assert not world.pool.recordings and world.pool.results_are_used()
    kept.clear()
    assert not world.pool.results_are_used()


def test_counters(world: World) -> None:
    counters.clear()
    program = world.program(double)
    for _ in range(4):
        program(torch.ones(7))
    assert counters.counts["cuda_graphs:recorded"] == 1 and counters.counts["cuda_graphs:replayed"] == 3
    assert counters.counts["memory:cuda_graphs"] > 0
