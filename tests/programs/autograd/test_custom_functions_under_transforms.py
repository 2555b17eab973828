"""Custom autograd.Functions under torch.func inside compiled code, beside eager: one graph, same results and gradients.

Derivatives and vmap rules of the functions here are not the true ones, so that torch's own cannot stand in for them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.programs.scenarios import BACKENDS, Scenario, check, leaf, may_break, scenarios
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import stator
from stator.base.errors import Unsupported
from stator.dynamo.capture import capture
from stator.graph.printer import load_graph, print_graph

SCENARIOS: list[Any] = []
SCALE = torch.full((4,), 0.5)
# The recorded backward computes on tensors whose mapped dimension was moved to the front, so that the gradient by the
# transform's argument has its strides; eager's batched backward keeps the argument's.
MOVED = ("mapped_over_another_dimension",)


class Generated(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, power=3):
        return x**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, power = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.power = power

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 5 * x ** (ctx.power - 1), None

    @staticmethod
    def jvp(ctx, t, power):
        (x,) = ctx.saved_tensors
        assert power is None
        return t * 7 * x ** (ctx.power - 1)


class Own(Function):
    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[0])

    @staticmethod
    def backward(ctx, g, h):
        x, y, product = ctx.saved_tensors
        return g * y * 3 + h, g * x * 4 + h * product

    @staticmethod
    def vmap(info, in_dims, x, y):
        first = [t.unsqueeze(0) if dim is None else t.movedim(dim, 0) for dim, t in zip(in_dims, (x, y), strict=True)]
        product, total = Own.apply(*torch.broadcast_tensors(*first))
        return (product * info.batch_size, total), 0 if info.randomness == "error" else (0, 0)


class KeepsMore(Function):
    """What setup_context computes is kept; one result has no gradient; free tensors are read."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y * SCALE, (x > y).float()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.twice = inputs[0] * 2
        ctx.mask = output[1]

    @staticmethod
    def backward(ctx, g, h):
        return g * ctx.twice, g * ctx.mask * SCALE


class WithoutZeros(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b if b is None else b * 3
        return a * 2 if b is None else a * b


class Once(Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * 2


class NoBackward(Function):
    @staticmethod
    def forward(x):
        return x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x):
        return x + info.batch_size, in_dims[0]


class OldStyle(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def both(a, b):
    first, second = Own.apply(a, b)
    return (first * 2 + second).sum()


def of(program):
    """Two calls with other values, without and with gradients outside of the transform."""

    def run(compiled):
        f = compiled(program)
        found = []
        for seed in (0, 5):
            x, y = leaf(3, 4, seed=seed), leaf(3, 4, seed=seed + 1)
            found.append(f(x.detach(), y.detach()))
            leaves = torch.utils._pytree.tree_leaves(f(x, y))
            loss = sum((one * one).sum() for one in leaves if one.requires_grad)
            if isinstance(loss, torch.Tensor):
                grads = torch.autograd.grad(loss, (x, y), allow_unused=True)
                if program.__name__ in MOVED:
                    grads = [grad.contiguous() for grad in grads]
                found.append(grads)
        return found

    SCENARIOS.append(pytest.param(run, id=program.__name__))
    return program


@of
def mapped(x, y):
    return vmap(Generated.apply)(x)


@of
def mapped_over_another_dimension(x, y):
    return vmap(lambda a: Generated.apply(a, 2), in_dims=1, out_dims=1)(x)


@of
def gradient(x, y):
    return grad(lambda a: Generated.apply(a).sum())(x)


@of
def gradient_of_a_gradient(x, y):
    return grad(lambda a: grad(lambda b: Generated.apply(b, 4).sum())(a).sum())(x)


@of
def gradients_by_sample(x, y):
    return vmap(grad(lambda a: Generated.apply(a, 2).sum()))(x)


@of
def gradient_of_mapped(x, y):
    return grad(lambda a: vmap(Generated.apply)(a).sum())(x)


@of
def jacobians(x, y):
    return jacrev(Generated.apply)(x[0]), jacfwd(Generated.apply)(x[0])


@of
def second_derivatives(x, y):
    return hessian(lambda a: Generated.apply(a).sum())(x[0])


@of
def products_with_jacobians(x, y):
    return jvp(Generated.apply, (x,), (y,)), vjp(Generated.apply, x)[1](y)


@of
def own_rule(x, y):
    return vmap(Own.apply)(x, y)


@of
def own_rule_over_some_arguments(x, y):
    return vmap(Own.apply, in_dims=(0, None), randomness="different")(x, y[0]), vmap(Own.apply, (None, 1))(x[:, 0], y)


@of
def own_rule_twice(x, y):
    return vmap(vmap(Own.apply))(x, y)


@of
def gradients_by_sample_with_own_rule(x, y):
    return vmap(grad(both, argnums=(0, 1)))(x, y)


@of
def gradient_of_own_rule(x, y):
    return grad(lambda a, b: sum(one.sum() for one in vmap(Own.apply)(a, b)), argnums=(0, 1))(x, y)


@of
def jacobians_with_own_rule(x, y):
    return jacrev(lambda a, b: Own.apply(a, b)[0].sum(0), argnums=(0, 1))(x, y)


@of
def kept_by_the_setup(x, y):
    def f(a, b):
        first, mask = KeepsMore.apply(a, b)
        return (first * mask).sum()

    return grad(f, argnums=(0, 1))(x, y), vmap(grad(f))(x, y), vmap(KeepsMore.apply)(x, y)


@of
def missing_gradients_stay_missing(x, y):
    choices = (lambda a, b: a.sum(), lambda a, b: b.sum(), lambda a, b: (a * b).sum())
    return [vmap(grad(lambda a, choose=choose: choose(*WithoutZeros.apply(a))))(x) for choose in choices]


class Asks(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        factor = 10 if ctx.needs_input_grad[1] else 1
        return g * y * factor, g * x if ctx.needs_input_grad[1] else None


class PushesTwo(Asks):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, a, b):
        x, y = ctx.saved_tensors
        return a * y * 3 + b * x * 5


@of
def jvp_with_a_tangent_for_one_of_two(x, y):
    return (
        jvp(lambda a: PushesTwo.apply(a, y), (x,), (y,)),
        jacfwd(PushesTwo.apply, argnums=1)(x[0], y[0]),
        vmap(jacfwd(PushesTwo.apply))(x, y),
    )


@of
def needs_input_grad(x, y):
    def f(a, b):
        return Asks.apply(a, b).sum()

    return grad(f)(x, y), grad(f, argnums=(0, 1))(x, y), vmap(grad(f))(x, y), grad(f)(x.detach(), y.detach())


@of
def differentiable_once(x, y):
    return grad(lambda a: Once.apply(a).sum())(x.detach())


def without_a_backward(compiled):
    return compiled(lambda x: vmap(NoBackward.apply)(x))(torch.arange(6.0).view(2, 3))


@may_break
def without_any_rule(compiled):
    return compiled(lambda x: vmap(Once.apply)(x))(torch.ones(2, 3))


@may_break
def without_setup(compiled):
    return compiled(lambda x: grad(lambda a: OldStyle.apply(a).sum())(x))(torch.ones(3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", [*SCENARIOS, *scenarios(globals())])
def test_under_a_transform(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)


def test_a_global_that_a_rule_reads_is_guarded() -> None:
    class Reads(NoBackward):
        factor = 2.0

        @staticmethod
        def forward(x):
            return x * Reads.factor

        @staticmethod
        def backward(ctx, g):
            return g * Reads.factor * 2

        @staticmethod
        def vmap(info, in_dims, x):
            return Reads.apply(x) * Reads.factor, in_dims[0]

    program = lambda x: (vmap(Reads.apply)(x), vmap(grad(lambda a: Reads.apply(a).sum()))(x))  # noqa: E731
    f = stator.compile(program, backend="eager", fullgraph=True)
    x = torch.arange(6.0).view(2, 3)
    for factor in (2.0, 3.0, 4.0, 5.0):
        Reads.factor = factor
        for ours, theirs in zip(f(x), program(x), strict=True):
            assert torch.equal(ours, theirs), factor


def test_a_rule_that_changes_something_is_not_captured() -> None:
    seen = []

    class Tells(NoBackward):
        @staticmethod
        def vmap(info, in_dims, x):
            seen.append(in_dims)
            return x, in_dims[0]

    program = lambda x: vmap(Tells.apply)(x)  # noqa: E731
    with pytest.raises(Unsupported, match="changes an object that outlives it"):
        stator.compile(program, backend="eager", fullgraph=True)(torch.ones(2, 3))
    seen.clear()
    stator.compile(program, backend="eager")(torch.ones(2, 3))
    assert seen == [(0,)]


@pytest.mark.parametrize("part", ["forward", "vmap"])
def test_one_that_writes_to_its_arguments_is_not_captured(part: str) -> None:
    class Writes(NoBackward):
        @staticmethod
        def forward(x):
            return x.add_(1) * 2 if part == "forward" else x * 2

        @staticmethod
        def vmap(info, in_dims, x):
            return (x.add_(1) if part == "vmap" else x) * 2, in_dims[0]

    program = lambda x: vmap(Writes.apply)(x)  # noqa: E731
    with pytest.raises(Unsupported, match="writes to"):
        stator.compile(program, backend="eager", fullgraph=True)(torch.ones(2, 3))
    mine, theirs = torch.ones(2, 3), torch.ones(2, 3)
    assert torch.equal(stator.compile(program, backend="eager")(mine), program(theirs)) and torch.equal(mine, theirs)


def test_a_graph_with_such_functions_prints_and_runs_again() -> None:
    def program(x):
        return vmap(grad(lambda a: Generated.apply(a).sum()))(x), vmap(Own.apply)(x, x)

    x = leaf(3, 4).detach()
    captured = capture(program, {"x": x})
    assert captured.graph is not None
    text = print_graph(captured.graph)
    functions = {node.name: node.target for node in captured.graph.graph.nodes}
    first, product, total = load_graph(text, functions)(x)
    expected, (expected_product, expected_total) = program(x)
    assert torch.equal(first, expected)
    assert torch.equal(product, expected_product) and torch.equal(total, expected_total)


@pytest.mark.parametrize("save", ["save_for_backward", "save_for_forward"])
@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("transformed", [False, True])
def test_an_argument_that_is_returned_and_saved_is_refused_as_by_torch(save: str, kept: int, transformed: bool) -> None:
    class Same(Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            getattr(ctx, save)((inputs[0], output)[kept])

        @staticmethod
        def backward(ctx, g):
            return g

        @staticmethod
        def jvp(ctx, t):
            return t.view_as(t)

    def apply(x):
        return Same.apply(x.clone()).sum()

    program = (lambda x: jvp(apply, (x,), (x,))) if transformed else apply
    for function in (program, stator.compile(program)):
        with pytest.raises(RuntimeError, match="returned as-is"):
            function(leaf(3))
