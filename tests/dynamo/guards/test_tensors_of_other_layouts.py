"""Nested, sparse and quantized tensors end the graph under one kind, and the program gets what eager gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base.errors import Unsupported


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.linspace(-1, 1, 6), 0.1, 0, torch.qint8)


def sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse()


def padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(x * 2, 0.0) + 1


def dequantized(x: torch.Tensor) -> torch.Tensor:
    return x.dequantize() + 1


def multiplied(x: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(x, torch.ones(3, 2)) + 1


def quantizing(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x * 2, 0.1, 0, torch.qint8).dequantize() + 1


@pytest.mark.parametrize(
    ("program", "maker"),
    [(padded, nested), (dequantized, quantized), (multiplied, sparse), (quantizing, lambda: torch.linspace(-1, 1, 6))],
)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_they_break_and_give_what_eager_gives(program: Any, maker: Callable[[], torch.Tensor], backend: str) -> None:
    expected = program(maker())
    stator.reset()
    compiled = stator.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(maker()), expected)
    with pytest.raises(Unsupported) as raised:
        stator.compile(program, backend=backend, fullgraph=True)(maker())
    assert raised.value.kind == "tensor-layout"


def imitated(x: torch.Tensor) -> torch.Tensor:
    scale, zero = torch.tensor([0.1, 0.2]), torch.tensor([0, 1], dtype=torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7) + torch.fake_quantize_per_channel_affine(
        x.t(), scale, zero, 1, -8, 7
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_imitated_quantization_is_one_graph_with_gradients(backend: str) -> None:
    given = torch.randn(2, 2, generator=torch.Generator().manual_seed(0))
    one, other = given.clone().requires_grad_(), given.clone().requires_grad_()
    imitated(one).square().sum().backward()
    result = stator.compile(imitated, backend=backend, fullgraph=True)(other)
    torch.testing.assert_close(result, imitated(one))
    result.square().sum().backward()
    torch.testing.assert_close(other.grad, one.grad)
