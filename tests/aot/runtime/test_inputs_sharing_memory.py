"""Graphs that write to inputs which share memory with other inputs, compared with eager on an equal layout. Such a
graph runs eagerly, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.aot.runtime.memory_facts import memory_facts
from tests.differential import ROUNDED, assert_same

import stator
from stator.base.logs import forget_warnings

Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(params=["aot_eager", "inductor"], autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    stator.reset()
    forget_warnings()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*stator.*")
        yield request.param
    stator.reset()


WARNING = "a graph runs eagerly.*overlapping-inputs|inputs share memory in another way"


# Each gives the memory, and two tensors of 12 elements in it.
def overlapping() -> Tensors:
    memory = torch.arange(24.0)
    return memory, memory[:12].view(3, 4), memory[6:18].view(3, 4)


def the_same_elements() -> Tensors:
    memory = torch.arange(24.0)
    return memory, memory[3:15].view(3, 4), memory[3:15].view(3, 4)


def transposed() -> Tensors:
    memory = torch.arange(24.0)
    return memory, memory[:12].view(3, 4), memory[2:14].view(4, 3).t()


def with_gaps() -> Tensors:
    memory = torch.arange(30.0)[2:26]
    return memory, memory.view(3, 8)[:, ::2], memory[2:14].view(3, 4)


def side_by_side() -> Tensors:
    memory = torch.arange(24.0)
    return memory, memory[:12].view(3, 4), memory[12:].view(3, 4)


def columns() -> Tensors:
    memory = torch.arange(24.0)
    return memory, memory.view(3, 8)[:, :4], memory.view(3, 8)[:, 4:]


def apart() -> Tensors:
    return torch.zeros(1), torch.ones(3, 4), torch.full((3, 4), 2.0)


OVERLAPPING = [overlapping, the_same_elements, transposed, with_gaps]
APART = [side_by_side, columns, apart]


def write_both(a: torch.Tensor, b: torch.Tensor) -> Any:
    a.mul_(2)
    total = a.clone() + b.clone()
    b.add_(1)
    return total, a[1], b.t(), a, b[:2].detach()


def check(compiled: Callable[..., Any], make: Callable[[], Tensors], program: Callable[..., Any] = write_both) -> None:
    def seen(run: Callable[..., Any]) -> Any:
        memory, *given = make()
        everything = [*given, *run(*given)]
        return memory, [one.clone() for one in everything], memory_facts([memory, *everything])

    assert_same(seen(compiled), seen(program), ROUNDED)


@pytest.mark.parametrize("make", OVERLAPPING, ids=lambda make: make.__name__)
def test_writes_reach_what_shares_memory(backend: str, make: Callable[[], Tensors]) -> None:
    compiled = stator.compile(write_both, backend=backend, fullgraph=True)
    with pytest.warns(RuntimeWarning, match=WARNING):
        check(compiled, make)
    check(compiled, make)


@pytest.mark.parametrize("make", APART, ids=lambda make: make.__name__)
def test_writes_apart_are_compiled(backend: str, make: Callable[[], Tensors]) -> None:
    compiled = stator.compile(write_both, backend=backend, fullgraph=True)
    check(compiled, make)
    check(compiled, make)


def test_inputs_that_come_to_lie_otherwise(backend: str) -> None:
    compiled = stator.compile(write_both, backend=backend, fullgraph=True)
    for make in APART:
        check(compiled, make)
    with pytest.warns(RuntimeWarning, match=WARNING):
        check(compiled, OVERLAPPING[0])
    for make in (*OVERLAPPING, *APART):
        check(compiled, make)


def test_only_what_is_written_to_is_said_to_be(backend: str) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        b.detach()[1:].sigmoid_()
        return (a * b,)

    with pytest.warns(RuntimeWarning, match=WARNING):
        check(stator.compile(program, backend=backend, fullgraph=True), overlapping, program)


def unrelated() -> Tensors:
    memory = torch.arange(24.0)
    return memory, memory.data[:12].view(3, 4), memory[6:18].view(3, 4)


def test_views_of_different_tensors_have_versions_of_their_own(backend: str) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        b.mul_(2)
        return (a + b,)

    with pytest.warns(RuntimeWarning, match=WARNING):
        check(stator.compile(program, backend=backend, fullgraph=True), unrelated, program)


@pytest.mark.parametrize(
    "program",
    [lambda a, b: (b.mul_(2), a[1]), lambda a, b: (b.mul_(2), a.t_().clone())],
    ids=["a view of them", "a layout"],
)
def test_views_and_layouts(backend: str, program: Callable[..., Any]) -> None:
    make = unrelated if program(*apart()[1:])[1].dim() == 1 else overlapping
    with pytest.warns(RuntimeWarning, match="overlapping-inputs|input-layout-mutation"):
        check(stator.compile(program, backend=backend), make, program)


def test_parameters_may_lead_to_results(backend: str) -> None:
    """No tensor that requires grad shares memory with a written input."""
    linear = torch.nn.Linear(4, 4)

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        with torch.no_grad():
            a.copy_(linear(b))
        return (linear(a + b),)

    def gradients(run: Callable[..., Any]) -> list[torch.Tensor]:
        _, a, b = overlapping()
        (result,) = run(a, b)
        return list(torch.autograd.grad(result.square().sum(), linear.parameters()))

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    with pytest.warns(RuntimeWarning, match=WARNING):
        torch.testing.assert_close(gradients(compiled), gradients(program))


def test_contents_with_a_history_are_left_to_eager(backend: str) -> None:
    weight = torch.ones(4, requires_grad=True)

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.mul_(weight)
        return (a + b,)

    compiled = stator.compile(program, backend=backend)
    _, a, b = overlapping()
    with pytest.warns(RuntimeWarning, match=WARNING):
        (result,) = compiled(a, b)
    assert b.requires_grad
    result.sum().backward()
    assert weight.grad is not None


def test_parameters_in_one_buffer_may_be_updated(backend: str) -> None:
    def update(first: torch.Tensor, second: torch.Tensor, step: torch.Tensor) -> Any:
        first.sub_(step)
        second.mul_(2).add_(first)
        return (first + second,)

    def parameters() -> tuple[torch.Tensor, ...]:
        buffer = torch.arange(8.0)
        return buffer, torch.nn.Parameter(buffer[:4]), torch.nn.Parameter(buffer[4:])

    compiled = stator.compile(update, backend=backend, fullgraph=True)
    (buffer, *given), (expected, *others) = parameters(), parameters()
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given, torch.ones(4)), update(*others, torch.ones(4)))
    assert torch.equal(buffer, expected)
    assert [one._version for one in given] == [other._version for other in others]
