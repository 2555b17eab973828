"""Writes between a forward and its backward, and a second backward: gradients are never those of other values.

Where eager goes on, compiled code has its gradients, or raises. Where eager raises because of a write, compiled code,
which saves other values, raises or has the gradients of what the forward read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.differential import DOUBLE, assert_same

import stator
from stator.aot import compile_training, keep_all, run_eagerly

Tensor = torch.Tensor
BACKENDS = ["aot_eager", "inductor"]
by_backend = pytest.mark.parametrize("backend", BACKENDS)


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(4, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def outcome(run: Callable[..., Any]) -> Any:
    """The scenario's values, or the beginning of its error."""
    try:
        return run()
    except RuntimeError as error:
        return str(error).partition("(")[0].partition(":")[0]


def same(program: Callable[..., Any], seen: Callable[..., Any], backend: str) -> Any:
    """Compare both outcomes; returns the compiled one."""
    expected = outcome(lambda: seen(program))
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    found = outcome(lambda: seen(compiled))
    assert_same(found, expected, DOUBLE)
    return found


def same_or_of_the_forward(program: Callable[..., Any], seen: Callable[..., Any], backend: str) -> None:
    """seen(call, write): the gradients, with or without a write between forward and backward."""
    expected = outcome(lambda: seen(program, True))
    found = outcome(lambda: seen(stator.compile(program, backend=backend, fullgraph=True), True))
    if isinstance(found, str):
        assert "modified by an inplace operation" in found  # also for tensors that only compiled code saves
    else:
        wanted = outcome(lambda: seen(program, False)) if isinstance(expected, str) else expected
        assert_same(found, wanted, DOUBLE)


WRITTEN: dict[str, Callable[..., Any]] = {
    "quotient": lambda x, w, b: (x / (w + 3)).sum(),
    "cheap": lambda x, w, b: ((x + 1).exp() * w).sin().sum(),
    "bias": lambda x, w, b: torch.relu(x @ w + b).sum(),
    "linear": lambda x, w, b: (x @ w).sum() + b.sum(),
    "a view": lambda x, w, b: (x[0] * w[1]).sum() + b.sum(),
    "a part that is written to": lambda x, w, b: (x * 1).index_fill(0, torch.tensor([1]), 0.0).mul(w).sum() + b.sum(),
    "normalised": lambda x, w, b: torch.nn.functional.layer_norm(x, (4,), w[0], b[0]).square().sum(),
}


@pytest.mark.parametrize("backend,at", [("aot_eager", 0), ("aot_eager", 1), ("aot_eager", 2), ("inductor", 1)])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_write_to_an_input(name: str, backend: str, at: int) -> None:
    """An input that eager saved and compiled code computes from again, or not at all."""

    def seen(call: Callable[..., Any], written: bool) -> Any:
        leaves = inputs()
        loss = call(*leaves)
        with torch.no_grad():
            if written:
                leaves[at].mul_(2)
        loss.backward()
        return [leaf.grad for leaf in leaves]

    same_or_of_the_forward(WRITTEN[name], seen, backend)


RESULTS: dict[str, Callable[..., Any]] = {
    "exponential": lambda x, w, b: (h := (x * w).exp(), (h * 2).sum()),
    "saved by what is computed from it": lambda x, w, b: (h := x + w, (h * b).sum()),
    "saved by nobody": lambda x, w, b: (h := x + w, (h + b).sum()),
    "through a view": lambda x, w, b: (h := (x * w).tanh(), h[0].sum() + b.sum()),
    "beside what it is computed from": lambda x, w, b: (h := x.exp(), h.detach(), (h * w).sum()),
    "of a memory of two": lambda x, w, b: (h := x.exp(), h.t(), (h * w).sum()),
}


@pytest.mark.parametrize("write", [lambda h: h.detach().mul_(2), lambda h: h[0].detach().add_(1), lambda h: h.mul_(2)])
@pytest.mark.parametrize("name", RESULTS)
def test_a_write_to_a_result(name: str, write: Callable[..., Any]) -> None:
    def seen(call: Callable[..., Any], written: bool) -> Any:
        leaves = inputs()
        result, *_, loss = call(*leaves)
        with torch.no_grad():
            if written:
                write(result)
        del result
        loss.backward()
        return [leaf.grad for leaf in leaves]

    same_or_of_the_forward(RESULTS[name], seen, "aot_eager")


@by_backend
def test_a_write_after_the_programs_own(backend: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return (x + 1) * w

    def seen(call: Callable[..., Any], late: bool) -> Any:
        leaf, w, _ = inputs()
        x = leaf * 1
        result = call(x, w)
        with torch.no_grad():
            if late:
                x.mul_(2)
        result.sum().backward()
        return [leaf.grad, w.grad]

    same_or_of_the_forward(program, seen, backend)
    same_or_of_the_forward(lambda x, w: (x.mul_(2) * w).exp(), seen, backend)


@by_backend
def test_running_statistics_that_move_between_forward_and_backward(backend: str) -> None:
    """Eager's batch norm writes to them without saying so, and saves them."""
    norm = torch.nn.BatchNorm1d(4, dtype=torch.float64)
    compiled = stator.compile(norm, backend=backend, fullgraph=True)
    x, *_ = inputs()
    first, second = compiled(x), compiled(x * 2)
    first.square().sum().backward()
    second.sum().backward()
    assert x.grad is not None


def test_a_step_between_forward_and_backward_is_noticed() -> None:
    """As it is when parameters are stepped before the second of two losses."""

    def seen(call: Callable[..., Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4)).double()
        run = call(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = run(inputs()[0].detach()).sum()
        other = run(inputs()[1].detach()).sum()
        loss.backward()
        optimizer.step()
        other.backward()

    expected = outcome(lambda: seen(lambda model: model))
    assert isinstance(expected, str)
    assert outcome(lambda: seen(lambda model: stator.compile(model, backend="aot_eager"))) == expected


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


@by_backend
def test_twice_through_a_function_that_saves_nothing(backend: str) -> None:
    def seen(call: Callable[..., Any]) -> Any:
        x, *_ = inputs()
        result = call(x)
        result.backward(torch.ones_like(result))
        result.backward(torch.ones_like(result))
        return x.grad

    assert not isinstance(same(lambda x: Tripled.apply(x), seen, backend), str)


def test_a_result_that_leads_only_to_a_leaf_that_the_program_made() -> None:
    def program(x: Tensor, w: Tensor) -> Any:
        return (x.detach() * 2).requires_grad_().sin(), x * w

    def seen(call: Callable[..., Any], at: int) -> Any:
        results = call(*inputs()[:2])
        results[at].sum().backward()
        return outcome(lambda: results[at].sum().backward()), [one.requires_grad for one in results]

    compiled = compile_training(torch.fx.symbolic_trace(program), inputs()[:2], run_eagerly, keep=keep_all)
    for at in (0, 1):
        assert seen(compiled, at) == seen(program, at)


def test_a_leaf_that_the_program_made_is_led_to_before_tangents_of_other_results_are_there() -> None:
    """Autograd runs the nodes of another thread when no others are left."""

    def program(x: Tensor, w: Tensor) -> Any:
        return (x.detach() * 2).requires_grad_() * w, x * w

    def seen(call: Callable[..., Any]) -> Any:
        x, w, _ = inputs()
        first, second = call(x * 1, w)

        def work() -> None:
            (second.sin().sum() + first.sin().sum() * 2).backward()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return x.grad, w.grad

    same(program, seen, "aot_eager")


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * 2


@pytest.mark.parametrize("late", [False, True])
def test_a_write_to_what_a_custom_function_saved(late: bool) -> None:
    """By the program itself, or by its caller."""

    def program(x: Tensor) -> Any:
        y = x * 2
        result = Squared.apply(y)
        if not late:
            y.add_(1)
        return y, result.sum()

    def seen(call: Callable[..., Any]) -> Any:
        x, *_ = inputs()
        y, loss = call(x)
        if late:
            with torch.no_grad():
                y.add_(1)
        loss.backward()
        return x.grad

    found = outcome(lambda: seen(stator.compile(program, backend="aot_eager")))
    assert isinstance(found, str)
    assert_same(found, outcome(lambda: seen(program)), DOUBLE)


def _multiplied(h: Tensor, w: Tensor) -> None:
    h[0].mul_(w[0])


def _added(h: Tensor, w: Tensor) -> None:
    h[0].add_(w[0])


def _exponential(h: Tensor, w: Tensor) -> None:
    h[0].add_(w[0])
    h[:2].exp_()


def _copied(h: Tensor, w: Tensor) -> None:
    h[1] = w[0] * 2


def _divided(h: Tensor, w: Tensor) -> None:
    h[:, 1:].div_(w[:, 1:] + 1)
    h[0].mul_(w.detach()[0])


def _combined(h: Tensor, w: Tensor) -> None:
    h.t()[1].addcmul_(w[0], w[1])


def _masked(h: Tensor, w: Tensor) -> None:
    h[:2].masked_fill_(w[:2].detach() > 0.5, 0.5)
    h[:2][torch.tensor([0, 1]), torch.tensor([1, 3])] = w[0, 0]


WRITES_TO_VIEWS = [_multiplied, _added, _exponential, _copied, _divided, _combined, _masked]


@pytest.mark.parametrize("start", [lambda x: x * 1, lambda x: (x * 1).detach()], ids=["followed", "not followed"])
@pytest.mark.parametrize("write", WRITES_TO_VIEWS)
def test_a_write_to_what_a_write_to_a_view_saved(write: Callable[..., None], start: Callable[..., Tensor]) -> None:
    """Autograd hides the node of the operator behind that of the base."""

    def program(x: Tensor, w: Tensor) -> Any:
        h, other = start(x), w + 1
        write(h, other)
        return h, other, w + h.sum()

    def seen(late: str, call: Callable[..., Any], written: bool) -> Any:
        x, w, _ = inputs()
        w = w * 1
        h, other, loss = call(x, w)
        for name, one in (("input", w), ("what was written", other), ("what was written to", h)):
            if written and name == late:
                one.detach().mul_(2)
        loss.sum().backward()
        return x.grad

    for late in ("input", "what was written", "what was written to"):
        same_or_of_the_forward(program, partial(seen, late), "aot_eager")


@by_backend
def test_a_write_to_an_input_that_the_program_copied(backend: str) -> None:
    """A queue of keys: the program compares with a copy, and new keys come in before the backward."""

    def seen(call: Callable[..., Any]) -> Any:
        weight, queue, x = (leaf.detach() for leaf in inputs())
        weight.requires_grad_()
        gradients = []
        for turn in range(3):
            similar, keys = call(x + turn, weight, queue)
            queue[:, turn] = keys[0]
            gradients.append(torch.autograd.grad(similar.square().sum(), weight))
        return gradients

    def program(x: Tensor, weight: Tensor, queue: Tensor) -> Any:
        keys = x @ weight
        return keys @ queue.clone().detach(), keys.detach()

    assert not isinstance(same(program, seen, backend), str)


def test_a_copy_that_no_gradient_needs_is_not_made() -> None:
    saved: list[Tensor] = []
    x, *_ = inputs()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        stator.compile(lambda x: (x.clone() + 1).sum())(x)
    assert saved == []
