"""Tensors made of other tensors that captured code makes of tensors that require grad: by their class, and by autograd
functions. Results, leaves and gradients equal eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import BY_BACKEND, assert_same, corpus
from tests.wrapper_tensors import Labelled, Quantized, pair, values
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import stator
from stator.base.errors import Unsupported

BACKENDS = ("eager", "aot_eager", "inductor")
programs, program = corpus()


TWO = (lambda: values(4, 4, grad=True), lambda: values(4, 4, seed=1, grad=True))


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The results, and all gradients after a backward from each result."""
    results = function(*arguments)
    tensors = [one for one in pytree.tree_leaves(results) if isinstance(one, torch.Tensor)]
    for one in tensors:
        if one.requires_grad:
            one.sum().backward(retain_graph=True)
    leaves = [one for one in (*arguments, *tensors) if one.is_leaf]
    return results, arguments, [one.grad for one in leaves]


class Fixed(Labelled):
    """Requires grad as its maker says, whatever its part does."""

    @staticmethod
    def __new__(cls, data: torch.Tensor, label: int) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, requires_grad=label > 0)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Fixed:
        return Fixed(inner["inner"], context["label"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, named = pytree.tree_map_only(Fixed, lambda one: one.inner, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, lambda one: Fixed(one, 0), func(*given, **named))


# ---- made by their class ----


@program(*TWO)
def made(a, b):
    return TwoTensor(a, b)


@program(*TWO)
def used(a, b):
    return TwoTensor(a, b).sin() * 2


@program(*TWO)
def parts(a, b):
    made = TwoTensor(a, b)
    return a * 2 + made.a, (made * b.detach()).b, made.b is b


@program(*TWO)
def of_results(a, b):
    c = a * 2
    return TwoTensor(c, b + 1), c, b


@program(*TWO)
def two_levels(a, b):
    inner = TwoTensor(a, b) * 2
    return TwoTensor(inner, inner + 1), TwoTensor(TwoTensor(a, b), TwoTensor(b, a)).cos()


@program(*TWO)
def beside_its_parts(a, b):
    return TwoTensor(a, b) * a.sum(), a


@program(*TWO)
def without_grad_mode(a, b):
    with torch.no_grad():
        made = TwoTensor(a, b)
        return made, made * 3, a * 2


@program(*TWO)
def written_without_grad_mode(a, b):
    made = TwoTensor(a, b)
    with torch.no_grad():
        made.mul_(2)
    return a * b


@program(*TWO)
def detached(a, b):
    return TwoTensor(a, b).detach(), a + b


@program(*TWO)
def of_another_class(a, b):
    return Labelled(a, 3) * 2, Labelled(b, 2).labelled(1), b @ Quantized.of(a)


@program(*TWO)
def that_does_not_require_grad(a, b):
    quantized = Quantized.of(a)
    return quantized, quantized.scale * 2, b @ quantized


@program(lambda: values(3), lambda: values(3, seed=1))
def that_requires_grad_by_itself(a, b):
    return Fixed(a, 1), Fixed(a * 2, 1) * b, Fixed(b, 0) * 3


@program(*TWO)
def parameter(a, b):
    return F.linear(a, nn.Parameter(TwoTensor(a, b)))


linear = nn.Linear(4, 4, bias=False)


@program(*TWO)
def in_place_of_a_parameter(a, b):
    return torch.func.functional_call(linear, {"weight": TwoTensor(a, b)}, (b,))


# ---- made by autograd functions ----


class FromLocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local):
        local = local.detach()
        return TwoTensor(local, local * 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.a + gradient.b if isinstance(gradient, TwoTensor) else gradient * 5


class ToLocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor.a.view_as(tensor.a)

    @staticmethod
    def backward(ctx, gradient):
        return TwoTensor(gradient * 2, gradient * 3)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, factor):
        ctx.factor = factor
        return tensor * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        return Quantized.of(weight)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class QuantizedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ (weight.numbers.float() * weight.scale)

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return gradient @ (weight.numbers.float() * weight.scale).t(), None


class Product(torch.autograd.Function):
    """Makes a wrapper, and saves it beside its result."""

    @staticmethod
    def forward(ctx, a, b):
        made = TwoTensor(a, b)
        square = made * made
        ctx.save_for_backward(made, square)
        return made.a * made.b

    @staticmethod
    def backward(ctx, gradient):
        made, square = ctx.saved_tensors
        return gradient * made.b + square.a, gradient * made.a + square.b


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        return TwoTensor(a.detach() * 2, b.detach() * 3), (a * b).sum()

    @staticmethod
    def backward(ctx, wrapped, plain):
        (a,) = ctx.saved_tensors
        if isinstance(wrapped, TwoTensor):
            return wrapped.a * 2 + plain, wrapped.b * 3 + plain * a
        return wrapped + plain, wrapped + plain * 7


class WithoutZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.set_materialize_grads(False)
        return TwoTensor(a.detach(), a.detach() * 2), a.sum()

    @staticmethod
    def backward(ctx, wrapped, plain):
        total = torch.zeros(4, 4) if wrapped is None else wrapped.a * 7
        return total if plain is None else total + plain * 2


class Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        tensor = tensor.detach()
        return TwoTensor(tensor, tensor * 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.a + gradient.b


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        tensor.mul_(3)
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@program(*TWO)
def returned(a, b):
    return FromLocal.apply(a * b), FromLocal.apply(b) * 2


@program(*TWO)
def there_and_back(a, b):
    return ToLocal.apply(FromLocal.apply(a) * b) * 3


@program(*TWO)
def through_several(a, b):
    made = FromLocal.apply(a)
    for factor in (1.0, 2.0):
        made = Scale.apply(made, factor) + FromLocal.apply(b)
    return ToLocal.apply(made)


@program(*TWO)
def strides_of_the_gradient(a, b):
    return FromLocal.apply(a).t() * 2, FromLocal.apply(b).sum()


@program(*TWO)
def quantized(a, b):
    return b @ Quantize.apply(a), QuantizedLinear.apply(b, Quantized.of(a)), QuantizedLinear.apply(a, Quantize.apply(b))


@program(*TWO)
def saved(a, b):
    return Product.apply(a * 2, b)


@program(*TWO)
def one_of_two_results(a, b):
    return Both.apply(a, b)[1] * 2


@program(*TWO)
def both_results(a, b):
    wrapped, plain = Both.apply(a, b)
    return ToLocal.apply(wrapped) * plain


@program(*TWO)
def absent_gradients(a, b):
    wrapped, plain = WithoutZeros.apply(a)
    return ToLocal.apply(WithoutZeros.apply(b)[0]) + 1, ToLocal.apply(wrapped) * plain, WithoutZeros.apply(b)[1] * 3


@program(*TWO)
def wrapped_twice(a, b):
    return Wrap.apply(FromLocal.apply(a)) * 2, b


@program(*TWO)
def written(a, b):
    return ToLocal.apply(Tripled.apply(FromLocal.apply(a) * 1) * b)


@program(*TWO)
def in_checkpoint(a, b):
    run = lambda a, b: ToLocal.apply(FromLocal.apply(a) * b).sin()  # noqa: E731
    return torch.utils.checkpoint.checkpoint(run, a, b, use_reentrant=False)


@program(lambda: pair(4, grad=True), lambda: values(4, grad=True))
def of_inputs(t, b):
    return ToLocal.apply(Scale.apply(t, 2.0)) * b


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", programs)
def test_as_in_eager(program: Any, backend: str) -> None:
    stator.reset()
    compiled = stator.compile(program.function, backend=backend, fullgraph=True)
    for _ in range(2):
        found, expected = (outcome(one, program.arguments()) for one in (compiled, program.function))
        assert_same(found, expected, BY_BACKEND[backend])


def test_a_returned_part_is_the_input() -> None:
    a, b = values(3, grad=True), values(3, seed=1, grad=True)
    made = stator.compile(lambda a, b: TwoTensor(a, b), backend="inductor", fullgraph=True)(a, b)
    assert made.a is a and made.b is b


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_to_a_returned_leaf_are_not_compiled(backend: str) -> None:
    """The compiled graph runs before the leaf is made, so that it could not reach the leaf."""

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        made = TwoTensor(a, b)
        return made, ToLocal.apply(made * 2)

    with pytest.raises(Unsupported, match="gradients flow to a tensor that the graph makes"):
        stator.compile(program, backend=backend, fullgraph=True)(values(3, grad=True), values(3, grad=True))


def test_the_backward_of_an_unexpected_gradient_is_refused_in_words() -> None:
    compiled = stator.compile(lambda a: Wrap.apply(a), backend="eager", fullgraph=True)
    made = compiled(values(3, grad=True))
    with pytest.raises(RuntimeError, match="the backward of Wrap for gradients of class Labelled"):
        made.backward(Labelled(values(3), 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_step(backend: str) -> None:
    """A module that wraps its weight in every call trains as in eager."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(values(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ToLocal.apply(FromLocal.apply(x) @ FromLocal.apply(self.weight)).tanh()

    def trained(compiled: bool) -> Any:
        model = Model()
        run = stator.compile(model, backend=backend, fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run(values(5, 4)).square().sum().backward()
            optimizer.step()
        return model.weight

    stator.reset()
    assert_same(trained(True), trained(False), BY_BACKEND[backend])
