"""Other memory in the place of an input's (`param.data = new`) between forward and backward: gradients are those of
eager, which reads the new contents of what it saved as it is, and the old ones of views of it and of results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import stator

Tensor = torch.Tensor
REFUSED = r"stator: the data of a tensor of shape \[3, 3\] was replaced"


def everything(p: Tensor, x: Tensor) -> Tensor:
    return (p.t() @ x) * p + p.exp() * x + torch.sin(p) * x


def writing(p: Tensor, x: Tensor) -> Tensor:
    return x.clone().mul_(p).add_(p).sigmoid() * p


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the tensor itself": lambda p, x: p * x,
    "a view": lambda p, x: F.linear(x, p),
    "a result": lambda p, x: p.exp() * x,
    "only eager saves it": lambda p, x: x / (p.exp() + 1),
    "all of these": everything,
    "writes": writing,
}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    p, x = (torch.randn(3, 3, generator=generator, requires_grad=True) for _ in range(2))
    return p, x, x * 2


def gradients(
    program: Callable[[Tensor, Tensor], Tensor], replace: Callable[[Tensor, Tensor], None]
) -> tuple[Tensor | None, ...]:
    p, leaf, x = inputs()
    result = program(p, x)
    replace(p, x)
    result.sum().backward()
    return p.grad, leaf.grad


def in_p(p: Tensor, x: Tensor) -> None:
    p.data = p.data * 2 + 1


def in_x(p: Tensor, x: Tensor) -> None:
    x.data = x.data - 3


def in_both(p: Tensor, x: Tensor) -> None:
    in_p(p, x)
    in_x(p, x)


@pytest.mark.each_pair
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("replace", [in_p, in_x, in_both])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager(name: str, replace: Callable[[Tensor, Tensor], None], backend: str) -> None:
    expected = gradients(PROGRAMS[name], replace)
    found = gradients(stator.compile(PROGRAMS[name], backend=backend), replace)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_before_the_forward_and_after_the_backward_nothing_is_run_eagerly() -> None:
    p, _, x = inputs()
    compiled = stator.compile(PROGRAMS["the tensor itself"], backend="aot_eager")
    for _ in range(2):
        p.data = p.data * 2
        compiled(p, x.detach()).sum().backward()
    assert p.grad is not None
    torch.testing.assert_close(p.grad, x * 2)


def test_dropout_repeats_its_numbers() -> None:
    def program(p: Tensor, x: Tensor) -> Tensor:
        return F.dropout(x * p, 0.5) * p

    found = []
    for run in (program, stator.compile(program, backend="aot_eager", options={"exact_random": True})):
        torch.manual_seed(1)
        found.append(gradients(run, in_p))
    torch.testing.assert_close(found[1], found[0])


def test_random_numbers_that_eager_would_not_draw_are_refused() -> None:
    compiled = stator.compile(lambda p, x: F.dropout(x * p, 0.5) * p)
    with pytest.raises(RuntimeError, match=REFUSED):
        gradients(compiled, in_p)


def test_gradients_to_be_differentiated_are_refused() -> None:
    p, _, x = inputs()
    result = stator.compile(PROGRAMS["the tensor itself"], backend="aot_eager")(p, x)
    in_p(p, x)
    with pytest.raises(RuntimeError, match=REFUSED):
        torch.autograd.grad(result.sum(), p, create_graph=True)


def test_checkpoints_are_refused() -> None:
    """Eager computes them again, from the new contents."""
    compiled = stator.compile(lambda p, x: checkpoint(lambda x: (p * x).sin(), x, use_reentrant=False))
    with pytest.raises(RuntimeError, match=REFUSED):
        gradients(compiled, in_p)


def test_a_second_backward_computes_the_same() -> None:
    found = []
    for run in (everything, stator.compile(everything, backend="aot_eager")):
        p, leaf, x = inputs()
        result = run(p, x).sum()
        in_p(p, x)
        result.backward(retain_graph=True)
        result.backward()
        found.append((p.grad, leaf.grad))
    torch.testing.assert_close(found[1], found[0])


def test_a_write_beside_it_is_refused() -> None:
    p, _, x = inputs()
    result = stator.compile(lambda p, x: p * x.exp(), backend="aot_eager")(p, x)
    in_p(p, x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="were written to, and the data of others replaced"):
        result.sum().backward()
