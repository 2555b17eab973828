"""Hooks of autograd's nodes, and of tensors, on what a compiled graph returns, where the gradient comes from inside of
the graph: through a view, through what was written to an input, or through another result of the same operator.

Everything that hooks see, and all gradients, are what eager shows. float64, 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Run = Callable[..., Any]


class Several(torch.autograd.Function):
    """Tells apart which of its results have a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x.sin(), y.cos() + x

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        return (None if first is None else first * 3), (None if second is None else second * 2)


def view_of_an_input(x: Any, y: Any) -> Any:
    first = x[0]
    return first * 2, first


def view_of_a_result(x: Any, y: Any) -> Any:
    product = x * y
    first = product[0]
    return first * 2, first, product


def input_written_to(x: Any, y: Any) -> Any:
    x.mul_(y)
    return x * 2, x


def one_of_two(x: Any, y: Any) -> Any:
    deviation, mean = torch.std_mean(x * y, 1)
    return deviation * 2, mean


def the_other_of_two(x: Any, y: Any) -> Any:
    deviation, mean = torch.std_mean(x * y, 1)
    return mean * 2, deviation


def both_of_two(x: Any, y: Any) -> Any:
    q, r = torch.linalg.qr(x * y)
    return q * 2, r, q


def one_of_two_beside_both(x: Any, y: Any) -> Any:
    q, r = torch.linalg.qr(x * y)
    return (q * 2).sum() + r.sum(), q


def one_of_three(x: Any, y: Any) -> Any:
    u, s, v = torch.linalg.svd(x * y + torch.eye(2, 3, dtype=x.dtype), full_matrices=False)
    return u.square() @ v.square() + s[:, None], s


def of_a_custom_function(x: Any, y: Any) -> Any:
    first, second = Several.apply(x * 1, y)
    return second * 2, first


def parts_of_what_is_not_returned(x: Any, y: Any) -> Any:
    first, second = (x * y).unbind(0)
    return second * 2, first


def beside_what_is_written(x: Any, y: Any) -> Any:
    y.detach().add_(1)
    return ((x * y).sin(),)


def part_of_an_input(x: Any, y: Any) -> Any:
    first, second = x.unbind(0)
    return second * 2, first


def parts_of_an_input(x: Any, y: Any) -> Any:
    first, second = x.split(1)
    return second * 2, first, second


def parts_alone(x: Any, y: Any) -> Any:
    return x.chunk(2)


def one_part_alone(x: Any, y: Any) -> Any:
    return (x.unbind(1)[2],)


def part_of_a_view(x: Any, y: Any) -> Any:
    first, second, third = x.t().split([1, 1, 1])
    return (first * third).exp(), second, x.t()


def part_of_a_part(x: Any, y: Any) -> Any:
    first, second = x.unbind(0)
    one, two, three = first.unbind(0)
    return one * two * second, three, first


def part_of_a_result(x: Any, y: Any) -> Any:
    product = x * y
    first, second = product.unbind(0)
    return second * 2, first, product


def part_of_an_input_written_to(x: Any, y: Any) -> Any:
    x.mul_(y)
    first, second = x.unbind(0)
    return second * 2, first, x


def one_of_two_alone(x: Any, y: Any) -> Any:
    return (torch.std_mean(x * y, 1)[0],)


def with_a_hook_of_the_program(x: Any, y: Any) -> Any:
    q, r = torch.linalg.qr(x * y)
    r.register_hook(lambda g: None if g is None else g.sin() + 0.1)
    return r * 2, q


PROGRAMS: list[Run] = [
    view_of_an_input, view_of_a_result, one_of_two, the_other_of_two, both_of_two,
    one_of_two_beside_both, one_of_three, of_a_custom_function, parts_of_what_is_not_returned,
    one_of_two_alone, with_a_hook_of_the_program, part_of_an_input, parts_of_an_input, parts_alone, one_part_alone,
    part_of_a_view, part_of_a_part, beside_what_is_written,
]  # fmt: skip
# in first derivatives only: in second ones hooks of what autograd cannot come to again raise
PAST_RESULTS: list[Run] = [input_written_to, part_of_a_result, part_of_an_input_written_to]

Seen = list[Any]


def _noted(gradient: Any) -> Any:
    return None if gradient is None else gradient.detach().clone()


def on_tensors(result: torch.Tensor, seen: Seen) -> None:
    def hook(gradient: Any) -> Any:
        seen.append([_noted(gradient)])
        return None if gradient is None else gradient.sin() + 1

    result.register_hook(hook)


def before_nodes(result: torch.Tensor, seen: Seen) -> None:
    result.grad_fn.register_prehook(lambda gradients: seen.append([*map(_noted, gradients)]))  # type: ignore[union-attr]


def changing_before_nodes(result: torch.Tensor, seen: Seen) -> None:
    def hook(gradients: Any) -> Any:
        seen.append([*map(_noted, gradients)])
        return tuple([None if one is None else one * 2 for one in gradients])

    result.grad_fn.register_prehook(hook)  # type: ignore[union-attr]


def removed_again(result: torch.Tensor, seen: Seen) -> None:
    result.grad_fn.register_prehook(lambda gradients: seen.append("called")).remove()  # type: ignore[union-attr]


def behind_nodes(result: torch.Tensor, seen: Seen) -> None:
    result.grad_fn.register_hook(lambda _, gradients: seen.append([*map(_noted, gradients)]))  # type: ignore[union-attr]


HOOKS: list[Callable[[torch.Tensor, Seen], None]] = [
    on_tensors, before_nodes, changing_before_nodes, behind_nodes, removed_again,
]  # fmt: skip


def by_backward(total: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    total.backward()
    return [one.grad for one in leaves]


def by_grad(total: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> Any:
    return torch.autograd.grad(total, leaves, allow_unused=True)


def twice(total: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    first = torch.autograd.grad(total, leaves, allow_unused=True, create_graph=True)
    squares = [one.square().sum() for one in first if one is not None and one.requires_grad]
    again = torch.autograd.grad(squares, leaves, allow_unused=True) if squares else []
    return [*first, *again]


def in_rows(total: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> Any:
    rows = torch.tensor([1.0, -0.5], dtype=total.dtype)
    return torch.autograd.grad(total, leaves, rows, allow_unused=True, is_grads_batched=True)


def _play(run: Run, hook: Callable[[torch.Tensor, Seen], None], among: slice, end: Run, root: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    leaves = tuple(torch.randn(2, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    results = list(run(*[one * 1 for one in leaves]))
    seen: Seen = []
    for one in results[among]:
        hook(one, seen)
    found = end(results[root].sin().sum(), leaves)
    return [*seen, list(map(_noted, found))]


def _check(program: Run, hook: Callable[[torch.Tensor, Seen], None], end: Run, backend: str) -> None:
    for among in (slice(0, None), slice(1, 2)):  # all results; one that is not differentiated
        for root in (0, -1):
            compiled = stator.compile(program, backend=backend, fullgraph=True)
            found, wanted = (_play(run, hook, among, end, root) for run in (compiled, program))
            assert len(found) == len(wanted)
            for left, right in zip(found, wanted, strict=True):
                torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("end", [by_backward, by_grad])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("program", [*PROGRAMS, *PAST_RESULTS])
def test_first_derivative(program: Run, hook: Callable[[torch.Tensor, Seen], None], end: Run) -> None:
    _check(program, hook, end, "aot_eager")


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_second_derivative(program: Run, hook: Callable[[torch.Tensor, Seen], None]) -> None:
    _check(program, hook, twice, "aot_eager")


@pytest.mark.parametrize("hook", [on_tensors, before_nodes])
@pytest.mark.parametrize("program", PAST_RESULTS)
def test_second_derivative_past_results_raises(program: Run, hook: Callable[[torch.Tensor, Seen], None]) -> None:
    compiled = stator.compile(program, backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="differentiated again"):
        _play(compiled, hook, slice(1, 2), twice, 0)


@pytest.mark.parametrize("program", [lambda x, y: (x * y, y), lambda x, y: ((x * y).exp(), (x * y).sin())])
@pytest.mark.parametrize(
    "hook", [lambda inner, outer: inner, lambda inner, outer: len(inner) and None, lambda *_: (0,)]
)
def test_hooks_behind_nodes_that_look_at_what_flows_on_raise(program: Run, hook: Run) -> None:
    x = torch.ones(2, requires_grad=True)
    result = stator.compile(program, backend="aot_eager", fullgraph=True)(x, torch.ones(2))[0]
    result.grad_fn.register_hook(hook)
    with pytest.raises(RuntimeError, match="looks at the gradients of that node's inputs, or replaces them"):
        result.sum().backward()


def test_batched_gradients() -> None:
    def hook(result: torch.Tensor, seen: Seen) -> None:
        result.register_hook(lambda gradient: seen.append(gradient is None))

    _check(of_a_custom_function, hook, in_rows, "aot_eager")


@pytest.mark.parametrize("program", PROGRAMS)
def test_with_kernels(program: Run) -> None:
    _check(program, changing_before_nodes, by_backward, "inductor")
