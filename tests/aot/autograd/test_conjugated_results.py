"""Results that are views of what was conjugated: bits, memory, contents and gradients are eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import stator

Tensor = torch.Tensor


def _parts(z: Tensor) -> tuple[Tensor, ...]:
    conjugate = z.conj()
    return conjugate, conjugate.real, conjugate.imag, conjugate[0].imag


@pytest.mark.parametrize("grad", [False, True])
def test_parts_of_a_conjugate_share_memory_with_the_number(grad: bool) -> None:
    found = []
    for run in (_parts, stator.compile(_parts, backend="aot_eager", fullgraph=True)):
        z = torch.tensor([[1 + 2j, 3 - 1j], [0.5 - 4j, 2j]], requires_grad=grad)
        given = z * 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would run eagerly
            results = run(given)
        memory = given.untyped_storage()._cdata
        found.append([(one.is_conj(), one.is_neg(), one.untyped_storage()._cdata == memory) for one in results])
        found.append([one.detach().tolist() for one in results])
        if grad:
            total = sum((one.abs() + 1).log().sum() * at for at, one in enumerate(results, 1))
            found.append(torch.autograd.grad(total, z)[0].tolist())
    half = len(found) // 2
    assert found[half:] == found[:half]


def test_second_derivatives_of_what_was_conjugated() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        number = torch.complex(x + x, x @ w).sin().conj()
        return torch.view_as_real(number.resolve_conj()).sum(-1)

    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(3, 3, generator=generator, dtype=torch.float64).mul(0.3).requires_grad_() for _ in range(2))
    found = []
    for run in (program, stator.compile(program, backend="aot_eager", fullgraph=True)):
        first = torch.autograd.grad(run(x, w).sin().sum(), [x, w], create_graph=True)
        found.append((*first, *torch.autograd.grad(sum(one.square().sum() for one in first), [x, w])))
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-10)


def test_what_is_resolved_is_a_copy() -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        number = z * 1
        resolved = torch.view_as_real(torch.resolve_conj(number.conj()))
        resolved.mul_(2)
        negated = torch._neg_view(z.real).resolve_neg()
        negated.add_(1)
        return number, resolved, negated

    expected = program(torch.tensor([1 + 2j, 3 - 1j]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would run eagerly
        found = stator.compile(program, backend="aot_eager", fullgraph=True)(torch.tensor([1 + 2j, 3 - 1j]))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


FRESH = {
    "conjugate": lambda z: z.conj(),
    "transposed": lambda z: z.mH,
    "imaginary part": lambda z: z.conj().imag,
    "real part": lambda z: z.conj().real,
    "part": lambda z: z.conj()[0],
    "negated": lambda z: torch._neg_view(z.real),
    "twice": lambda z: z.conj().mH,
    "permuted by einsum": lambda z: torch.einsum("ij->ji", z.conj()),
    "detached": lambda z: z.conj().detach(),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("what", FRESH)
def test_lazy_views_of_what_the_graph_computes(what: str, grad: bool) -> None:
    def program(z: Tensor) -> Tensor:
        return FRESH[what](z * 2)

    found = []
    for run in (program, stator.compile(program, backend="aot_eager", fullgraph=True)):
        z = torch.tensor([[1 + 2j, 3 - 1j], [0.5 - 4j, 2j]], requires_grad=grad)
        result = run(z)
        found.append((result.is_conj(), result.is_neg(), result.stride(), result.requires_grad))
        found.append(result.detach().tolist())
        if result.requires_grad:
            found.append(torch.autograd.grad((result.abs() + 1).log().sum(), z)[0].tolist())
    half = len(found) // 2
    assert found[half:] == found[:half]


@pytest.mark.parametrize("look", [torch.view_as_real, lambda z: z.view(torch.float32)], ids=["as real", "as floats"])
def test_what_eager_refuses_to_show_of_a_conjugate_is_refused(look: Callable[[Tensor], Tensor]) -> None:
    def program(z: Tensor) -> Tensor:
        return look((z * 2).conj())

    messages = []
    for run in (program, stator.compile(program, backend="aot_eager")):
        with warnings.catch_warnings(), pytest.raises(RuntimeError) as caught:
            warnings.simplefilter("ignore")
            run(torch.tensor([1 + 2j]))
        messages.append(str(caught.value))
    assert messages[1] == messages[0]
