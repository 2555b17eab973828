"""torch.func in programs whose sizes change: one version serves them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts, assert_same
from tests.scenarios import BACKENDS
from tests.varying_sizes import check_sizes
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

import stator

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing
NET = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
PARAMETERS = {name: value.detach() for name, value in NET.named_parameters()}


def rows(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 4, requires_grad=True), torch.randn(4, requires_grad=True)


def over_rows(x, weight):
    return vmap(lambda row: (row * weight).sum())(x)


def over_rows_with_their_number(x, weight):
    return vmap(lambda row: (row * weight) / x.shape[0])(x)


def over_columns(x, weight):
    return vmap(lambda column, one: (column.softmax(0) * one).cumsum(0) * column.shape[0], in_dims=(1, 0))(x, weight)


def over_columns_out(x, weight):
    return vmap(lambda column: column.sort().values - column.mean(), in_dims=1, out_dims=1)(x) * weight


def twice(x, weight):
    return vmap(lambda one: vmap(lambda other: (one - other).square().sum())(x))(x)


def twice_over_columns(x, weight):
    return vmap(vmap(lambda one, other: one * other, in_dims=(0, None)), in_dims=(1, 0))(x, weight)


def views(x, weight):
    return vmap(lambda row: row.view(2, 2).t().reshape(-1)[1:])(x)


def products(x, weight):
    return vmap(lambda row: x @ row)(x), vmap(torch.dot)(x, x)


def products_of_matrices(x, weight):
    return vmap(torch.mm)(x[:, :, None], x[:, None, :])


def layers(x, weight):
    return vmap(lambda row: F.linear(F.gelu(row), torch.outer(weight, weight)))(x)


def makes_tensors(x, weight):
    return vmap(lambda column: column * torch.arange(column.shape[0]) + torch.zeros_like(column), in_dims=1)(x)


def indices(x, weight):
    return vmap(lambda row: torch.stack((row, weight))[:, torch.tensor([1, 2])])(x)


def of_sum(x, weight):
    return grad(lambda y: (y.sin() * weight).sum() / y.shape[0])(x)


def of_sum_with_value(x, weight):
    return grad_and_value(lambda y: (y * weight).tanh().mean())(x)


def per_sample(x, weight):
    return vmap(grad(lambda one, row: (row * one).sin().sum()), (None, 0))(weight, x)


def per_sample_of_a_model(x, weight):
    def loss(parameters, row):
        return functional_call(NET, parameters, (row,)).square().mean()

    return vmap(grad(loss), (None, 0))(PARAMETERS, x)


def forward_mode(x, weight):
    return jvp(lambda y: y.sin() * weight * y.shape[0], (x,), (x.detach(),))


def pulled_back(x, weight):
    y, pull_back = vjp(lambda y: y.sin() * weight, x)
    return y, pull_back(torch.ones_like(y) * x.shape[0])


def jacobian(x, weight):
    return jacrev(lambda y: y.sin() * weight)(x), jacfwd(lambda y: y.cos())(x[:, 0].contiguous())


def second_derivative(x, weight):
    return hessian(lambda y: (y.sin() ** 2).sum())(x[:, 0].contiguous())


PROGRAMS = [
    over_rows,
    over_rows_with_their_number,
    over_columns,
    over_columns_out,
    twice,
    twice_over_columns,
    views,
    products,
    products_of_matrices,
    layers,
    makes_tensors,
    indices,
    of_sum,
    of_sum_with_value,
    per_sample,
    per_sample_of_a_model,
    forward_mode,
    pulled_back,
    jacobian,
    second_derivative,
]


@pytest.mark.each_pair
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_many_sizes_need_two_versions(program: Any, backend: str, dynamic: bool | None) -> None:
    check_sizes(program, rows, backend=backend, dynamic=dynamic)


def over_normalized_rows(function: Any) -> Any:
    """The batching rule of a layer norm's gradient takes numbers."""
    return lambda column: vmap(grad(lambda row: function(F.layer_norm(row, row.shape))))(column.expand(3, -1))


@pytest.mark.parametrize("transform", [jacfwd, hessian, over_normalized_rows])
def test_sizes_that_a_transform_cannot_do_without_are_constants(transform: Any) -> None:
    """Forward mode over a column: C++ asks for the offset of a tangent."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return transform(lambda column: (column.sin() ** 2).sum())(x[:, 0]), y * y.shape[0]

    compiled = stator.compile(program, backend="eager", dynamic=True)
    counts = Counts()
    for size, other in ((5, 3), (5, 4), (7, 4)):
        x, y = torch.randn(size, 2), torch.randn(other)
        assert_same(compiled(x, y), program(x, y))
    assert counts.breaks == 0 and counts.compilations == 2
