"""Graphs with operators whose result's size depends on data: traced once for many sizes, as in eager.

In float64, to 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Counts

import stator


def rows(x: Any, mask: Any) -> Any:
    chosen = x.sin()[mask]
    return chosen.exp().mean(0), chosen * 2 + chosen.sum()


def transposed(x: Any, mask: Any) -> Any:
    return (x[mask].t() @ x[mask]).relu(), x[mask].t().exp()


def positions(x: Any, mask: Any) -> Any:
    (where,) = torch.where(mask)
    return torch.zeros_like(x).index_add(0, where, x[where].cos() * where[:, None])


def numbers(x: Any, mask: Any) -> Any:
    count = int(mask.sum())
    return x.new_zeros(count + 1, 3).add(1).cumsum(0) * count, x.sum() / (count + 2)


def two_masks(x: Any, mask: Any) -> Any:
    first, second = x[mask], x[~mask] * 2
    return torch.cat([first.exp(), second, first]).sum(1)


PROGRAMS = (rows, transposed, positions, numbers, two_masks)


def given(chosen: int, of: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(chosen)
    mask = torch.arange(of) < chosen
    return torch.randn(of, 3, dtype=torch.float64, generator=generator), mask[torch.randperm(of, generator=generator)]


@pytest.fixture(autouse=True)
def fresh() -> Any:
    stator.reset()
    yield
    stator.reset()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager_for_all_sizes(program: Callable[..., Any]) -> None:
    compiled, counts = stator.compile(program, backend="aot_eager"), Counts()
    for chosen in (5, 3, 7, 11, 2, 1, 0, 12, 9, 1, 0):
        found, expected = compiled(*given(chosen)), program(*given(chosen))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert counts.compilations == 1


def test_a_graph_is_compiled_once_for_all_sizes() -> None:
    compiled, counts = stator.compile(rows, backend="aot_eager"), Counts()
    for chosen in (5, 3, 7, 1, 11, 0, 2, 12):
        compiled(*given(chosen))
    assert counts["compiled:whole"] == 1


def test_a_question_about_the_size_makes_a_version_for_each_answer() -> None:
    def program(x: Any, mask: Any) -> Any:
        chosen = x[mask]
        return chosen.exp().view(-1, 3 if chosen.shape[0] % 2 else 6) + 1

    compiled = stator.compile(program, backend="aot_eager")
    for chosen in (4, 5, 6, 7, 8, 9, 2):
        torch.testing.assert_close(compiled(*given(chosen)), program(*given(chosen)))


def test_inputs_of_other_strides_are_another_version() -> None:
    def program(x: Any, mask: Any) -> Any:
        chosen = x[mask]
        return chosen.view(-1) + chosen.t().reshape(-1)

    compiled = stator.compile(program, backend="aot_eager")
    for chosen in (4, 6, 12):
        x, mask = given(chosen)
        for laid_out in (x, x.t().contiguous().t()):
            torch.testing.assert_close(compiled(laid_out, mask), program(laid_out, mask))


def test_gradients_are_eagers_for_all_sizes() -> None:
    compiled = stator.compile(rows, backend="aot_eager")
    for chosen in (5, 3, 7, 2, 1):
        x, mask = given(chosen)
        found, expected = (
            torch.autograd.grad(sum(part.sum() for part in f(one, mask)), one)
            for f, one in ((compiled, x.clone().requires_grad_()), (rows, x.clone().requires_grad_()))
        )
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
