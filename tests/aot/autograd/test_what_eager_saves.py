"""What eager's nodes would save decides which backwards raise: after a write to it, and when it was freed.

Where eager raises, so does compiled code, although it saved something else; where eager goes on, the gradients are its.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import stator
from stator.aot import compile_training, keep_all, run_eagerly

Tensor = torch.Tensor
BACKENDS = ["aot_eager", "inductor"]
by_backend = pytest.mark.parametrize("backend", BACKENDS)


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(4, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def outcome(run: Callable[..., Any]) -> Any:
    """What is seen, or the beginning of the error."""
    try:
        return run()
    except RuntimeError as error:
        return str(error).partition("(")[0].partition(":")[0]


def same(program: Callable[..., Any], seen: Callable[..., Any], backend: str) -> Any:
    """What compiled code shows, having checked that it is what eager does."""
    expected = outcome(lambda: seen(program))
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    found = outcome(lambda: seen(compiled))
    check(found, expected)
    return found


def check(found: Any, expected: Any) -> None:
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


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

    def seen(call: Callable[..., Any]) -> Any:
        leaves = inputs()
        loss = call(*leaves)
        with torch.no_grad():
            leaves[at].mul_(2)
        loss.backward()
        return [leaf.grad for leaf in leaves]

    expected = outcome(lambda: seen(WRITTEN[name]))
    found = outcome(lambda: seen(stator.compile(WRITTEN[name], backend=backend, fullgraph=True)))
    if isinstance(expected, str) or not isinstance(found, str):  # what only compiled code saves may raise
        check(found, expected)


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
    def seen(call: Callable[..., Any]) -> Any:
        leaves = inputs()
        result, *_, loss = call(*leaves)
        with torch.no_grad():
            write(result)
        del result
        loss.backward()
        return [leaf.grad for leaf in leaves]

    same(RESULTS[name], seen, "aot_eager")


@by_backend
def test_a_write_after_the_programs_own(backend: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return (x + 1) * w

    def seen(late: bool, call: Callable[..., Any]) -> Any:
        leaf, w, _ = inputs()
        x = leaf * 1
        result = call(x, w)
        with torch.no_grad():
            if late:
                x.mul_(2)
        result.sum().backward()
        return [leaf.grad, w.grad]

    for late in (False, True):
        same(program, partial(seen, late), backend)
        same(lambda x, w: (x.mul_(2) * w).exp(), partial(seen, late), backend)


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


def test_no_memory_is_held_for_a_version() -> None:
    x, w, _ = inputs()
    _, loss = stator.compile(lambda x, w: (h := x + w, (h * w).sum()), backend="aot_eager")(x, w)
    node = loss.grad_fn.next_functions[0][0]
    assert node.watched
    assert all(counter.untyped_storage().nbytes() == 0 for counter, _ in node.watched.values())


def test_a_call_that_fails_before_it_writes_is_not_kept() -> None:
    """Its node holds what was saved."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return x * w

    class Refuses(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is Tensor.copy_:
                raise RuntimeError("no writes")
            return func(*args, **(kwargs or {}))

    leaf, w, _ = inputs()
    compiled = compile_training(torch.fx.symbolic_trace(program), [leaf * 1, w], run_eagerly, keep=keep_all)
    kept = weakref.ref(w)
    with Refuses(), pytest.raises(RuntimeError, match="no writes"):
        compiled(leaf * 1, w)
    del w
    assert kept() is None


TWICE: dict[str, Callable[..., Any]] = {
    "one of them saves": lambda x, w, b: (x @ w + b,),
    "a sum and a product": lambda x, w, b: (x + w, (x * w)),
    "a product of a sum": lambda x, w, b: (h := x + w, h * b),
    "a sum of a product": lambda x, w, b: (h := x * w, h + b),
    "a chain": lambda x, w, b: (h := (x * w).exp(), k := h + b, (k * k).sum()),
    "a number": lambda x, w, b: (x * 3 + w, w / 2),
}


def _one_after_the_other(call: Callable[..., Any], steps: tuple[tuple[int, int], ...], create: bool) -> list[Any]:
    leaves = inputs()
    made = call(*leaves)

    def gradient(result: int, leaf: int) -> Any:
        (found,) = torch.autograd.grad(
            made[result].sum(), leaves[leaf], create_graph=create, retain_graph=False, allow_unused=True
        )
        return None if found is None else found.detach()

    return [outcome(partial(gradient, *step)) for step in steps]


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_backwards_of_some_inputs_one_after_the_other(name: str, create: bool) -> None:
    """Eager frees what the nodes saved that a backward comes through on its way to what is asked for."""
    compiled = stator.compile(TWICE[name], backend="aot_eager", fullgraph=True)
    steps = [(result, leaf) for result in range(len(TWICE[name](*inputs()))) for leaf in range(3)]
    for first in steps:
        for second in steps:
            order = first, second, first
            for found, expected in zip(
                _one_after_the_other(compiled, order, create),
                _one_after_the_other(TWICE[name], order, create),
                strict=True,
            ):
                check(found, expected)


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


def _with_a_leaf(x: Tensor, w: Tensor, b: Tensor) -> Any:
    made = (x.detach() * 2).requires_grad_()
    return made.sin() + w, (made * b).exp() + 1


@pytest.mark.parametrize("first", ["all", "an input", "another input"])
@pytest.mark.parametrize("result", [0, 1])
def test_twice_through_what_leads_to_a_leaf_that_the_program_made(first: str, result: int) -> None:
    """A backward of some inputs does not run it."""

    def seen(call: Callable[..., Any]) -> Any:
        _, w, b = inputs()
        loss = call(inputs()[0], w, b)[result].sum()
        if first == "all":
            loss.backward()
        else:
            torch.autograd.grad(loss, w if first == "an input" else b, allow_unused=True)
        found = torch.autograd.grad(loss, w, allow_unused=True)
        loss.backward()
        return *found, w.grad, b.grad

    same(_with_a_leaf, seen, "aot_eager")


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
    """The nodes of what another thread computes are taken when no others are left."""

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


@by_backend
def test_from_result_to_result_past_what_was_freed(backend: str) -> None:
    """What lies between was not freed, what the first result was computed from was."""

    def program(x: Tensor, w: Tensor, b: Tensor) -> Any:
        hidden = (x * w).exp()
        return hidden, (hidden * b).sin().sum()

    def seen(call: Callable[..., Any]) -> Any:
        leaves = inputs()
        hidden, loss = call(*leaves)
        hidden.sum().backward()
        return [*torch.autograd.grad(loss, hidden), leaves[0].grad]

    assert not isinstance(same(program, seen, backend), str)


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
    check(found, outcome(lambda: seen(program)))


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

    def seen(late: str, call: Callable[..., Any]) -> Any:
        x, w, _ = inputs()
        w = w * 1
        h, other, loss = call(x, w)
        for name, one in (("input", w), ("what was written", other), ("what was written to", h)):
            if name == late:
                one.detach().mul_(2)
        loss.sum().backward()
        return x.grad

    for late in ("nothing", "input", "what was written", "what was written to"):
        same(program, partial(seen, late), "aot_eager")


@by_backend
def test_a_write_to_an_input_that_the_program_copied(backend: str) -> None:
    """A queue of keys: what is compared with them is the copy, and new keys come in before the backward."""

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
