"""Calls of compiled steps through autograd, whose forward is in C: what the backward finds, and errors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from stator.runtime import launch

pytestmark = pytest.mark.skipif(launch.step_forward is None, reason="needs the C extension and a known layout")


class Step(torch.autograd.Function):
    """Gradients are the first tangent."""

    forward = staticmethod(launch.step_forward or (lambda *_: None))

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> tuple[Any, ...]:
        return (None, *[tangents[0]] * len(ctx.record.primals))


class Owner:
    """What the backward gets."""


def call_of(
    run: Callable[..., Sequence[Any]],
    count: int = 1,
    results: Sequence[int] = (0,),
    saved: tuple[int, ...] = (),
    placed: bool = False,
    distinct: Callable[..., Any] = tuple,
    step: object = None,
    states: Callable[[], Any] | None = None,
    **others: Any,
) -> Callable[..., Any]:
    return launch.make_step_call(Step.apply, step, run, count, list(results), saved, placed, states, distinct, **others)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(3.0, requires_grad=True)


def test_the_record_holds_what_python_would_keep(x: torch.Tensor) -> None:
    owner, y = Owner(), torch.ones(3)
    y.add_(1)
    call = call_of(lambda x, y: (x + y, x * y, x - y), 2, (1,), (1, ~2, ~0), placed=True, step=owner)
    added, product = call(x, y)
    record = product.grad_fn.record
    assert record.step is owner
    assert record.primals[0] is x and record.primals[1] is y and len(record.primals) == 2
    assert record.versions == launch.versions([x, y]) == [0, 1]
    ((at, reference, version),) = record.results
    assert (at, version) == (1, 0) and reference() is product
    assert launch.lie_at(record.primals, product.grad_fn.memory[0])
    assert [one.tolist() for one in product.grad_fn.saved_tensors] == [y.tolist(), (x + y).tolist()]
    saved = [one.tolist() for one in record.saved(product.grad_fn.saved_tensors)]
    assert saved == [y.tolist(), (x - y).tolist(), (x + y).tolist()]
    (added.sum() + product.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 1]
    del product
    assert record.results[0][1]() is None


def test_states_are_taken_ahead_of_the_run(x: torch.Tensor) -> None:
    order: list[str] = []

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        order.append("run")
        return [x + 1]

    (found,) = call_of(run, states=lambda: (order.append("states"), 5)[1])(x)
    assert order == ["states", "run"] and found.grad_fn.states == 5


def test_freed_primals_are_let_go(x: torch.Tensor) -> None:
    y = torch.ones(3)
    reference = weakref.ref(y)
    (found,) = call_of(lambda x, y: [x + y])(x, y)
    del y
    assert reference() is not None
    found.grad_fn.record.primals = ()
    assert reference() is None and found.grad_fn.record.primals == ()


def test_results_that_only_the_backward_sees_live_until_they_are_dropped(x: torch.Tensor) -> None:
    (found,) = call_of(lambda x: (x + 1, x.detach() + 5), saved=(~1,))(x)
    node = found.grad_fn
    reference = weakref.ref(node.record.saved(())[0])
    gc.collect()
    assert node.saved_tensors == () and reference() is not None
    node.record.drop_hidden()
    assert reference() is None
    with pytest.raises(RuntimeError, match="freed"):
        node.record.saved(())


def test_hooks_on_saved_tensors_get_results_that_only_the_backward_sees(x: torch.Tensor) -> None:
    seen: list[list[float]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.tolist())
        return tensor * 2

    y = torch.ones(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor / 2):
        (found,) = call_of(lambda x, y: (x + y, x.detach() + 5), saved=(1, ~1))(x, y)
    assert seen == [[1, 1, 1], [5, 6, 7]]
    assert [one.tolist() for one in found.grad_fn.record.saved(found.grad_fn.saved_tensors)] == seen


def test_values_that_cannot_be_differentiated(x: torch.Tensor) -> None:
    one, nothing, other = call_of(lambda x: (x + 1, None, x + 2), 3, (0, 2), constants=(1, 2))(x)
    assert one.requires_grad and nothing is None and not other.requires_grad


def test_written_primals_have_no_version_and_may_not_require_grad(x: torch.Tensor) -> None:
    asked: list[tuple[torch.Tensor, ...]] = []

    def general(*primals: torch.Tensor) -> str:
        asked.append(primals)
        return "general"

    call = call_of(lambda x, y: (x + 1,), written=(1,), general=general)
    y = torch.ones(3)
    (found,) = call(x, y)
    assert found.grad_fn.record.versions == [0, -1] and not asked
    y.requires_grad_()
    assert call(x, y) == "general" and asked[0][0] is x and asked[0][1] is y
    assert call(x, y * 2) == "general"
    with pytest.raises(TypeError, match="writes"):
        call(x)


@pytest.mark.parametrize("kind", [tuple, list])
def test_results_behind_the_values_are_dropped(x: torch.Tensor, kind: Any) -> None:
    found = call_of(lambda x: kind([x + 1, x + 2, "more"]), 2, (0, 1))(x)
    assert [one.tolist() for one in found] == [[1, 2, 3], [2, 3, 4]]
    assert all(one.requires_grad for one in found)


def test_equal_values_become_distinct(x: torch.Tensor) -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y

    one, other = call_of(twice, 2, (0, 1), distinct=lambda values: (values[0], values[1].clone()))(x)
    assert one is not other and one.data_ptr() != other.data_ptr()


@pytest.mark.parametrize(
    ("run", "options", "error"),
    [
        (lambda x: x + 1, {}, TypeError),  # no tuple
        (lambda x: (), {}, TypeError),
        (lambda x: (x + 1,), {"saved": (~1,)}, TypeError),  # too few results for the backward
        (lambda x: (x + 1,), {"saved": (1,)}, TypeError),  # too few primals
        (lambda x: (x + 1,), {"results": (1,)}, IndexError),
        (lambda x: ("text",), {}, TypeError),
        (lambda x: 1 / 0, {}, ZeroDivisionError),
        (lambda x: (x + 1,), {"states": lambda: 1 / 0}, ZeroDivisionError),
        (lambda x: (x + 1, x + 1)[:1] * 2, {"count": 2, "results": (0, 1), "distinct": list}, TypeError),
    ],
)
def test_errors_pass(x: torch.Tensor, run: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call_of(run, **options)(x)
    (found,) = call_of(lambda x: (x * 2,))(x)  # the next call is not affected
    assert found.tolist() == [0, 2, 4]


def test_keywords_and_strange_contexts_are_refused(x: torch.Tensor) -> None:
    call = call_of(lambda x: (x,))
    with pytest.raises(TypeError):
        call(x, y=x)
    with pytest.raises(TypeError):
        launch.step_forward(object())  # type: ignore[misc]
    with pytest.raises(TypeError):
        launch.step_forward(object(), object(), x)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        launch.step_forward(object(), call, x)  # type: ignore[misc]


def test_cycles_through_calls_are_collected(x: torch.Tensor) -> None:
    owner = Owner()
    reference = weakref.ref(owner)
    owner.call = call_of(lambda x: (x + 1,), step=owner)  # type: ignore[attr-defined]
    owner.kept = owner.call(x)[0].grad_fn  # type: ignore[attr-defined]
    del owner
    gc.collect()
    assert reference() is None
