"""Compiled training: values, effects and gradients equal to eager's, in every way a program can alias and mutate.

Each program is a function of tensors; `check` runs it compiled and eagerly on equal inputs and compares everything that
can be seen afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import stator

TOLERANCE = dict(rtol=1e-5, atol=1e-6)


@pytest.fixture(params=["aot_eager", "inductor"], autouse=True)
def backend(request: pytest.FixtureRequest):
    torch.manual_seed(0)
    stator.reset()
    yield request.param
    stator.reset()


@pytest.fixture(autouse=True)
def nothing_runs_eagerly():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*stator.*")
        yield


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, **options).requires_grad_()


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def loss_of(outputs: Sequence[Any]) -> torch.Tensor | None:
    """Weighs every differentiable output differently."""
    parts = [
        (output * (index + 1)).sin().sum()
        for index, output in enumerate(outputs)
        if isinstance(output, torch.Tensor) and output.requires_grad
    ]
    return torch.stack(parts).sum() if parts else None


def assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.requires_grad == expected.requires_grad
        assert actual.is_leaf == expected.is_leaf
        assert actual.stride() == expected.stride()
        torch.testing.assert_close(actual, expected, **TOLERANCE)
    else:
        assert actual == expected


def check(
    backend: str,
    program: Callable[..., Any],
    *inputs: torch.Tensor,
    loss: Callable[[Sequence[Any]], torch.Tensor | None] = loss_of,
    calls: int = 2,
) -> None:
    """Compiled and eager alike in each of `calls` calls: outputs, contents of inputs afterwards, their gradients."""
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for _ in range(calls):
        ours, theirs = copies(inputs), copies(inputs)
        actual, expected = as_tuple(compiled(*ours)), as_tuple(program(*theirs))
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e)
        for first in range(len(expected)):
            for second in range(first):
                assert (actual[first] is actual[second]) == (expected[first] is expected[second])
        for a, e in ((loss(actual), loss(expected)),):
            assert (a is None) == (e is None)
            if a is not None and e is not None:
                a.backward()
                e.backward()
        for a, e in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, e, **TOLERANCE)
            if not e.is_leaf:  # written to, it has a history and no gradient of its own
                continue
            assert (a.grad is None) == (e.grad is None), "a gradient is missing, or there is one too many"
            if e.grad is not None:
                assert a.grad.stride() == e.grad.stride()
                torch.testing.assert_close(a.grad, e.grad, **TOLERANCE)


# -- outputs ------------------------------------------------------------------------------------------------------


def test_one_output(backend: str) -> None:
    check(backend, lambda x, w: torch.tanh(x @ w), leaf(4, 3), leaf(3, 5))


def test_an_output_that_is_an_input(backend: str) -> None:
    check(backend, lambda x: (x, x * 2), leaf(3))


def test_an_output_that_is_a_view_of_an_input(backend: str) -> None:
    check(backend, lambda x: (x.t(), x[0], x.exp()), leaf(3, 4))


def test_outputs_that_are_views_of_each_other(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.exp()
        return y, y.view(-1), y[1:], y.t()

    check(backend, program, leaf(3, 4))


def test_outputs_that_are_views_of_something_not_returned(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.exp()
        return y[0], y[1], y.view(-1)

    check(backend, program, leaf(3, 4))


def test_the_same_output_twice(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.exp()
        return y, y

    check(backend, program, leaf(3))


def test_an_output_and_its_detached_alias(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.exp()
        return y.detach(), y

    check(backend, program, leaf(3))


def test_a_detached_view_of_an_input(backend: str) -> None:
    check(backend, lambda x: (x.detach()[0], x.exp()), leaf(3, 2))


def test_outputs_that_need_no_grad(backend: str) -> None:
    check(backend, lambda x, y: (x * y, y + 1, y.argmax(), (x > 0)), leaf(5), torch.randn(5))


def test_outputs_that_are_no_tensors(backend: str) -> None:
    check(backend, lambda x: (x.exp(), 3, None, "text", x.shape[0]), leaf(3))


def test_an_output_made_under_no_grad(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
            z = x.view(-1)
        return y, z, x + y

    check(backend, program, leaf(3, 2))


def test_grad_enabled_inside_of_no_grad(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            a = x * 2
            with torch.enable_grad():
                b = x * a
        return b, a

    check(backend, program, leaf(3))


# -- gradients that are not asked for -----------------------------------------------------------------------------


def test_an_unused_output_gives_no_gradient_to_what_only_it_reads(backend: str) -> None:
    check(
        backend,
        lambda x, y: (x.exp(), y.exp(), x * y),
        leaf(3),
        leaf(3),
        loss=lambda outputs: outputs[0].sum(),
        calls=2,
    )


def test_every_subset_of_outputs_can_be_differentiated(backend: str) -> None:
    program = lambda x, y: (x.exp(), y.exp(), x * y)  # noqa: E731
    compiled = stator.compile(program, backend=backend)
    for subset in ([0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
        x, y = leaf(3), leaf(3)
        grads = []
        for run in (compiled, program):
            outputs = run(x, y)
            grads.append(torch.autograd.grad(sum(outputs[i].sum() for i in subset), [x, y], allow_unused=True))
        for a, e in zip(*grads, strict=True):
            assert (a is None) == (e is None)
            if e is not None:
                torch.testing.assert_close(a, e, **TOLERANCE)


def test_an_infinite_activation_of_an_unused_output_does_not_reach_the_gradient(backend: str) -> None:
    check(backend, lambda x: (x.exp(), (x * 0).log() * x), leaf(3), loss=lambda outputs: outputs[0].sum())


def test_an_input_that_is_not_used_gets_no_gradient(backend: str) -> None:
    check(backend, lambda x, y: x * 2, leaf(3), leaf(3))


def test_an_input_that_requires_no_grad(backend: str) -> None:
    check(backend, lambda x, y: x * y, leaf(3), torch.randn(3))


# -- mutation -----------------------------------------------------------------------------------------------------


def test_a_buffer_is_written(backend: str) -> None:
    def program(x: torch.Tensor, buffer: torch.Tensor) -> Any:
        with torch.no_grad():
            buffer.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x * buffer

    check(backend, program, leaf(4, 3), torch.randn(3))


def test_a_buffer_is_written_after_it_was_used(backend: str) -> None:
    def program(x: torch.Tensor, buffer: torch.Tensor) -> Any:
        y = x * buffer.clone()
        with torch.no_grad():
            buffer.copy_(x.mean(0))
        return y

    check(backend, program, leaf(4, 3), torch.randn(3))


def test_a_parameter_is_written_under_no_grad(backend: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.no_grad():
            w.sub_(0.1 * w)
        return x * w

    check(backend, program, leaf(3), leaf(3))


def test_an_input_gets_a_history_by_being_written(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        y.add_(x)
        return y * 2

    check(backend, program, leaf(3), torch.randn(3))


def test_a_view_of_an_input_is_written(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        y[0].mul_(x)
        y[:, 1] = 3.0
        return y.sum(), x * 2

    check(backend, program, leaf(3), torch.randn(3, 3))


def test_a_view_of_a_buffer_is_written_under_no_grad(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.no_grad():
            y[1:].copy_(x[1:])
        return x * y

    check(backend, program, leaf(3), torch.randn(3))


def test_an_intermediate_is_written_in_place(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        y[0] = 5.0
        y.mul_(x.detach())
        torch.relu_(y)
        return y

    check(backend, program, leaf(3, 2))


def test_an_input_that_is_no_leaf_is_written(backend: str) -> None:
    def inner(y: torch.Tensor) -> Any:
        y.mul_(3)
        y[0] = 1.0
        return y.exp(), y[1:]

    compiled = stator.compile(inner, backend=backend, fullgraph=True)
    x = torch.randn(3, 2)
    gradients = []
    for run in (compiled, inner):
        start = x.clone().requires_grad_()
        y = start * 2
        a, b = run(y)
        (a.sum() + b.pow(2).sum() + y.sin().sum()).backward()
        gradients.append((start.grad, y.detach(), a.detach()))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_an_input_that_is_no_leaf_is_written_past_autograd(backend: str) -> None:
    def inner(y: torch.Tensor) -> Any:
        y.detach().mul_(3)
        return y + 1

    compiled = stator.compile(inner, backend=backend, fullgraph=True)
    x = torch.randn(3, 2)
    gradients = []
    for run in (compiled, inner):
        start = x.clone().requires_grad_()
        y = start + 2
        a = run(y)
        (a.pow(2).sum() + y.pow(2).sum()).backward()
        gradients.append((start.grad, y.detach(), a.detach()))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


def test_writing_to_a_leaf_that_requires_grad_fails_as_in_eager(backend: str) -> None:
    compiled = stator.compile(lambda x: x.add_(1), backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it runs eagerly, where the error comes from
        with pytest.raises(RuntimeError, match="leaf"):
            compiled(leaf(3))


def test_batch_norm_statistics(backend: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        return torch.nn.functional.batch_norm(x, mean, var, w, b, training=True)

    check(backend, program, leaf(4, 3, 5), leaf(3), leaf(3), torch.zeros(3), torch.ones(3))


def test_batch_norm_with_update(backend: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> Any:
        return torch.ops.aten._batch_norm_with_update(x, w, b, mean, var, 0.1, 1e-5)[:3]

    check(backend, program, leaf(4, 3, 5), leaf(3), leaf(3), torch.zeros(3), torch.ones(3))


def test_a_version_counter_rises_when_an_input_is_written(backend: str) -> None:
    def program(x: torch.Tensor, buffer: torch.Tensor) -> Any:
        with torch.no_grad():
            buffer.add_(1)
        return x * 2

    buffer = torch.zeros(3)
    before = buffer._version
    stator.compile(program, backend=backend)(leaf(3), buffer)
    assert buffer._version > before


# -- the backward pass --------------------------------------------------------------------------------------------


def test_several_backward_calls_with_retained_graph(backend: str) -> None:
    program = lambda x: (x.exp(), x.sin())  # noqa: E731
    x, y = leaf(3), None
    y = x.detach().clone().requires_grad_()
    for run, start in ((stator.compile(program, backend=backend), x), (program, y)):
        a, b = run(start)
        a.sum().backward(retain_graph=True)
        b.sum().backward(retain_graph=True)
        (a * b).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, **TOLERANCE)


def test_a_second_backward_without_retained_graph_fails(backend: str) -> None:
    a = stator.compile(lambda x: x.exp().sin(), backend=backend)(leaf(3))
    a.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()


def test_gradients_accumulate_into_existing_ones(backend: str) -> None:
    program = lambda x: x.exp()  # noqa: E731
    x = leaf(3)
    compiled = stator.compile(program, backend=backend)
    compiled(x).sum().backward()
    first = x.grad.clone()
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * first, **TOLERANCE)


def test_autograd_grad_of_some_inputs(backend: str) -> None:
    program = lambda x, y: (x * y).exp()  # noqa: E731
    x, y = leaf(3), leaf(3)
    (actual,) = torch.autograd.grad(stator.compile(program, backend=backend)(x, y).sum(), [y])
    (expected,) = torch.autograd.grad(program(x, y).sum(), [y])
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def test_writing_to_a_saved_output_is_noticed(backend: str) -> None:
    y = stator.compile(lambda x: x.exp(), backend=backend)(leaf(3))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writing_to_a_view_of_a_saved_value_is_noticed(backend: str) -> None:
    y = stator.compile(lambda x: x.exp().view(-1), backend=backend)(leaf(3, 2))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writing_to_a_saved_input_is_noticed(backend: str) -> None:
    x, w = leaf(3), torch.randn(3)
    y = stator.compile(lambda x, w: x * w, backend=backend)(x, w)
    w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_tangent_with_other_strides(backend: str) -> None:
    program = lambda x: x.exp()  # noqa: E731
    x = leaf(3, 4)
    tangent = torch.randn(4, 3).t()
    compiled = stator.compile(program, backend=backend)
    for weight in (tangent, tangent.contiguous(), torch.ones(1).expand(3, 4)):
        (actual,) = torch.autograd.grad(compiled(x), x, weight)
        (expected,) = torch.autograd.grad(program(x), x, weight)
        torch.testing.assert_close(actual, expected, **TOLERANCE)


def test_batched_tangents(backend: str) -> None:
    program = lambda x: x.exp() * x  # noqa: E731
    x, tangents = leaf(3), torch.randn(5, 3)
    (actual,) = torch.autograd.grad(stator.compile(program, backend=backend)(x), x, tangents, is_grads_batched=True)
    (expected,) = torch.autograd.grad(program(x), x, tangents, is_grads_batched=True)
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def test_the_same_tensor_given_twice(backend: str) -> None:
    program = lambda x, y: x.exp() * y  # noqa: E731
    x = leaf(3)
    (actual,) = torch.autograd.grad(stator.compile(program, backend=backend)(x, x).sum(), x)
    (expected,) = torch.autograd.grad(program(x, x).sum(), x)
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def test_inputs_that_share_memory(backend: str) -> None:
    program = lambda x, y: x.exp() * y  # noqa: E731
    x = leaf(4)
    (actual,) = torch.autograd.grad(stator.compile(program, backend=backend)(x[1:], x[:-1]).sum(), x)
    (expected,) = torch.autograd.grad(program(x[1:], x[:-1]).sum(), x)
    torch.testing.assert_close(actual, expected, **TOLERANCE)


def test_hooks_on_parameters_and_outputs_fire_as_in_eager(backend: str) -> None:
    program = lambda x: (x.exp(), x * 2)  # noqa: E731
    seen: list[list[torch.Tensor]] = []
    for run in (stator.compile(program, backend=backend), program):
        found: list[torch.Tensor] = []
        x = torch.arange(3.0).requires_grad_()
        x.register_hook(lambda grad, into=found: into.append(grad))
        x.register_post_accumulate_grad_hook(lambda tensor, into=found: into.append(tensor.grad.clone()))
        a, b = run(x)
        a.register_hook(lambda grad: grad * 3)
        (a.sum() + b.sum()).backward()
        seen.append(found)
    for a, e in zip(*seen, strict=True):
        torch.testing.assert_close(a, e, **TOLERANCE)


# -- differentiating the backward ---------------------------------------------------------------------------------


def test_a_hessian_vector_product(backend: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    x, parameters = torch.randn(3, 4), list(model.parameters())

    def product(run: Callable[..., torch.Tensor]) -> Sequence[torch.Tensor]:
        grads = torch.autograd.grad(run(x).pow(2).sum(), parameters, create_graph=True)
        return torch.autograd.grad(sum((grad * grad).sum() for grad in grads), parameters)

    for a, e in zip(product(stator.compile(model, backend=backend)), product(model), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


def test_a_third_derivative(backend: str) -> None:
    def third(run: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        value = run(x).sum()
        for _ in range(3):
            (grad,) = torch.autograd.grad(value, x, create_graph=True)
            value = grad.sum()
        return value

    program = lambda x: x.sin() * x.exp()  # noqa: E731
    x = leaf(3)
    torch.testing.assert_close(third(stator.compile(program, backend=backend), x), third(program, x), **TOLERANCE)


def test_detached_parts_stay_detached_in_the_second_derivative(backend: str) -> None:
    program = lambda x: x.detach() * x.pow(3)  # noqa: E731
    x = leaf(3)
    found = []
    for run in (stator.compile(program, backend=backend), program):
        (grad,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.sum(), x)[0])
    torch.testing.assert_close(*found, **TOLERANCE)


def test_a_gradient_penalty(backend: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.SiLU(), torch.nn.Linear(5, 1))
    compiled = stator.compile(model, backend=backend)
    x = leaf(3, 4)
    found = []
    for run in (compiled, model):
        model.zero_grad()
        (grad,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        (grad.norm(2, dim=1) - 1).pow(2).mean().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    for a, e in zip(*found, strict=True):
        assert (a is None) == (e is None)
        if e is not None:
            torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


def test_gradcheck(backend: str) -> None:
    compiled = stator.compile(lambda x, w: torch.sigmoid(x @ w).sum(0), backend=backend)
    x, w = leaf(3, 2, dtype=torch.double), leaf(2, 4, dtype=torch.double)
    assert torch.autograd.gradcheck(compiled, (x, w))
    assert torch.autograd.gradgradcheck(compiled, (x, w))


# -- autocast around the call: a backward is traced again after it was left -----------------------------------------


def two_products(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x @ w, (x @ w).relu() @ w.t()


def test_autocast_around_a_call_whose_outputs_are_used_in_part(backend: str) -> None:
    found = []
    for run in (stator.compile(two_products, backend=backend), two_products):
        torch.manual_seed(0)
        x, w = leaf(4, 3), leaf(3, 5)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = run(x, w)
        outputs[1].float().pow(2).sum().backward()
        assert outputs[1].dtype is torch.bfloat16
        found.append((x.grad, w.grad))
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_autocast_around_a_call_that_is_differentiated_twice(backend: str) -> None:
    found = []
    for run in (stator.compile(two_products, backend=backend), two_products):
        torch.manual_seed(0)
        x, w = leaf(4, 3), leaf(3, 5)
        with torch.autocast("cpu", torch.bfloat16):
            output = run(x, w)[1].float().pow(2).sum()
        (grad,) = torch.autograd.grad(output, x, create_graph=True)
        assert grad.dtype is torch.float32
        grad.pow(2).sum().backward()
        found.append((x.grad, w.grad))
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=5e-2, atol=5e-2 * expected.abs().max().item())


# -- outputs whose memory says one thing and autograd another (these may run eagerly) -------------------------------


class Reversed(torch.autograd.Function):
    """The identity, with the gradient negated."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


def reversed_view(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    return y, Reversed.apply(y)


def reversed_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    return Reversed.apply(x), x + 1


def hooked_view(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    z = y.view(-1)
    z.register_hook(lambda grad: grad * 5)
    return y, z


def reversed_contents(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    w.copy_(Reversed.apply(y))
    return y, w * 3


def contents_that_are_an_output(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        w.copy_(y)
    return y


@pytest.mark.parametrize(
    "program", [reversed_view, reversed_input, hooked_view, reversed_contents, contents_that_are_an_output]
)
def test_gradients_of_outputs_that_share_memory(backend: str, program: Callable[..., Any]) -> None:
    found = []
    for run in (stator.compile(program, backend=backend), program):
        torch.manual_seed(0)
        x, w = leaf(3, 2), torch.zeros(3, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = loss_of(as_tuple(run(x, w)))
        assert loss is not None
        loss.backward()
        found.append((x.grad, w.detach()))
    for actual, expected in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, **TOLERANCE)
