"""Programs that change the layout of an input in place: the caller's tensor has it afterwards, as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.aot.runtime.memory_facts import memory_facts
from tests.differential import ROUNDED, assert_same

import stator
from stator.aot import compile_inference, keep_all, run_eagerly
from stator.base.errors import Unsupported


@pytest.fixture(params=["aot_eager", "inductor"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    stator.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*stator.*")
        yield request.param
    stator.reset()


def transposed(x: torch.Tensor, y: torch.Tensor) -> Any:
    row = x[0]
    x.t_()
    return x + y, row, x, x[1:], x.view(-1) if x.is_contiguous() else None


def written_and_transposed(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    x.transpose_(0, 1)
    x[1].add_(y[0])
    return x * 3, x


def several_times(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.unsqueeze_(0).transpose_(0, 2).squeeze_(2)
    y.unsqueeze_(-1)
    return (y * x.sum(1)).flatten(), y


def a_part(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.as_strided_((2, 2), (4, 1), 1)
    return x * 2, x, y


def undone(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.t_()
    total = x + y
    return total, x.t_()


PROGRAMS = [transposed, written_and_transposed, several_times, a_part, undone]


def seen(run: Callable[..., Any], make: Callable[[], list[torch.Tensor]]) -> Any:
    given = make()
    results = run(*given)
    return [one if one is None else one.clone() for one in (*given, *results)], memory_facts(
        [*given, *results], bases=False
    )


def assert_as_in_eager(
    run: Callable[..., Any], program: Callable[..., Any], make: Callable[[], list[torch.Tensor]]
) -> None:
    assert_same(seen(run, make), seen(program, make), ROUNDED)


def plain() -> list[torch.Tensor]:
    return [torch.arange(16.0).view(4, 4), torch.arange(16.0).view(4, 4).cos()]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_layouts_change_as_in_eager(backend: str, program: Callable[..., Any]) -> None:
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    assert_as_in_eager(compiled, program, plain)
    assert_as_in_eager(compiled, program, plain)


@pytest.mark.parametrize("columns", [1, 4])
def test_squeezing_a_dimension_of_symbolic_size(backend: str, columns: int) -> None:
    def program(x: torch.Tensor) -> Any:
        made = x + 1
        return x.squeeze_(0), made.squeeze_(-1).sin()

    compiled = stator.compile(program, backend=backend, dynamic=True, fullgraph=True)
    for rows in (3, 5):
        assert_as_in_eager(compiled, program, lambda rows=rows: [torch.ones(rows, columns)])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_where_something_else_requires_grad(backend: str, program: Callable[..., Any]) -> None:
    weight = torch.randn(4, requires_grad=True)

    def with_weight(x: torch.Tensor, y: torch.Tensor) -> Any:
        return program(x, y), x.sum() * weight

    def gradient(run: Callable[..., Any]) -> Any:
        given = plain()
        _, result = run(*given)
        return torch.autograd.grad(result.sum(), weight)[0], given[0].stride()

    compiled = stator.compile(with_weight, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(with_weight))


def test_a_tensor_given_twice_changes_once() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.t_()
        return y * 1, y

    gm = torch.fx.symbolic_trace(program)

    def twice() -> list[torch.Tensor]:
        return [torch.arange(6.0).view(2, 3)] * 2

    assert_as_in_eager(compile_inference(gm, twice(), run_eagerly, keep=keep_all), program, twice)
    run = compile_inference(gm, [torch.zeros(2, 3), torch.zeros(2, 3)], run_eagerly, keep=keep_all)
    with pytest.warns(RuntimeWarning, match="running it eagerly"):
        assert_as_in_eager(run, program, twice)


def test_what_autograd_follows_is_left_to_eager(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return x.t_() * 2

    compiled = stator.compile(program, backend=backend)
    leaf = torch.randn(2, 3, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="input-layout-mutation"):
        result = compiled(leaf * 1)
    result.sum().backward()
    assert torch.equal(leaf.grad, torch.full((2, 3), 2.0))
    with pytest.raises(Unsupported, match="input-layout-mutation"):
        stator.compile(program, backend=backend, fullgraph=True)(leaf * 1)
