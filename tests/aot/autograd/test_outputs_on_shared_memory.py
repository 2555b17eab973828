"""Results that share memory with an input or another result, behind a custom function: autograd sees no views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import check, corpus
from tests.wrapper_tensors import nested, pair, values
from torch.testing._internal.two_tensor import TwoTensor

import stator

BACKENDS = ("eager", "aot_eager", "inductor")
programs, program = corpus()


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.factor * gradient, None


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


class Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[1:].t()

    @staticmethod
    def backward(ctx, gradient):
        return torch.cat([torch.ones(1, 4), gradient.t() * 3])


ONE = (lambda: values(4, 4, grad=True),)
TWO = (*ONE, lambda: values(4, 4, seed=1))


@program(*ONE)
def of_an_input(x):
    return Reversed.apply(x, 2.0)


@program(*ONE)
def the_input_as_returned(x):
    return Copied.apply(x), x * 2


@program(*ONE)
def of_another_result(x):
    y = x.sin()
    return y, Reversed.apply(y, 2.0), Copied.apply(y)


@program(*ONE)
def one_of_another(x):
    y = Reversed.apply(x, 2.0)
    return y, Reversed.apply(y, 3.0), y[1:], x.view(-1)


@program(*ONE)
def of_other_sizes(x):
    return Rows.apply(x), Rows.apply(x * 2)[0]


@program(*TWO)
def of_a_written_input(x, y):
    y.add_(x.detach())
    return Copied.apply(x) * 2, Reversed.apply(x[1:], 2.0), y


@program(lambda: values(4, 4), lambda: values(4, 4, grad=True))
def of_an_input_with_new_contents(x, y):
    x.copy_(y * 2)
    return Copied.apply(x), x


@program(lambda: values(4, 4, grad=True), lambda: values(4, 4, seed=1, grad=True))
def of_inner_tensors(a, b):
    return TwoTensor(a, b).view(-1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", programs)
def test_as_in_eager(program: Any, backend: str) -> None:
    check(program, backend=backend, fullgraph=True, gradients=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_later_writes_are_refused_as_in_eager(backend: str) -> None:
    for function in (of_an_input, stator.compile(of_an_input, backend=backend, fullgraph=True)):
        x = values(4, 4, grad=True)
        result = function(x)
        with torch.no_grad():
            x.add_(1)
        assert torch.equal(result, x) and result._version == x._version == 1
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            result.add_(1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivative(backend: str) -> None:
    def second(function: Any) -> torch.Tensor:
        x = values(4, 4, grad=True)
        (first,) = torch.autograd.grad(function(x).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    found, expected = second(stator.compile(of_an_input, backend=backend, fullgraph=True)), second(of_an_input)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pieces_of_nested_tensors(backend: str) -> None:
    def gradients(function: Any) -> Any:
        x = nested(2, 3, 1, grad=True)
        pieces = function(x)
        (gradient,) = torch.autograd.grad(sum(one.sin().sum() for one in pieces), x)
        return [*pieces, gradient.values()]

    function = lambda x: (*x.unbind(), *(x * 2).unbind())  # noqa: E731
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(function))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change(backend: str) -> None:
    compiled = stator.compile(of_an_input, backend=backend)
    for size in (3, 4, 5):
        x = values(size, 4, grad=True)
        result = compiled(x)
        result.sum().backward()
        assert result.data_ptr() == x.data_ptr() and torch.equal(x.grad, torch.full((size, 4), -2.0))


def test_a_wrapped_pair_keeps_its_memory() -> None:
    x = pair(4, grad=True)
    result = stator.compile(lambda x: Copied.apply(x * 1), backend="aot_eager", fullgraph=True)(x)
    result.sum().backward()
    assert torch.equal(x.grad.a, torch.full((4,), 5.0))
