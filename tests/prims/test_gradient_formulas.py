"""Decompositions of gradients without a CPU kernel in eager, and corners that OpInfo leaves out, against autograd."""

from __future__ import annotations

import torch

import stator.prims  # noqa: F401  (fills the records)
from stator.prims.record import records

aten = torch.ops.aten


def decomposed(target: torch._ops.OpOverload, *args: object) -> object:
    rule = records[target].decompose
    assert rule is not None
    return rule(*args)


def test_gradients_of_special_values() -> None:
    """NaN, infinities and the corners of each activation."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.5, -0.5, 3.0, -3.0, 1.0])
    grad = torch.linspace(0.5, 1.5, 10)
    for target, rest in (
        (aten.elu_backward, None),
        (aten.hardshrink_backward, (0.5,)),
        (aten.softshrink_backward, (0.5,)),
        (aten.hardswish_backward, ()),
        (aten.hardsigmoid_backward, ()),
        (aten.threshold_backward, (0.5,)),
        (aten.logit_backward, (0.25,)),
        (aten.logit_backward, (None,)),
        (aten.leaky_relu_backward, (0.1, False)),
    ):
        args = (grad, 0.5, 1.5, 2.0, False, x) if rest is None else (grad, x, *rest)
        found = decomposed(target.default, *args)
        torch.testing.assert_close(found, target(*args), rtol=1e-6, atol=1e-6, equal_nan=True, msg=str(target))
