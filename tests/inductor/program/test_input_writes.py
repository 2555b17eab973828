"""New contents of inputs are written straight into the inputs' memory where that is safe, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator import pipeline
from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower
from stator.inductor.program.steps import Launch, Program
from stator.pipeline import compile_graph


def add(x, y):
    x.add_(y)
    return x * 2


def chain(x, y):
    x.add_(y)
    x.mul_(2)
    y.add_(x)
    return x.sum()


def rows_centred(x, y):
    x.sub_(x.mean(-1, keepdim=True))


def softmax_of_itself(x, y):
    x.copy_(x.softmax(-1))


def scaled_by_its_norm(x, y):
    x.mul_(1 / (x.square().sum().sqrt() + 1))


def returned_too(x, y):
    x.mul_(3)
    return x, x + 1


def old_value_is_read_earlier(x, y):
    product = x @ y
    x.add_(1)
    return product + y


def old_value_is_returned(x, y):
    kept = x.clone()
    x.add_(1)
    return kept


def product_into(x, y):
    torch.mm(y, y, out=x)


def rows_stored(x, y):
    x.index_copy_(0, y[0, :3].argsort(), y[:3])
    return x.sum(0)


def rows_assigned(x, y):
    x[y[0, :4].argsort()] = y[:4]


def running_statistics(x, y):
    y[0].lerp_(x.mean(0), 0.1)
    return x - x.mean(0)


IN_PLACE = [
    *(add, chain, rows_centred, softmax_of_itself, scaled_by_its_norm, returned_too, old_value_is_read_earlier),
    *(old_value_is_returned, product_into, rows_stored, rows_assigned),
]


def flipped(x, y):
    x.add_(x.flip(0))


def transposed(x, y):
    x.add_(x.t() * 2)


def whole_column(x, y):
    x.sub_(x.mean(0, keepdim=True) + x[:1])


def exchanged(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def copy_of_the_new_value_is_returned(x, y):
    x.add_(1)
    return x.clone()


def product_of_itself(x, y):
    torch.mm(x.clone(), y, out=x)


def rows_exchanged(x, y):
    x[:2] = x[2:4].clone()
    return x.sum()


def both_values_are_read_by_one_kernel(x, y):
    product = x @ y
    x.add_(1)
    return product + x


def old_column_after_new_row(x, y):
    before = x[:, 0].clone()
    x.mul_(2)
    return x @ y + before


OTHERS = [
    *(flipped, transposed, whole_column, exchanged, copy_of_the_new_value_is_returned, product_of_itself),
    *(rows_exchanged, old_column_after_new_row, running_statistics),
    both_values_are_read_by_one_kernel,
]

LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "with_gaps": lambda x: torch.empty(2 * x.shape[0], 2 * x.shape[1])[::2, ::2].copy_(x),
}


def compiled(function: Callable, *tensors: torch.Tensor):
    """The compiled graph of `function`, which gives None for what it wrote itself, and the number of inputs mutated."""
    traced = trace(function, tensors, keep=can_lower)
    traced.graph.meta["mutated"] = list(traced.mutated)
    return compile_graph(traced.graph, tensors, options=Options(verify=True)), traced.mutated


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda f: f.__name__)
def test_written_in_place(function: Callable) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(48, 48), torch.randn(48, 48)
    expected = [x.clone(), y.clone()]
    function(*expected)
    call, mutated = compiled(function, x, y)
    results = call(x, y)
    assert mutated and all(results[position] is None for _, position in mutated)
    torch.testing.assert_close([x, y], expected)


@pytest.mark.parametrize("function", [rows_stored, rows_assigned], ids=lambda f: f.__name__)
def test_rows_stored_into_an_input_leave_the_others_alone(function: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel runs over the whole input but that of the sum."""
    programs: list[Program] = []
    usual = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda *args, **named: programs.append(usual(*args, **named)) or programs[-1])
    compiled(function, torch.randn(48, 48), torch.randn(48, 48))
    (program,) = programs
    launches = [step for step in program.steps if isinstance(step, Launch)]
    assert len(launches) == (2 if function is rows_stored else 1)


@pytest.mark.each_pair
@pytest.mark.parametrize("function", [*IN_PLACE, *OTHERS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [5, 48])
def test_as_eager(function: Callable, layout: str, size: int) -> None:
    torch.manual_seed(1)
    lay = LAYOUTS[layout]
    x, y = torch.randn(size, size), torch.randn(size, size)
    theirs, ours = [lay(x.clone()), lay(y.clone())], [lay(x.clone()), lay(y.clone())]
    fast = stator.compile(function, options={"verify": True})
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(*ours), function(*theirs), equal_nan=True)
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("function", [flipped, transposed, whole_column, product_of_itself])
def test_not_written_while_the_old_content_is_needed(function: Callable) -> None:
    torch.manual_seed(2)
    x, y = torch.randn(48, 48), torch.randn(48, 48)
    before = x.clone()
    call, [(index, position)] = compiled(function, x, y)
    results = call(x, y)
    assert index == 0 and torch.equal(x, before)
    function(before, y)
    torch.testing.assert_close(results[position], before)


def test_version_counters_move_on() -> None:
    def update(x, y):
        x.add_(1)
        y.add_(y.flip(0))

    x, y = torch.zeros(4), torch.zeros(4)
    with torch.no_grad():
        stator.compile(update)(x, y)
    assert x._version == y._version == 1


def test_autograd_notices_what_was_written() -> None:
    weight = torch.ones(3, requires_grad=True)
    x = torch.ones(3)
    product = weight * x
    with torch.no_grad():
        stator.compile(lambda t: t.mul_(2))(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.zeros(4)
        stator.compile(lambda t: t.add_(1))(x)
    assert torch.equal(x, torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_other_dtypes(dtype: torch.dtype) -> None:
    def update(x):
        x.logical_not_() if x.dtype is torch.bool else x.mul_(2)

    x = torch.arange(37).to(dtype)
    expected = x.clone()
    update(expected)
    call, [(_, position)] = compiled(update, x)
    assert call(x)[position] is None
    assert torch.equal(x, expected)
