"""Operators on lists that write to tensors which share memory behave as eager, which takes one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Tensor = torch.Tensor


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "overlapping": lambda h, k: torch._foreach_mul_([h[:2], h[1:3]], 3.0),
    "apart": lambda h, k: torch._foreach_mul_([h[0], h[1]], [k[0], k[1]]),
    "each by the other": lambda h, k: torch._foreach_add_([h, k], [k, h], alpha=2),
    "the same twice": lambda h, k: torch._foreach_add_([h, h], [k, k + 1]),
    "a whole and a part": lambda h, k: torch._foreach_addcmul_([h, h[0]], [k, h[1]], [k, h[2]], [0.5, 2.0]),
    "numbers in a tensor": lambda h, k: torch._foreach_addcdiv_(
        [h[0], h[1]], [h[1], h[0]], [k[2], k[0]], torch.tensor([2.0, 0.5])
    ),
    # which autograd notices in the backward
    "divided by what is written": lambda h, k: torch._foreach_div_([h, k], [k, k + 1]),
    "without operand": lambda h, k: (torch._foreach_exp_([h.t(), h]), torch._foreach_zero_([h[0], h[0]])),
    "copied": torch.no_grad()(lambda h, k: torch._foreach_copy_([h, k], [k, h])),
}


def seen(name: str, grad: bool, compile: Callable[[Any], Any]) -> Any:
    def program(x: Tensor, y: Tensor) -> Any:
        h, k = x * 2, y * 3
        WRITES[name](h, k)
        return h, k

    generator = torch.Generator().manual_seed(0)
    leaves = [torch.rand(3, 3, generator=generator, dtype=torch.float64).requires_grad_(grad) for _ in range(2)]
    try:
        results = compile(program)(*leaves)
        if grad:
            sum((one.sin() * (at + 1)).sum() for at, one in enumerate(results)).backward()
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return [one.detach() for one in results], [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_one_after_the_other(name: str, grad: bool) -> None:
    warnings.simplefilter("ignore")
    expected = seen(name, grad, lambda program: program)
    found = seen(name, grad, lambda program: stator.compile(program, backend="aot_eager"))
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
