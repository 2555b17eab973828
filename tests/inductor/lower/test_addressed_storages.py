"""as_strided counts from where a storage begins: of copies, joins, moved elements and library results, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator.base.errors import CompileError
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import lower

PLACE = (5, 7), (14, 2), 3
aten = torch.ops.aten

# each gives a tensor with memory of its own in eager; x and z are [8, 16]
OWNERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a clone of a part of an input": lambda x, z: x[1:].clone(),
    "a clone of a part": lambda x, z: z[1:].clone(),
    "rows of columns": lambda x, z: z[:, 1:].contiguous(),
    "a conversion": lambda x, z: z[1:].to(torch.float32, copy=True),
    "one times a part": lambda x, z: z[1:] * 1,
    "reshaped columns": lambda x, z: z.t().reshape(-1),
    "flipped": lambda x, z: z.flip(0),
    "flipped clone": lambda x, z: z.flip(1).clone(),
    "rolled": lambda x, z: z.roll(3, 1),
    "repeated": lambda x, z: z.repeat(2, 2),
    "a part by split_copy": lambda x, z: torch.split_copy(z, 7, 1)[1].contiguous().repeat(2, 1),
    "transposed copy": lambda x, z: torch.transpose_copy(z, 0, 1),
    "one part joined": lambda x, z: torch.cat([z[1:]]),
    "half": lambda x, z: z.half().flip(1),
    "complex": lambda x, z: torch.complex(z, x)[1:].clone(),
    "complex, flipped": lambda x, z: torch.complex(z, x).flip(0),
}


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 16), torch.randn(16, 16)


def assert_same(function: Callable, *inputs: torch.Tensor, **options: object) -> None:
    actual, expected = stator.compile(function, fullgraph=True, **options)(*inputs), function(*inputs)
    for one, other in zip(actual, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("name", OWNERS)
def test_memory_is_addressed_as_eager_lays_it_out(name: str, backend: str) -> None:
    def read(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x @ w
        return OWNERS[name](x, z).as_strided(*PLACE) * 2, z.sin() + 1, OWNERS[name](x, z).as_strided(*PLACE[:2])

    assert_same(read, *operands(), backend=backend)


@pytest.mark.parametrize("name", OWNERS)
def test_writes_reach_the_memory_that_eager_writes(name: str) -> None:
    def write(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        owner = OWNERS[name](x, x @ w)
        owner.as_strided((3, 5), (16, 2), 3).add_(1)
        return owner * 2, x + 1

    assert_same(write, *operands())


@pytest.mark.parametrize("options", [{}, {"exact_rounding": True}], ids=["kernels", "exact"])
def test_gradients_through_moved_elements(options: dict[str, bool]) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = x @ w
        return (z.flip(0).sin().flip(1).as_strided(*PLACE) ** 2).sum() + (z[1:].clone().as_strided(*PLACE) ** 3).sum()

    gradients = []
    for function in (loss, stator.compile(loss, fullgraph=True, options=options)):
        leaves = [operand.requires_grad_() for operand in operands()]
        gradients.append(torch.autograd.grad(function(*leaves), leaves))
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_join_that_begins_a_longer_one() -> None:
    def read(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.sin(), w[:8].cos()
        joined = torch.cat([a, b], 1)
        return joined.as_strided((5, 7), (32, 2), 3) * 2, torch.cat([a, b, x.exp()], 1).relu(), joined * 3

    assert_same(read, *operands())


def test_the_library_is_not_asked_to_address_a_storage() -> None:
    """A buffer may be any part of a storage. (Traced programs do not hold this operator: it is decomposed.)"""
    inputs = torch.randn(8, 16), torch.randn(5, 7)
    target = aten.as_strided_scatter.default
    traced = trace(lambda x, source: target(x.sin(), source, *PLACE), inputs, keep=lambda operator: True)
    with pytest.raises(CompileError, match="addresses a storage"):
        lower(traced.graph)
