"""Graphs that are divided at their results: gradients, hooks and errors are eager's. float64, 1e-12."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.differential import Tolerance, assert_same

import stator
from stator.aot import training
from stator.aot.partition import call_costs
from stator.base import counters

Run = Callable[..., Any]
CLOSE = Tolerance(1e-12, 1e-12)
pytestmark = pytest.mark.fixed_sizes


@pytest.fixture(autouse=True)
def divides(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Divide graphs of any estimated cost; most pieces of one operator run as they are."""
    monkeypatch.setattr(call_costs, "DIVIDED_DATA", 1 << 18)
    monkeypatch.setattr(training, "costs_less_apart", lambda *given: True)
    stator.reset()
    yield


def leaves() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def chain(x: Any, w: Any, v: Any) -> Any:
    first = (x * w + 1).sin()
    second = (first * 2).exp() * w
    return first, second, (second + first).tanh() * 3


def different_inputs(x: Any, w: Any, v: Any) -> Any:
    return (x * 2).sin() + 1, (x * w).tanh() + x, (v * 3).exp() * v


def shared_parts(x: Any, w: Any, v: Any) -> Any:
    """Neither `both` nor `scale` is a result."""
    both = (x * w).sin() + x
    scale = both.exp() + 1
    return (both * scale).tanh() * v, (both * 2 + scale).sin(), (scale * 3).cos() * w


def several_results(x: Any, w: Any, v: Any) -> Any:
    """Operators with several results, one of them whole numbers."""
    upper, lower = ((x * w).sin() * 2).split([1, 2])
    most, place = (x * v).exp().max(0)
    return upper * most, lower + w[1:], place, (most * 2).tanh()


def views(x: Any, w: Any, v: Any) -> Any:
    y = (x * 2).sin() * w
    return y, y[0], y.t(), y.view(9) * 2, x.t()


def without_gradients(x: Any, w: Any, v: Any) -> Any:
    y = (x * w).sin() + 1
    with torch.no_grad():
        close = (y * 2 - x).abs() < 1
    return y, close, y.detach() * w, torch.where(close, y * 2, v).exp()


def unused(x: Any, w: Any, v: Any) -> Any:
    y = (x * 2).sin() + 1
    y.contiguous(), (x * v).sin()
    return y, (y * w).tanh() * 2


def factories(x: Any, w: Any, v: Any) -> Any:
    base = torch.ones(3, dtype=torch.float64) * 2
    y = (x * base).sin() + 1
    return y, base, (y * w + base).tanh()


PROGRAMS = [
    chain, different_inputs, shared_parts, several_results, views, without_gradients, unused, factories
]  # fmt: skip
by_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


def compare(program: Run, look: Callable[[list[Any], Any, list[Any]], Any], divided: bool = True) -> None:
    """look(inputs, results, log) -> what is seen; the log too, and what gradients the inputs have got."""

    def found(run: Run) -> Any:
        given = leaves()
        log: list[Any] = []
        try:
            seen = look(given, run(*given), log)
        except RuntimeError as error:
            seen = [str(error)[:60]]
        return [*seen, *[one.grad for one in given], *log]

    before = counters.counts["aot_divided"]
    assert_same(found(stator.compile(program, fullgraph=True)), found(program), CLOSE)
    assert (counters.counts["aot_divided"] > before) is divided


def differentiable(results: Any) -> list[Any]:
    return [one for one in results if one.requires_grad]


def total(results: Any) -> Any:
    return sum([(one * (at + 1)).sum() for at, one in enumerate(differentiable(results))])


def noted(log: list[Any], name: Any, gradient: torch.Tensor) -> torch.Tensor:
    log.append((name, gradient.clone()))
    return gradient * 3


@by_program
def test_results_and_gradients(program: Run) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        total(results).backward()
        return [(one.detach(), one.requires_grad, one._is_view(), one.stride()) for one in results]

    compare(program, look)


@by_program
def test_gradients_of_one_result_by_inputs_and_results(program: Run) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        found = []
        ends = differentiable(results)
        for at, end in enumerate(ends):
            sought = [*given, *ends[:at]]
            found += torch.autograd.grad(end.sum(), sought, retain_graph=True, allow_unused=True)
        return found

    compare(program, look)


@by_program
def test_hooks_on_results_and_inputs(program: Run) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        for at, one in enumerate([*given, *differentiable(results)]):
            one.register_hook(partial(noted, log, at))
        ends = differentiable(results)
        ends[0].retain_grad()
        (ends[0] * 2 + ends[-1].sum()).sum().backward()
        log.sort(key=lambda entry: entry[0])  # views have no order
        return [ends[0].grad]

    compare(program, look)


@by_program
def test_the_gradient_of_a_gradient(program: Run) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        ends = differentiable(results)
        sought = [given[0], ends[0]]
        found = torch.autograd.grad(total(results), sought, create_graph=True)
        found[0].square().sum().backward()
        return [one.detach() for one in found]

    compare(program, look)


@by_program
def test_a_second_backward_and_a_write_between(program: Run) -> None:
    def twice(given: list[Any], results: Any, log: list[Any]) -> Any:
        total(results).backward(retain_graph=True)
        total(results).backward()
        return [one.grad for one in given]

    def after_a_write(given: list[Any], results: Any, log: list[Any]) -> Any:
        with torch.no_grad():
            given[1].add_(1)
        total(results).backward()
        return []

    compare(program, twice)
    compare(chain, after_a_write)


def test_a_result_that_is_written_to() -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        results[0].mul_(2)
        results[0].sum().backward()
        return []

    compare(different_inputs, look)


@pytest.mark.parametrize("frozen", range(3))
def test_inputs_without_gradients(frozen: int) -> None:
    for program in (chain, different_inputs, shared_parts):

        def found(run: Run) -> Any:
            given = leaves()
            given[frozen].requires_grad_(False)
            results = run(*given)
            total(results).backward()
            return [*results, *[one.grad for one in given]]

        assert_same(found(stator.compile(program, fullgraph=True)), found(program), CLOSE)


def writes(x: Any, w: Any, v: Any) -> Any:
    y = (x * 2).sin()
    return y, (y * w).mul_(2).exp()


def writes_input(x: Any, w: Any, v: Any) -> Any:
    v.detach().add_(1)
    y = (x * 2).sin()
    return y, (y * w).exp()


def draws(x: Any, w: Any, v: Any) -> Any:
    y = (x * 2).sin()
    return y, torch.nn.functional.dropout(y * w, 1e-9)


def turns_gradients_on(x: Any, w: Any, v: Any) -> Any:
    with torch.enable_grad():
        y = (x * 2).sin()
        return y, (y * w).exp()


@pytest.mark.parametrize("program", [writes, writes_input, draws], ids=lambda program: program.__name__)
def test_programs_that_do_more_than_compute_are_whole(program: Run) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        total(results).backward()
        return [one.detach() for one in (*results, *given)]

    compare(program, look, divided=False)


def test_the_grad_mode_stays_as_it_was() -> None:
    with torch.no_grad():
        compare(turns_gradients_on, lambda given, results, log: [torch.is_grad_enabled(), *results], divided=False)
    compare(without_gradients, lambda given, results, log: [torch.is_grad_enabled(), *results])


OPERATORS: list[Run] = [
    lambda a, b: a * b, lambda a, b: a + b, lambda a, b: a.sin(), lambda a, b: a.tanh() - b,
    lambda a, b: torch.stack((a, b)).mean(0), lambda a, b: a.max(0)[0] + b, lambda a, b: a @ b, lambda a, b: a.t() + b,
    lambda a, b: a.detach() * b,
]  # fmt: skip


def random_program(seed: int) -> Run:
    chosen = random.Random(seed)
    steps = [(chosen.choice(OPERATORS), chosen.random(), chosen.random()) for _ in range(9)]
    shown = sorted(chosen.sample(range(2, 9), 3))

    def program(*given: torch.Tensor) -> Any:
        values = list(given)
        for operation, first, second in steps:
            values.append(operation(values[int(first * len(values))], values[int(second * len(values))]))
        return [values[at + 3] * (at + 1) for at in shown]

    return program


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    def look(given: list[Any], results: Any, log: list[Any]) -> Any:
        ends = differentiable(results)
        for at, one in enumerate(ends):
            one.register_hook(partial(noted, log, at))
        found = torch.autograd.grad(total(results), [*given, *ends], allow_unused=True, create_graph=True)
        of_found = sum([one.square().sum() for one in found if one is not None and one.requires_grad])
        if isinstance(of_found, torch.Tensor):
            of_found.backward()
        log.sort(key=lambda entry: entry[0])  # independent results have no order
        return [None if one is None else one.detach().contiguous() for one in found]

    program = random_program(seed)
    assert_same(found_by(stator.compile(program, fullgraph=True), look), found_by(program, look), CLOSE)


def found_by(run: Run, look: Run) -> Any:
    given = leaves()
    log: list[Any] = []
    seen = look(given, run(*given), log)
    return [*seen, *[one.grad for one in given], *log]


def test_a_division_is_chosen_by_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """On little data autograd nodes of results cost more than a step; on much data fusion gains more."""
    monkeypatch.undo()
    monkeypatch.setattr(call_costs, "DIVIDED_DATA", 1 << 18)
    for size, divided in ((8, True), (1 << 16, False)):
        stator.reset()
        before = counters.counts["aot_divided"]
        x, w, v = (torch.randn(size, dtype=torch.float64, requires_grad=True) for _ in range(3))
        first, second, third = stator.compile(chain)(x, w, v)
        assert (counters.counts["aot_divided"] > before) is divided
        assert_same([first, second, third], list(chain(x, w, v)), CLOSE)
