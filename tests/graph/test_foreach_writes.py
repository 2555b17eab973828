"""Operators on lists that write to tensors which share memory behave as eager, which takes one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Tensor = torch.Tensor


def _overlapping(h: Tensor, k: Tensor) -> None:
    torch._foreach_mul_([h[:2], h[1:3]], 3.0)


def _apart(h: Tensor, k: Tensor) -> None:
    torch._foreach_mul_([h[0], h[1]], [k[0], k[1]])


def _each_by_the_other(h: Tensor, k: Tensor) -> None:
    torch._foreach_add_([h, k], [k, h], alpha=2)


def _the_same_twice(h: Tensor, k: Tensor) -> None:
    torch._foreach_add_([h, h], [k, k + 1])


def _a_whole_and_a_part(h: Tensor, k: Tensor) -> None:
    torch._foreach_addcmul_([h, h[0]], [k, h[1]], [k, h[2]], [0.5, 2.0])


def _numbers_in_a_tensor(h: Tensor, k: Tensor) -> None:
    torch._foreach_addcdiv_([h[0], h[1]], [h[1], h[0]], [k[2], k[0]], torch.tensor([2.0, 0.5]))


def _divided_by_what_is_written(h: Tensor, k: Tensor) -> None:
    """Which autograd notices in the backward."""
    torch._foreach_div_([h, k], [k, k + 1])


def _without_operand(h: Tensor, k: Tensor) -> None:
    torch._foreach_exp_([h.t(), h])
    torch._foreach_zero_([h[0], h[0]])


def _copied(h: Tensor, k: Tensor) -> None:
    with torch.no_grad():
        torch._foreach_copy_([h, k], [k, h])


WRITES = [
    _overlapping, _apart, _each_by_the_other, _the_same_twice, _a_whole_and_a_part, _numbers_in_a_tensor,
    _divided_by_what_is_written, _without_operand, _copied,
]  # fmt: skip


def seen(write: Callable[[Tensor, Tensor], None], grad: bool, compile: Callable[[Any], Any]) -> Any:
    def program(x: Tensor, y: Tensor) -> Any:
        h, k = x * 2, y * 3
        write(h, k)
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
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
def test_one_after_the_other(write: Callable[[Tensor, Tensor], None], grad: bool) -> None:
    warnings.simplefilter("ignore")
    expected = seen(write, grad, lambda program: program)
    found = seen(write, grad, lambda program: stator.compile(program, backend="aot_eager"))
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
