"""What a program sees of tensors that are conjugated or negated lazily, while it is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator

Tensor = torch.Tensor


def _flags(z: Tensor) -> tuple[Any, ...]:
    conjugate = z.conj()
    tensors = (z, conjugate, conjugate.conj(), conjugate.imag, conjugate.real, z.mH, conjugate * 1, z.imag, z[0].conj())
    return (*[(one.is_conj(), torch.is_neg(one), torch.is_conj(one)) for one in tensors], z.real.sum())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("lazy", [False, True])
def test_bits_are_known(lazy: bool, backend: str) -> None:
    z = torch.tensor([[1 + 2j, 3 - 1j]])
    z = z.conj() if lazy else z
    assert stator.compile(_flags, backend=backend, fullgraph=True)(z) == _flags(z)


def test_decisions_by_bits() -> None:
    def program(z: Tensor) -> Tensor:
        y = z.conj()
        return y * 2 if y.is_conj() else y * 100

    z = torch.tensor([1 + 2j])
    assert torch.equal(stator.compile(program, backend="eager", fullgraph=True)(z), program(z))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_has_nothing_to_resolve_is_itself(backend: str) -> None:
    def program(z: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return z.resolve_conj(), torch.resolve_neg(x), torch.resolve_conj(x), z.conj().resolve_conj()

    z, x = torch.tensor([1 + 2j]), torch.tensor([1.0])
    resolved = stator.compile(program, backend=backend, fullgraph=True)(z, x)
    assert resolved[0] is z and resolved[1] is x and resolved[2] is x
    assert resolved[3].data_ptr() != z.data_ptr() and torch.equal(resolved[3], z.conj())


def test_whole_numbers_seen_negated() -> None:
    def program(x: Tensor) -> tuple[Any, ...]:
        sizes = torch.empty(2, dtype=torch.int64)
        sizes[0], sizes[1] = 3, 4
        return torch._neg_view(sizes).tolist(), x + 1

    x = torch.ones(1)
    assert stator.compile(program, backend="eager")(x) == program(x)
