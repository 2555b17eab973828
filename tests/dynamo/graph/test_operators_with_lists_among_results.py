"""Custom operators that return a list of tensors beside other results."""

import pytest
import torch
from torch import Tensor

import stator


@torch.library.custom_op("stator_lists::parts", mutates_args=())
def parts(x: Tensor, sizes: list[int]) -> tuple[list[Tensor], int, Tensor]:
    return [part.clone() for part in x.split(sizes)], len(sizes), x.sum(0)


@parts.register_fake
def _(x: Tensor, sizes: list[int]) -> tuple[list[Tensor], int, Tensor]:
    return [torch.empty_like(part) for part in x.split(sizes)], len(sizes), torch.empty_like(x[0])


def _keep_nothing(ctx: object, inputs: object, output: object) -> None:
    pass


def _backward(ctx: object, grads: list[Tensor], _: None, total: Tensor) -> tuple[Tensor, None]:
    return torch.cat(grads) + total, None


parts.register_autograd(_backward, setup_context=_keep_nothing)


def program(x: Tensor) -> tuple[Tensor, int, Tensor, Tensor]:
    (first, second, third), count, total = torch.ops.stator_lists.parts(x * 2, [1, 2, 3])
    return first + 1, count, second * total, third


@pytest.mark.filterwarnings("ignore:stator. program .* returns a list of tensors:RuntimeWarning")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_results(backend: str, grad: bool) -> None:
    x = torch.randn(6, 4)
    results = []
    for call in (program, stator.compile(program, backend=backend)):
        given = x.clone().requires_grad_(grad)
        first, count, second, third = call(given)
        assert count == 3
        if grad:
            (first.sum() + (second * third.sum()).sum()).backward()
        results.append((first, second, third, given.grad))
    torch.testing.assert_close(results[1], results[0])
