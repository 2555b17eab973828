"""Inputs and results that are conjugated or negated lazily: bits, memory, writes and gradients are those of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import DOUBLE, EXACT, ROUNDED, Tolerance
from tests.scenarios import check

Tensor = torch.Tensor
SEEN = {
    "conjugated": lambda z: z.conj(),
    "negated": lambda z: torch._neg_view(z),
    "both": lambda z: torch._neg_view(z.conj()),
    "transposed": lambda z: z.mH,
}
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
by_backend = pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
by_grad = pytest.mark.parametrize("grad", [False, True])


def numbers(grad: bool = False) -> Tensor:
    return torch.tensor([[1 + 2j, 3 - 1j], [0.5 - 4j, 2j]], requires_grad=grad)


def facts(one: Tensor, memory: Tensor) -> tuple[Any, ...]:
    shares = one.untyped_storage()._cdata == memory.untyped_storage()._cdata
    return one.is_conj(), one.is_neg(), one.stride(), shares, one.requires_grad, one.detach().tolist()


def assert_as_in_eager(
    scenario: Any, backend: str = "aot_eager", *, whole: bool = True, tolerance: Tolerance = EXACT
) -> None:
    check(scenario, backend, whole=whole, tolerance=tolerance)


@by_backend
@pytest.mark.parametrize("seen", SEEN)
@by_grad
def test_values_views_and_gradients_of_inputs(grad: bool, seen: str, backend: str) -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        return z + 1, z.imag * 2, z.conj(), z.imag, z[0], z.unsqueeze(0)

    def scenario(compiled: Any) -> Any:
        z = numbers(grad)
        given = z * 1
        results = compiled(program)(SEEN[seen](given))
        found: list[Any] = [facts(one, given) for one in results]
        if grad:
            total = sum((one.abs().square() * at).sum() for at, one in enumerate(results, 1))
            found.append(torch.autograd.grad(total, z)[0].tolist())
        return found

    assert_as_in_eager(scenario, backend)


@pytest.mark.parametrize("seen", SEEN)
def test_writes_reach_the_memory(seen: str) -> None:
    def program(z: Tensor) -> tuple[Tensor, Tensor]:
        z.mul_(2j)
        z.real.add_(1)
        return z, z.conj()

    def scenario(compiled: Any) -> Any:
        memory = numbers()
        given = SEEN[seen](memory)
        results = compiled(program)(given)
        return results[0] is given, given._version, memory.tolist(), [facts(one, memory) for one in results]

    assert_as_in_eager(scenario)


def test_writes_are_differentiated() -> None:
    def program(z: Tensor) -> Tensor:
        z.mul_(2j)
        return z * 3

    def scenario(compiled: Any) -> Any:
        z = numbers(grad=True)
        given = (z * 1).conj()
        total = compiled(program)(given).abs().square().sum() + given.real.sum()
        return given._version, given.tolist(), torch.autograd.grad(total, z)[0].tolist()

    assert_as_in_eager(scenario)


def test_the_gradient_of_a_conjugated_leaf_is_not_lazy() -> None:
    def scenario(compiled: Any) -> Any:
        leaf = numbers().conj().detach().requires_grad_()
        compiled(lambda z: (z * z.conj() * 2).real.sum())(leaf).backward()
        assert leaf.grad is not None
        return leaf.grad.is_conj(), leaf.grad.tolist()

    assert_as_in_eager(scenario)


def test_tensors_with_and_without_bits_are_told_apart() -> None:
    def program(z: Tensor) -> Tensor:
        return z + 1j if z.is_conj() else z.imag + (2 if z.is_neg() else 3)

    def scenario(compiled: Any) -> Any:
        run = compiled(program)
        return [run(given) for _ in range(2) for given in (numbers(), *[seen(numbers()) for seen in SEEN.values()])]

    assert_as_in_eager(scenario, "inductor")


@pytest.mark.parametrize("layout", [False, True])
def test_inputs_that_share_memory_or_change_their_layout(layout: bool) -> None:
    def shared(z: Tensor, conjugate: Tensor) -> Tensor:
        z.add_(1j)
        return z * conjugate

    def transposed(z: Tensor, conjugate: Tensor) -> Tensor:
        conjugate.t_()
        return conjugate * 2

    def scenario(compiled: Any) -> Any:
        z = numbers()
        conjugate = z.conj()
        result = compiled(transposed if layout else shared)(numbers() if layout else z, conjugate)
        return result.tolist(), z.tolist(), conjugate.stride(), conjugate.is_conj(), conjugate.tolist(), z._version

    assert_as_in_eager(scenario, whole=False)


def test_second_derivatives_by_lazily_conjugated_gradients() -> None:
    def program(z: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        return z * factor, (z * 2).imag

    def scenario(compiled: Any) -> Any:
        z, factor = numbers(grad=True), torch.tensor([[0.5, 2.0], [1.5, 0.25]], requires_grad=True)
        given = [numbers().mT.conj(), torch._neg_view(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))]
        first = torch.autograd.grad(compiled(program)(z, factor), [z, factor], given, create_graph=True)
        total = first[0].abs().square().sum() + first[1].square().sum()
        second = torch.autograd.grad(total, [z, factor], allow_unused=True)
        return [one if one is None else one.detach().resolve_conj().contiguous() for one in (*first, *second)]

    assert_as_in_eager(scenario, tolerance=ROUNDED)


def test_second_derivatives_of_what_was_conjugated() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        number = torch.complex(x + x, x @ w).sin().conj()
        return torch.view_as_real(number.resolve_conj()).sum(-1)

    def scenario(compiled: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        x, w = (torch.randn(3, 3, generator=generator, dtype=torch.float64).mul(0.3).requires_grad_() for _ in range(2))
        first = torch.autograd.grad(compiled(program)(x, w).sin().sum(), [x, w], create_graph=True)
        second = torch.autograd.grad(sum(one.square().sum() for one in first), [x, w])
        return [one.detach() for one in first], second

    assert_as_in_eager(scenario, tolerance=DOUBLE)


@by_grad
def test_parts_of_a_conjugate_share_memory_with_the_number(grad: bool) -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        conjugate = z.conj()
        return conjugate, conjugate.real, conjugate.imag, conjugate[0].imag

    def scenario(compiled: Any) -> Any:
        z = numbers(grad)
        given = z * 1
        results = compiled(program)(given)
        found: list[Any] = [facts(one, given) for one in results]
        if grad:
            total = sum((one.abs() + 1).log().sum() * at for at, one in enumerate(results, 1))
            found.append(torch.autograd.grad(total, z)[0].tolist())
        return found

    assert_as_in_eager(scenario)


@by_grad
@pytest.mark.parametrize("what", FRESH)
def test_lazy_views_of_what_the_graph_computes(what: str, grad: bool) -> None:
    def scenario(compiled: Any) -> Any:
        z = numbers(grad)
        result = compiled(lambda z: FRESH[what](z * 2))(z)
        found: list[Any] = [facts(result, z)]
        if result.requires_grad:
            found.append(torch.autograd.grad((result.abs() + 1).log().sum(), z)[0].tolist())
        return found

    assert_as_in_eager(scenario)


def test_what_is_resolved_is_a_copy() -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        number = z * 1
        resolved = torch.view_as_real(torch.resolve_conj(number.conj()))
        resolved.mul_(2)
        negated = torch._neg_view(z.real).resolve_neg()
        negated.add_(1)
        return number, resolved, negated

    assert_as_in_eager(lambda compiled: compiled(program)(torch.tensor([1 + 2j, 3 - 1j])))


@pytest.mark.parametrize("look", [torch.view_as_real, lambda z: z.view(torch.float32)], ids=["as real", "as floats"])
def test_what_eager_refuses_to_show_of_a_conjugate_is_refused(look: Any) -> None:
    def scenario(compiled: Any) -> Any:
        with pytest.raises(RuntimeError) as caught:
            compiled(lambda z: look((z * 2).conj()))(torch.tensor([1 + 2j]))
        return str(caught.value)

    assert_as_in_eager(scenario, whole=False)
