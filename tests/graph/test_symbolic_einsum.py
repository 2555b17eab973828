"""torch.einsum over sizes that change, 1 included."""

from __future__ import annotations

import pytest
import torch
from tests.differential import ROUNDED
from tests.scenarios import BACKENDS
from tests.varying_sizes import check_sizes

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing


def attention_scores(queries, keys):
    return torch.einsum("bind,bjnd->bnij", queries, keys), torch.einsum("ibnd,jbnd->bnij", queries, keys)


def a_weight_and_a_list_of_operands(queries, keys):
    return torch.einsum("bihd, hdo -> bio", [queries, keys[0, :2].detach()])


def operands_in_the_order_of_the_result_and_in_the_other(queries, keys):
    x, y = queries[:, :, 0], keys[:, :, 0]
    return torch.einsum("bid,bjd->bij", x, y), torch.einsum("bid,bjd->bji", x, y), torch.einsum("bid,bjd->ijb", x, y)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [attention_scores, operands_in_the_order_of_the_result_and_in_the_other])
@pytest.mark.parametrize("sizes", [(5, 7, 1, 3), (4, 1, 6)])
def test_one_version_serves_rows_of_one_and_of_more(program, sizes: tuple[int, ...], backend: str) -> None:
    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.randn(size, size, 2, 4, requires_grad=True) for _ in range(2))

    check_sizes(program, make, sizes=sizes, backend=backend, tolerance=ROUNDED)


def test_a_weight_and_a_list_of_operands() -> None:
    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, size, 2, 4, requires_grad=True), torch.randn(1, 2, 4, 3)

    check_sizes(a_weight_and_a_list_of_operands, make, sizes=(5, 7, 1, 3), tolerance=ROUNDED)


@pytest.mark.parametrize("equation", ["bid,bjd->jib", "bik,bkj->bij", "bi,bj->bij", "bi,bi->i", "ibk,bk->bi"])
def test_results_are_laid_out_as_in_eager_where_a_size_is_one(equation: str) -> None:
    first, second = equation.partition("->")[0].split(",")

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = dict(zip("bijkd", (size, 3 if size > 1 else 1, size + 1, 2 * size - 1, 4), strict=True))
        return tuple(torch.randn([numbers[label] for label in term]) for term in (first, second))

    def program(x, y):
        made = torch.einsum(equation, x, y)
        return made, [step for step, size in zip(made.stride(), made.shape, strict=True) if size > 1]

    check_sizes(program, make, sizes=(5, 7, 1, 3), versions=3, tolerance=ROUNDED)
