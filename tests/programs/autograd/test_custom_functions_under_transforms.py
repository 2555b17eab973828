"""Custom autograd.Functions under torch.func inside compiled code: the graph ends there, and results equal eager's."""

from __future__ import annotations

import pytest
import torch
from tests.scenarios import Scenario, check, leaf
from torch.autograd import Function
from torch.func import grad, jvp, vmap

import stator


class Generated(Function):
    """Its derivatives are not the true ones, so that torch's own cannot stand in for them."""

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
        return t * 7 * x ** (ctx.power - 1)


class OwnRule(Function):
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


PROGRAMS = {
    "mapped": lambda x: vmap(Generated.apply)(x),
    "gradient": lambda x: grad(lambda a: Generated.apply(a).sum())(x * 2) + 1,
    "gradients_by_sample": lambda x: vmap(grad(lambda a: Generated.apply(a, 2).sum()))(x),
    "jacobian_product": lambda x: jvp(Generated.apply, (x,), (x.sin(),)),
    "own_rule": lambda x: vmap(OwnRule.apply)(x) * 2,
    "without_setup": lambda x: grad(lambda a: OldStyle.apply(a).sum())(x),
}


def run(name: str) -> Scenario:
    return lambda compiled: [compiled(PROGRAMS[name])(leaf(3, 4, seed=seed).detach()) for seed in (0, 5)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_under_a_transform(name: str) -> None:
    torch.manual_seed(0)
    check(run(name))


@pytest.mark.parametrize("save", ["save_for_backward", "save_for_forward"])
def test_an_argument_that_is_returned_and_saved_is_refused_as_by_torch(save: str) -> None:
    class Same(Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            getattr(ctx, save)(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g

    def program(x):
        return Same.apply(x.clone()).sum()

    for function in (program, stator.compile(program)):
        with pytest.raises(RuntimeError, match="returned as-is"):
            function(leaf(3))
