"""Inputs that are conjugated or negated lazily: what compiled code computes, returns and writes is eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Tensor = torch.Tensor
SEEN = {
    "conjugated": lambda z: z.conj(),
    "negated": lambda z: torch._neg_view(z),
    "both": lambda z: torch._neg_view(z.conj()),
    "transposed": lambda z: z.mH,
}
BACKENDS = ["aot_eager", "stator"]


def _numbers(grad: bool = False) -> Tensor:
    return torch.tensor([[1 + 2j, 3 - 1j], [0.5 - 4j, 2j]], requires_grad=grad)


def _written_out(one: Tensor, memory: Tensor) -> tuple[Any, ...]:
    shares = one.untyped_storage()._cdata == memory.untyped_storage()._cdata
    return one.is_conj(), one.is_neg(), one.stride(), shares, one.requires_grad, one.detach().tolist()


def _compiled(program: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return stator.compile(program, fullgraph=True, **({} if backend == "stator" else {"backend": backend}))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("grad", [False, True])
def test_values_views_and_gradients(seen: str, grad: bool, backend: str) -> None:
    def program(z: Tensor) -> tuple[Tensor, ...]:
        return z + 1, z.imag * 2, z.conj(), z.imag, z[0], z.unsqueeze(0)

    found = []
    for run in (program, _compiled(program, backend)):
        z = _numbers(grad)
        given = z * 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would run eagerly
            results = run(SEEN[seen](given))
        found.append([_written_out(one, given) for one in results])
        if grad:
            total = sum((one.abs().square() * at).sum() for at, one in enumerate(results, 1))
            found.append(torch.autograd.grad(total, z)[0].tolist())
    half = len(found) // 2
    assert found[half:] == found[:half]


@pytest.mark.parametrize("seen", SEEN)
def test_writes_reach_the_memory(seen: str) -> None:
    def program(z: Tensor) -> tuple[Tensor, Tensor]:
        z.mul_(2j)
        z.real.add_(1)
        return z, z.conj()

    found = []
    for run in (program, _compiled(program, "aot_eager")):
        memory = _numbers()
        given = SEEN[seen](memory)
        results = run(given)
        found.append((results[0] is given, given._version, memory.tolist()))
        found.append([_written_out(one, memory) for one in results])
    assert found[2:] == found[:2]


def test_writes_are_differentiated() -> None:
    def program(z: Tensor) -> Tensor:
        z.mul_(2j)
        return z * 3

    found = []
    for run in (program, _compiled(program, "aot_eager")):
        z = _numbers(grad=True)
        given = (z * 1).conj()
        total = run(given).abs().square().sum() + given.real.sum()
        found.append((given._version, given.tolist(), torch.autograd.grad(total, z)[0].tolist()))
    assert found[1] == found[0]


def test_the_gradient_of_a_conjugated_leaf_is_not_lazy() -> None:
    found = []
    for run in (_energy, _compiled(_energy, "aot_eager")):
        leaf = _numbers().conj().detach().requires_grad_()
        run(leaf).backward()
        assert leaf.grad is not None
        found.append((leaf.grad.is_conj(), leaf.grad.tolist()))
    assert found[1] == found[0]


def _energy(z: Tensor) -> Tensor:
    return (z * z.conj() * 2).real.sum()


def test_tensors_with_and_without_bits_are_told_apart() -> None:
    def program(z: Tensor) -> Tensor:
        return z + 1j if z.is_conj() else z.imag + (2 if z.is_neg() else 3)

    run = _compiled(program, "stator")
    for _ in range(2):
        for given in (_numbers(), *[seen(_numbers()) for seen in SEEN.values()]):
            torch.testing.assert_close(run(given), program(given), rtol=0, atol=0)


def test_inputs_that_share_memory() -> None:
    def program(z: Tensor, conjugate: Tensor) -> Tensor:
        z.add_(1j)
        return z * conjugate

    found = []
    for run in (program, stator.compile(program, backend="aot_eager")):
        z = _numbers()
        conjugate = z.conj()
        found.append((run(z, conjugate).tolist(), z.tolist(), conjugate.tolist(), z._version))
    assert found[1] == found[0]


def test_the_layout_of_an_input_that_is_changed_in_place() -> None:
    found = []
    for run in (_transposed, stator.compile(_transposed, backend="aot_eager")):
        given = _numbers().conj()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may run eagerly
            result = run(given)
        found.append((result.tolist(), given.tolist(), given.stride(), given.is_conj()))
    assert found[1] == found[0]


def _transposed(z: Tensor) -> Tensor:
    z.t_()
    return z * 2


def test_second_derivatives_by_lazily_conjugated_gradients() -> None:
    def program(z: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        return z * factor, (z * 2).imag

    found = []
    for run in (program, _compiled(program, "aot_eager")):
        z, factor = _numbers(grad=True), torch.tensor([[0.5, 2.0], [1.5, 0.25]], requires_grad=True)
        given = [_numbers().mT.conj(), torch._neg_view(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would run eagerly
            first = torch.autograd.grad(run(z, factor), [z, factor], given, create_graph=True)
            total = first[0].abs().square().sum() + first[1].square().sum()
            second = torch.autograd.grad(total, [z, factor], allow_unused=True)
        found.append([one.tolist() for one in (*first, *second) if one is not None])
    torch.testing.assert_close(found[1], found[0])
