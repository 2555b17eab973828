"""Gradient hooks that a program registers end its graph: gradients pass from graph to graph through them as in eager.

Most hooks are not linear, so that a hook which saw parts of a gradient, and not their sum, would be found. float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Run = Callable[..., Any]


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = (0.5 * torch.randn(2, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    return tuple(one.requires_grad_() for one in made)  # type: ignore[return-value]


def before_several_results(x: Any, w: Any) -> Any:
    y = x * w
    z = y.sin()
    z.register_hook(lambda g: g.sin() + 0.1)
    return (z * x).tanh(), y, z * 3


def before_the_only_result(x: Any, w: Any) -> Any:
    y = (x * w).exp()
    y.register_hook(lambda g: g.cos() * 0.5)
    y.register_hook(lambda g: g + 0.1)
    return (y * y * x).sum()


def one_before_the_other(x: Any, w: Any) -> Any:
    y = x * w
    first = y.sin()
    first.register_hook(lambda g: g * 2 + 0.1)
    second = (first * x).cos()
    second.register_hook(lambda g: g.cos() * 0.5)
    return (second * first).sum(), second * 2, y


def before_a_write(x: Any, w: Any) -> Any:
    y = x * w
    y.register_hook(lambda g: g.cos() * 0.5)
    y.mul_(x)
    y.register_hook(lambda g: g + 0.1)
    return (y * x).exp()


def on_views(x: Any, w: Any) -> Any:
    y = (x * w).sin()
    rows = y[1:]
    rows.register_hook(lambda g: g.sin() + 0.1)
    turned = y.t()
    turned.register_hook(lambda g: g * 2)
    return (rows * 2).exp().sum() + turned.square().sum(), y * x


def on_what_returned_views_are_of(x: Any, w: Any) -> Any:
    y = (x * w).sin()
    y.register_hook(lambda g: g.sin() + 0.1)
    return (y * x).sum(), y[0], y[:, 1:]


def of_one_operator(x: Any, w: Any) -> Any:
    """Two results of one operator, both hooked."""
    deviation, mean = torch.std_mean((x * w).exp(), 1)
    deviation.register_hook(lambda g: g.cos() * 0.5)
    mean.register_hook(lambda g: g + 0.1)
    product = deviation * mean
    return product.sum(), product * 2


PROGRAMS: list[Run] = [
    before_several_results, one_before_the_other, before_the_only_result, on_views, on_what_returned_views_are_of,
    of_one_operator,
]  # fmt: skip


def values(gradients: Any) -> list[Any]:
    return [one if one is None else one.detach() for one in gradients]


def total(tensors: Any) -> Any:
    """Not linear in any of them, and small, as are all derivatives of it."""
    return sum((one * 0.5).sin().square().sum() for one in tensors if one is not None and one.requires_grad)


def by_leaves(x: Any, w: Any, results: list[Any]) -> Any:
    return torch.autograd.grad(total(results), (x, w))


def by_results(x: Any, w: Any, results: list[Any]) -> Any:
    return torch.autograd.grad(total(results), [x, w, *results], allow_unused=True)


def backward_twice(x: Any, w: Any, results: list[Any]) -> Any:
    total(results).backward(retain_graph=True)
    total(results).backward()
    return x.grad, w.grad


def second_with_results(x: Any, w: Any, results: list[Any]) -> Any:
    first = torch.autograd.grad(total(results), (x, w), create_graph=True, allow_unused=True)
    return *values(first), *torch.autograd.grad(total(first) + total(results), [x, w, *results], allow_unused=True)


def second_when_results_are_gone(x: Any, w: Any, results: list[Any]) -> Any:
    """Nothing saved them: the caller's operators are linear."""
    loss = sum((result * 3).sum() for result in results).sin()
    results.clear()
    first = torch.autograd.grad(loss, (x, w), create_graph=True)
    return *values(first), *torch.autograd.grad(total(first) + loss, (x, w))


LOOKS: list[Run] = [by_leaves, by_results, backward_twice, second_with_results, second_when_results_are_gone]


def found(run: Run, look: Run) -> Any:
    x, w = leaves()
    results = run(x, w)
    return look(x, w, list(results) if isinstance(results, (tuple, list)) else [results])


def compare(program: Run, compiled: Run, looks: list[Run]) -> None:
    for look in looks:
        told = lambda text, look=look: f"{look.__name__}: {text}"  # noqa: E731
        torch.testing.assert_close(found(compiled, look), found(program, look), rtol=1e-9, atol=1e-9, msg=told)


@pytest.mark.filterwarnings("ignore:stator")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_several_results_and_hooked_results(program: Run) -> None:
    compare(program, stator.compile(program, backend="aot_eager"), LOOKS)


def test_a_hook_before_a_write() -> None:
    compare(before_a_write, stator.compile(before_a_write, backend="aot_eager"), [by_leaves, backward_twice])


class OfTheFirst(torch.autograd.Function):
    """Nothing comes to its second argument."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2, None


WITHOUT_GRADIENT: dict[str, Any] = {
    "fails": lambda g: g * 2,
    "asks": lambda g: None if g is None else g * 2,
    "looks up": lambda g: g.sin(),
    "replaces": lambda g: torch.ones(3) if g is None else g,
}


@pytest.mark.parametrize("shown", [False, True], ids=["inside", "a result"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("hook", WITHOUT_GRADIENT)
def test_a_hook_that_no_gradient_comes_to(hook: str, backend: str, shown: bool) -> None:
    """Autograd calls it with None."""

    def program(x: Any, y: Any) -> Any:
        hidden = x * y
        hidden.register_hook(WITHOUT_GRADIENT[hook])
        result = OfTheFirst.apply(y, hidden.tanh())
        return (result, hidden) if shown else (result, y.sin())

    def gradients(call: Any) -> Any:
        x, y = torch.ones(3).requires_grad_(), torch.ones(3).requires_grad_()
        result, other = call(x, y)
        other.sum().backward(retain_graph=True)
        try:
            result.sum().backward()
        except Exception as error:
            return type(error), str(error)
        return x.grad, y.grad

    compiled = stator.compile(program, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert str(gradients(compiled)) == str(gradients(program))
