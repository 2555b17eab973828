"""Compiled training: values, effects and gradients are eager's for every way to alias, write and differentiate."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Tolerance, corpus
from tests.differential import check as check_program
from tests.scenarios import Scenario, check, gradients, leaf, scenarios
from torch.autograd import grad

import stator

Tensor = torch.Tensor
TOLERANCE = Tolerance(1e-5, 1e-6)
BACKENDS = ["aot_eager", "inductor"]
PROGRAMS, program = corpus()
by_backend = pytest.mark.parametrize("backend", BACKENDS)


def plain(*shape: int) -> Callable[[], Tensor]:
    return lambda: leaf(*shape, seed=7).detach()


def needing(*shape: int, seed: int = 0) -> Callable[[], Tensor]:
    return functools.partial(leaf, *shape, seed=seed)


# -- outputs ------------------------------------------------------------------------------------------------------


@program(needing(4, 3), needing(3, 5))
def one_output(x: Tensor, w: Tensor) -> Any:
    return torch.tanh(x @ w)


@program(needing(3))
def an_input(x: Tensor) -> Any:
    return x, x * 2


@program(needing(3, 4))
def views_of_an_input(x: Tensor) -> Any:
    return x.t(), x[0], x.exp()


@program(needing(3, 4))
def views_of_each_other(x: Tensor) -> Any:
    y = x.exp()
    return y, y.view(-1), y[1:], y.t()


@program(needing(3, 4))
def views_of_something_not_returned(x: Tensor) -> Any:
    y = x.exp()
    return y[0], y[1], y.view(-1)


@program(needing(3))
def one_output_twice(x: Tensor) -> Any:
    y = x.exp()
    return y, y


@program(needing(3))
def an_output_and_its_detached_alias(x: Tensor) -> Any:
    y = x.exp()
    return y.detach(), y


@program(needing(3, 2))
def a_detached_view_of_an_input(x: Tensor) -> Any:
    return x.detach()[0], x.exp()


@program(needing(5), plain(5))
def outputs_that_need_no_grad(x: Tensor, y: Tensor) -> Any:
    return x * y, y + 1, y.argmax(), (x > 0)


@program(needing(3))
def outputs_that_are_no_tensors(x: Tensor) -> Any:
    return x.exp(), 3, None, "text", x.shape[0]


@program(needing(3, 2))
def an_output_made_under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        z = x.view(-1)
    return y, z, x + y


@program(needing(3))
def grad_enabled_inside_of_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * a
    return b, a


@program(needing(3), needing(3, seed=1))
def an_input_that_is_not_used(x: Tensor, y: Tensor) -> Any:
    return x * 2


# -- mutation -----------------------------------------------------------------------------------------------------


@program(needing(4, 3), plain(3))
def a_buffer_is_written(x: Tensor, buffer: Tensor) -> Any:
    with torch.no_grad():
        buffer.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x * buffer


@program(needing(4, 3), plain(3))
def a_buffer_is_written_after_it_was_used(x: Tensor, buffer: Tensor) -> Any:
    y = x * buffer.clone()
    with torch.no_grad():
        buffer.copy_(x.mean(0))
    return y


@program(needing(3), needing(3, seed=1))
def a_parameter_is_written_under_no_grad(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        w.sub_(0.1 * w)
    return x * w


@program(needing(3), plain(3))
def an_input_gets_a_history_by_being_written(x: Tensor, y: Tensor) -> Any:
    y.add_(x)
    return y * 2


@program(needing(3), plain(3, 3))
def a_view_of_an_input_is_written(x: Tensor, y: Tensor) -> Any:
    y[0].mul_(x)
    y[:, 1] = 3.0
    return y.sum(), x * 2


@program(needing(3), plain(3))
def a_view_of_a_buffer_is_written_under_no_grad(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        y[1:].copy_(x[1:])
    return x * y


@program(needing(3, 2))
def an_intermediate_is_written_in_place(x: Tensor) -> Any:
    y = x * 2
    y[0] = 5.0
    y.mul_(x.detach())
    torch.relu_(y)
    return y


NORMALISED = needing(4, 3, 5), needing(3, seed=1), needing(3, seed=2), lambda: torch.zeros(3), lambda: torch.ones(3)


@program(*NORMALISED)
def batch_norm_statistics(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Any:
    return torch.nn.functional.batch_norm(x, mean, var, w, b, training=True)


@program(*NORMALISED)
def batch_norm_with_update(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Any:
    return torch.ops.aten._batch_norm_with_update(x, w, b, mean, var, 0.1, 1e-5)[:3]


@pytest.mark.filterwarnings("error:.*stator.*")
@by_backend
@pytest.mark.parametrize("program", PROGRAMS)
def test_outputs_effects_and_gradients(program: Any, backend: str) -> None:
    check_program(program, backend=backend, fullgraph=True, gradients=True, tolerance=TOLERANCE)


# -- callers: gradients of some outputs, several backward calls, hooks, second derivatives --------------------------


def three_products(x: Tensor, y: Tensor) -> Any:
    return x.exp(), y.exp(), x * y


def gradients_of_each_subset_of_outputs(compiled):
    f, found = compiled(three_products), []
    for subset in ([0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
        x, y = leaf(3), leaf(3, seed=1)
        outputs = f(x, y)
        found += [grad(sum(outputs[at].sum() for at in subset), [x, y], allow_unused=True, retain_graph=True)]
        found += [gradients(sum(outputs[at].sum() for at in subset), x, y)]
    return found


def an_infinite_activation_of_an_unused_output(compiled):
    x = leaf(3)
    return gradients(compiled(lambda x: (x.exp(), (x * 0).log() * x))(x)[0].sum(), x)


def writes_to_what_is_no_leaf(compiled):
    def written(y: Tensor) -> Any:
        y.mul_(3)
        y[0] = 1.0
        return y.exp(), y[1:]

    def past_autograd(y: Tensor) -> Any:
        y.detach().mul_(3)
        return y + 1, y

    found = []
    for function in (written, past_autograd):
        f = compiled(function)
        for _ in range(2):
            start = leaf(3, 2)
            y = start * 2
            a, b = f(y)
            loss = a.sum() + b.pow(2).sum() + y.sin().sum()
            found.append((gradients(loss, start), y.detach(), a.detach()))
    return found


def several_backward_calls_with_retained_graph(compiled):
    x = leaf(3)
    a, b = compiled(lambda x: (x.exp(), x.sin()))(x)
    a.sum().backward(retain_graph=True)
    b.sum().backward(retain_graph=True)
    return gradients((a * b).sum(), x)


def gradients_accumulate(compiled):
    x, f = leaf(3), compiled(torch.exp)
    f(x).sum().backward()
    return gradients(f(x).sum(), x)


def tangents_of_other_layouts_and_batched(compiled):
    x, f = leaf(3, 4), compiled(lambda x: x.exp() * x)
    tangent = leaf(4, 3, seed=1).detach().t()
    # compiled code gives tangents the result's layout, and gradients follow the tangent's
    found = [grad(f(x), x, one)[0].contiguous() for one in (tangent, tangent.contiguous(), torch.ones(1).expand(3, 4))]
    return found, grad(f(x), x, leaf(5, 3, 4, seed=2).detach(), is_grads_batched=True)


def inputs_that_are_one_tensor_or_share_memory(compiled):
    f, x = compiled(lambda x, y: x.exp() * y), leaf(4)
    return grad(f(x, x).sum(), x), grad(f(x[1:], x[:-1]).sum(), x), grad(f(x, y := leaf(4, seed=1)).sum(), [y])


def hooks_on_parameters_and_outputs(compiled):
    log, x = [], leaf(3)
    x.register_hook(lambda gradient: log.append(gradient.clone()))
    x.register_post_accumulate_grad_hook(lambda tensor: log.append(tensor.grad.clone()))
    a, b = compiled(lambda x: (x.exp(), x * 2))(x)
    a.register_hook(lambda gradient: gradient * 3)
    (a.sum() + b.sum()).backward()
    return log


def a_third_derivative(compiled):
    x = leaf(3)
    value = compiled(lambda x: x.sin() * x.exp())(x).sum()
    for _ in range(3):
        (gradient,) = grad(value, x, create_graph=True)
        value = gradient.sum()
    return value.detach()


def detached_parts_in_the_second_derivative(compiled):
    x = leaf(3)
    (gradient,) = grad(compiled(lambda x: x.detach() * x.pow(3))(x).sum(), x, create_graph=True)
    return grad(gradient.sum(), x)


def _classifier(activation: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), activation, torch.nn.Linear(5, 1))


def a_hessian_vector_product(compiled):
    model = _classifier(torch.nn.Tanh())
    parameters = list(model.parameters())
    found = grad(compiled(model)(leaf(3, 4).detach()).pow(2).sum(), parameters, create_graph=True)
    return grad(sum((one * one).sum() for one in found), parameters)


def a_gradient_penalty(compiled):
    model, x = _classifier(torch.nn.SiLU()), leaf(3, 4)
    (gradient,) = grad(compiled(model)(x).sum(), x, create_graph=True)
    return gradients((gradient.norm(2, dim=1) - 1).pow(2).mean(), *model.parameters())


@by_backend
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_callers(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True, tolerance=TOLERANCE)


# -- autocast around the call: a backward is traced again after it was left -----------------------------------------


def two_products(x: Tensor, w: Tensor) -> Any:
    return x @ w, (x @ w).relu() @ w.t()


@by_backend
@pytest.mark.parametrize("twice", [False, True])
def test_autocast_around_a_call_whose_outputs_are_used_in_part(twice: bool, backend: str) -> None:
    found = []
    for run in (stator.compile(two_products, backend=backend), two_products):
        x, w = leaf(4, 3), leaf(3, 5, seed=1)
        with torch.autocast("cpu", torch.bfloat16):
            output = run(x, w)[1]
        assert output.dtype is torch.bfloat16
        loss = output.float().pow(2).sum()
        if twice:
            (first,) = grad(loss, x, create_graph=True)
            assert first.dtype is torch.float32
            loss = first.pow(2).sum()
        found.append(gradients(loss, x, w))
    for actual, expected in zip(*found, strict=True):
        limits = {"rtol": 5e-2, "atol": 5e-2 * expected.abs().max().item()} if twice else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(actual, expected, **limits)


# -- refused writes and backward calls ------------------------------------------------------------------------------


@by_backend
def test_writing_to_a_leaf_that_requires_grad_fails_as_in_eager(backend: str) -> None:
    compiled = stator.compile(lambda x: x.add_(1), backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it runs eagerly, where the error comes from
        with pytest.raises(RuntimeError, match="leaf"):
            compiled(leaf(3))


@by_backend
def test_a_second_backward_without_retained_graph_fails(backend: str) -> None:
    a = stator.compile(lambda x: x.exp().sin(), backend=backend)(leaf(3))
    a.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()


WRITTEN: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "a saved output": (lambda x, w: x.exp(), False),
    "a view of a saved value": (lambda x, w: x.exp().view(-1), False),
    "a saved input": (lambda x, w: x * w, True),
}


@by_backend
@pytest.mark.parametrize("name", WRITTEN)
def test_writes_to_saved_values_are_noticed(name: str, backend: str) -> None:
    function, to_input = WRITTEN[name]
    w = leaf(3, 2, seed=1).detach()
    y = stator.compile(function, backend=backend)(leaf(3, 2), w)
    (w if to_input else y).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@by_backend
def test_a_version_counter_rises_when_an_input_is_written(backend: str) -> None:
    def written(x: Tensor, buffer: Tensor) -> Any:
        with torch.no_grad():
            buffer.add_(1)
        return x * 2

    buffer = torch.zeros(3)
    before = buffer._version
    stator.compile(written, backend=backend)(leaf(3), buffer)
    assert buffer._version > before


@by_backend
def test_gradcheck(backend: str) -> None:
    compiled = stator.compile(lambda x, w: torch.sigmoid(x @ w).sum(0), backend=backend)
    x, w = leaf(3, 2, dtype=torch.double), leaf(2, 4, seed=1, dtype=torch.double)
    assert torch.autograd.gradcheck(compiled, (x, w))
    assert torch.autograd.gradgradcheck(compiled, (x, w))


# -- outputs that share memory but are no views for autograd (these may run eagerly) -------------------------------


class Reversed(torch.autograd.Function):
    """The identity, with the gradient negated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def reversed_view(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    return y, Reversed.apply(y)


def reversed_input(x: Tensor, w: Tensor) -> Any:
    return Reversed.apply(x), x + 1


def hooked_view(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    z = y.view(-1)
    z.register_hook(lambda gradient: gradient * 5)
    return y, z


def reversed_contents(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    w.copy_(Reversed.apply(y))
    return y, w * 3


def contents_that_are_an_output(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        w.copy_(y)
    return y


@by_backend
@pytest.mark.parametrize(
    "function", [reversed_view, reversed_input, hooked_view, reversed_contents, contents_that_are_an_output]
)
def test_gradients_of_outputs_that_share_memory(function: Callable[..., Any], backend: str) -> None:
    check_program(function, leaf(3, 2), torch.zeros(3, 2), backend=backend, gradients=True, tolerance=TOLERANCE)


@pytest.mark.filterwarnings("ignore:stator. a graph runs eagerly")
@by_backend
def test_a_part_that_was_written_to_is_refused_as_in_eager(backend: str) -> None:
    """Autograd refuses uses of a part of a split behind a write to it, but not the results themselves."""

    def function(x: Tensor) -> Any:
        first, second = torch.split(x * 2, 1)
        with torch.no_grad():
            first.mul_(2)
        return first, second

    x = leaf(2, 3, seed=0)
    for call in (function, stator.compile(function, backend=backend)):
        first, _ = call(x)
        torch.testing.assert_close(first.detach(), 4 * x[:1].detach())
        with pytest.raises(RuntimeError, match="returns multiple views"):
            first.sin()
