"""Custom autograd.Functions in programs whose sizes change: one version serves them, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.scenarios import BACKENDS
from tests.varying_sizes import check_sizes
from torch.autograd import Function

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing


class Weighted(Function):
    """Keeps tensors and a size."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows = x.shape[0]
        return x * weight / x.shape[0]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return g * weight / ctx.rows * 3, (g * x / ctx.rows).sum(0)


class Mean(Function):
    """Keeps a torch.Size, and nothing else."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.mean(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g.expand(ctx.shape) / ctx.shape[0] * 2


class Reshaped(Function):
    """Takes a size as an argument; asks for the size of a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.rows = rows
        return x.view(rows, 2, -1) * rows, x.sum(1)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, of_sum: torch.Tensor) -> Any:
        return g.reshape(ctx.rows, -1) * g.shape[0] + of_sum[:, None] * len(of_sum), None


class Times(Function):
    """Keeps the size of a tensor that it reads nothing else of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        ctx.rows = len(other)
        return x * ctx.rows

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.rows * 2, None


class Scattered(Function):
    """Makes tensors of a size in its backward, and keeps an intermediate one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        top, ctx.index = x.max(1)
        ctx.columns = x.size(1)
        return top

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        empty = torch.zeros(g.shape[0], ctx.columns, dtype=g.dtype)
        return empty.scatter(1, ctx.index[:, None], g[:, None])


class OfInt(Function):
    """Cuts by an int of the program."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: int) -> torch.Tensor:
        ctx.shape, ctx.count = x.shape, count
        return x[:, :count] * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        made = g.new_zeros(ctx.shape)
        made[:, : ctx.count] = g
        return made, None


class Root(Function):
    """Divides by a function of a size that Python computes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.scale = x.shape[0] ** -0.5
        return x * ctx.scale

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.scale * 3


def rows(size: int) -> list[Any]:
    return [torch.randn(size, 4, requires_grad=True), torch.randn(4, requires_grad=True)]


def saved(x, weight):
    return Weighted.apply(x.sin(), weight).cos()


def shape(x, weight):
    return Mean.apply(x * weight) + 1


def size_as_argument(x, weight):
    first, second = Reshaped.apply(x * weight, x.shape[0])
    return first.sin(), second * 2


def made_inside(x, weight):
    return Scattered.apply(x * weight) * x[:, 0]


def function_of_a_size(x, weight):
    return Root.apply(x) * weight


def size_of_another_tensor(x, weight):
    return Times.apply(weight, x)


def beside_a_branch(x, weight):
    made = Mean.apply(x)
    return made * 2 if x.shape[0] > 2 else made * weight


def of_a_concatenation(x, weight):
    both = torch.cat((x, x * weight))
    return Weighted.apply(both, weight), both.shape[0]


def one_after_another(x, weight):
    return Root.apply(Weighted.apply(Root.apply(x), weight))


PROGRAMS = [
    saved,
    shape,
    size_as_argument,
    made_inside,
    function_of_a_size,
    size_of_another_tensor,
    beside_a_branch,
    of_a_concatenation,
    one_after_another,
]


@pytest.mark.each_pair
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_many_sizes_need_two_versions(program: Any, backend: str, dynamic: bool | None) -> None:
    check_sizes(program, rows, backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_int_of_the_program_on_which_sizes_depend(backend: str) -> None:
    def program(x: torch.Tensor, count: int) -> torch.Tensor:
        return OfInt.apply(x, count).sin()

    make = lambda size: (torch.randn(3, 16, requires_grad=True), size)  # noqa: E731
    check_sizes(program, make, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives(backend: str) -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        loss = (Weighted.apply(x, weight) ** 3).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return first * x.shape[0]

    check_sizes(program, rows, backend=backend)
