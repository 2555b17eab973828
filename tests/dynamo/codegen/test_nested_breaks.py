"""Breaks inside of inlined calls: one graph before, of all frames on the way, and one behind; and where not so."""

from __future__ import annotations

import functools
import gc
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator.base import counters
from stator.base.errors import Unsupported, UserPlace
from stator.dynamo import frame_compiler
from stator.dynamo.ir.capture_assumptions import GraphEnd
from stator.dynamo.ir.capture_result import BreakReason


@pytest.fixture(autouse=True)
def anew() -> None:
    stator.reset()


def graphs_of(target: Any, *arguments: Any, calls: int = 2) -> int:
    """How many graphs are compiled for calls that give what eager gives."""
    graphs = []

    def backend(gm: Any, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    compiled = stator.compile(target, backend=backend)
    for _ in range(calls):
        assert torch.equal(compiled(*arguments), target(*arguments))
    return len(graphs)


def innermost(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    time.time()
    return y + 1


def middle(x: torch.Tensor) -> torch.Tensor:
    return innermost(x + 1) * 3


def outer(x: torch.Tensor) -> torch.Tensor:
    return middle(x - 1) / 2


X = torch.randn(4, generator=torch.Generator().manual_seed(3))


def test_three_functions_are_two_graphs() -> None:
    assert graphs_of(outer, X) == 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        time.time()
        return torch.relu(x)


class Layers(nn.Module):
    def __init__(self, by_number: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(12)])
        self.by_number = by_number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_number:
            for at in range(len(self.layers)):
                x = self.layers[at](x)
        else:
            for layer in self.layers:
                x = layer(x)
        return x * 2


@torch.no_grad()
def test_a_graph_for_each_layer_that_breaks() -> None:
    assert graphs_of(Layers(by_number=False), X) == 13


@torch.no_grad()
def test_layers_that_are_found_by_number_have_limits_of_their_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, later = (graphs_of(Layers(by_number=True), X, calls=calls) for calls in (3, 6))
    assert first == later, "nothing is compiled again and again"


def test_training_goes_through_the_graphs_of_all_frames() -> None:
    model = Layers(by_number=False)
    compiled = stator.compile(model, backend="aot_eager")
    compiled(X).sum().backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(X).sum().backward()
    for one, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


def test_the_message_names_the_innermost_place() -> None:
    with pytest.raises(Unsupported, match="innermost") as caught:
        stator.compile(outer, backend="eager", fullgraph=True)(X)
    assert caught.value.place.line == innermost.__code__.co_firstlineno + 2


def test_explained_as_one_break() -> None:
    found = stator.explain(outer)(X)
    assert (found.graph_count, found.graph_break_count) == (2, 1)
    (cost,) = found.break_costs
    assert (cost.reason.place.function, cost.passes, cost.carried_bytes) == ("innermost", 1, 16)


def test_each_attempt_follows_the_whole_once() -> None:
    """The stack is followed up to the break, again to end there, and behind it: not once for each frame."""
    before = counters.counts["captured_frames"]
    graphs_of(outer, X, calls=1)
    assert counters.counts["captured_frames"] - before == 2


def breaks_in_turn(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for _ in range(3):
        time.time()
    return y + 1


def test_frames_stay_together_over_breaks_without_anything_between_them() -> None:
    assert graphs_of(lambda x: breaks_in_turn(x + 1) * 3, X) == 2


# ---- variables, closures, classes ----


def test_closures_share_their_variables_across_the_frames() -> None:
    def run(x: torch.Tensor) -> Any:
        count, seen = 0, []

        def inner(y: torch.Tensor) -> torch.Tensor:
            nonlocal count, x
            count += 1
            y = y * count
            time.time()
            seen.append(count)
            count += 10
            x = x + 1
            return y + count

        z = inner(x * 2)
        return z + x + count + inner(z), count, seen

    compiled = stator.compile(run, backend="eager")
    for _ in range(3):
        result, count, seen = compiled(X)
        expected = run(X)
        assert torch.equal(result, expected[0])
        assert (count, seen) == expected[1:]


class Base:
    def run(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        time.time()
        return x * 2


class Derived(Base):
    def run(self, x: torch.Tensor) -> torch.Tensor:
        x = super().run(x * 3)
        time.time()
        return super().run(x) - 1


def partial_of_method(x: torch.Tensor) -> torch.Tensor:
    return functools.partial(Derived().run)(x.sin()) * 5


def with_in_every_frame(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = y * 2
            time.time()
            y = y + torch.is_grad_enabled()
        return y + torch.is_grad_enabled()

    with torch.enable_grad():
        x = inner(x + 1) * 2
    return x


def in_a_comprehension(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    return sum([innermost(x + at) for at in range(3)])


def many_arguments(x: torch.Tensor) -> torch.Tensor:
    def inner(*args: Any, at: int = 2, **options: Any) -> torch.Tensor:
        y = args[0] * at + options["more"]
        time.time()
        return y * len(args)

    return inner(x, *[1, 2], more=inner(x + 1, more=3))


def recursive(x: torch.Tensor, depth: int = 40) -> torch.Tensor:
    if depth == 0:
        time.time()
        return x * 2
    return recursive(x + depth, depth - 1) * 1.01


PROGRAMS = [partial_of_method, with_in_every_frame, in_a_comprehension, many_arguments, recursive]


@pytest.mark.filterwarnings("error:stator")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[..., Any]) -> None:
    graphs_of(program, X, calls=3)


# ---- errors and the stack ----


@torch._dynamo.disable
def fails(log: list[Any], what: type[Exception] | None = None) -> None:
    frame, names = sys._getframe(1), []
    while frame is not None and frame.f_code.co_filename == __file__:
        names.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    log.append(names[:4])
    if what is not None:
        raise what("here")


def lets_through(x: torch.Tensor, log: list[Any], what: Any) -> torch.Tensor:
    x = x * 2
    try:
        fails(log, what)
    finally:
        log.append("finally")
    return x + 1


def catches(x: torch.Tensor, log: list[Any], what: Any) -> torch.Tensor:
    x = x + 1
    try:
        x = lets_through(x, log, what)
    except ValueError as error:
        tb, lines = error.__traceback__, []
        while tb is not None:
            lines.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
            tb = tb.tb_next
        log.append(lines)
        x = x * 7
    return x - 1


@pytest.mark.parametrize("what", [None, ValueError, KeyError])
def test_errors_pass_through_the_frames(what: Any) -> None:
    def run(x: torch.Tensor, log: list[Any]) -> Any:
        x = x.sin()
        return catches(x, log, what) * 2

    compiled = stator.compile(run, backend="eager")
    for _ in range(2):
        logs: list[list[Any]] = [[], []]
        found = []
        for function, log in ((compiled, logs[0]), (run, logs[1])):
            try:
                found.append(function(X, log).tolist())
            except KeyError as error:
                found.append(str(error))
        assert found[0] == found[1]
        assert logs[0] == logs[1]


def test_warnings_are_given_at_the_same_lines() -> None:
    @torch._dynamo.disable
    def warn() -> None:
        for level in range(2, 5):
            warnings.warn(f"level {level}", UserWarning, stacklevel=level)

    def inner(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        warn()
        return x + 1

    def run(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1) * 2

    places = []
    for function in (stator.compile(run, backend="eager"), run):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(X)
        places.append([(str(one.message), one.filename, one.lineno) for one in caught if one.category is UserWarning])
    assert places[0] == places[1]


def test_a_function_that_gets_hold_of_its_frame_is_one_frame() -> None:
    def inner(x: torch.Tensor) -> Any:
        frame = sys._getframe()
        x = x * 2
        time.time()
        return x + 1, frame is sys._getframe()

    def run(x: torch.Tensor) -> Any:
        return inner(x + 1)

    result, same = stator.compile(run, backend="eager")(X)
    assert same
    assert torch.equal(result, run(X)[0])


def test_nothing_is_kept_alive() -> None:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return outer(x * 2)

    model = Local()
    stator.compile(model, backend="eager")(X)
    found = weakref.ref(model)
    del model
    stator.reset()
    gc.collect()
    assert found() is None


def _of_two_ways(x: torch.Tensor, flag: bool) -> torch.Tensor | None:
    if flag:
        return x + 1
    return None


def _doubled(x: torch.Tensor, *, flag: bool) -> torch.Tensor:
    found = _of_two_ways(x, flag=flag)
    return x * 2 if found is None else found


@pytest.mark.parametrize("step", range(1, 40))
def test_a_graph_may_end_before_any_instruction(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the return of a called function, too, of which nothing is left to go on with."""

    def program(x: torch.Tensor) -> torch.Tensor:
        first = _doubled(x, flag=True)
        return first - _doubled(first, flag=False)

    def ended(function: Any, arguments: Any, assumptions: Any, **options: Any) -> Any:
        if function.__code__ is program.__code__ and assumptions.end is None:
            place = UserPlace(__file__, program.__code__.co_firstlineno, program.__qualname__)
            assumptions = assumptions.ending(
                GraphEnd(step, BreakReason("call", "the test ends the graph", place), step)
            )
        return plain(function, arguments, assumptions, **options)

    plain = frame_compiler.capture
    monkeypatch.setattr(frame_compiler, "capture", ended)
    compiled, x = stator.compile(program, backend="eager"), torch.randn(3)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
