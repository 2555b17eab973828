"""Marks on tensors by which a program tells which sizes change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.counting_backend import CountingBackend
from tests.differential import BY_BACKEND, Counts, assert_same_outcome, observe

import stator


def marked(size: int, mark: Any = stator.mark_dynamic, dim: Any = 0, **options: Any) -> torch.Tensor:
    x = torch.randn(size, 4)
    mark(x, dim, **options)
    return x


def plus(x: torch.Tensor) -> torch.Tensor:
    return x + x.shape[0]


def fixed(x: torch.Tensor) -> torch.Tensor:
    return x + sum(range(x.shape[0]))


def graph_count(function: Any, inputs: list[torch.Tensor], **options: Any) -> int:
    backend = CountingBackend()
    compiled = stator.compile(function, backend=backend, fullgraph=True, **options)
    for x in inputs:
        torch.testing.assert_close(compiled(x), function(x))
    return len(backend.graphs)


MARKS = [
    stator.mark_dynamic,
    stator.maybe_mark_dynamic,
    torch._dynamo.mark_dynamic,
    torch._dynamo.maybe_mark_dynamic,
    stator.mark_unbacked,
]


@pytest.mark.parametrize("mark", MARKS)
def test_a_marked_size_is_a_symbol_at_once(mark):
    assert graph_count(plus, [marked(size, mark) for size in (5, 7, 9)]) == 1


def test_a_negative_or_listed_dimension():
    assert graph_count(plus, [marked(size, dim=[-2]) for size in (5, 7, 9)]) == 1


@pytest.mark.parametrize("mark", [stator.mark_static, torch._dynamo.mark_static])
def test_a_static_size_stays_a_constant(mark):
    assert graph_count(plus, [marked(size, mark) for size in (5, 7, 9)], dynamic=True) == 3


def test_all_dimensions_are_static():
    assert graph_count(plus, [marked(size, stator.mark_static, None) for size in (5, 7, 9)], dynamic=True) == 3


def test_an_unbacked_size_may_be_zero_or_one():
    assert graph_count(lambda x: x * 2, [marked(size, stator.mark_unbacked) for size in (5, 0, 1, 9)]) == 1


def test_a_branch_on_an_unbacked_size_is_refused():
    compiled = stator.compile(lambda x: x if x.shape[0] > 3 else x + 1, backend="eager", fullgraph=True)
    with pytest.raises(stator.Unsupported, match="data-dependent"):
        compiled(marked(5, stator.mark_unbacked))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_dynamic_size_of_one_value_is_an_error_at_its_line(fullgraph):
    compiled = stator.compile(fixed, backend="eager", fullgraph=fullgraph)
    with pytest.raises(stator.ConstraintViolation, match=r"x.size\(0\) has to be 5") as caught:
        compiled(marked(5))
    assert caught.value.place.line == fixed.__code__.co_firstlineno + 1


def test_a_preferred_size_may_have_one_value():
    assert graph_count(fixed, [marked(size, stator.maybe_mark_dynamic) for size in (5, 7)]) == 2


def test_a_narrower_range_than_promised_is_an_error():
    def branch(x):
        return x + 1 if x.shape[0] < 50 else x - 1

    compiled = stator.compile(branch, backend="eager")
    assert compiled(marked(5, min=2, max=40)).shape == (5, 4)
    stator.reset()
    with pytest.raises(stator.ConstraintViolation, match=r"must not be 50, and is promised to be between 2 and 100"):
        compiled(marked(5, min=2, max=100))


@pytest.mark.parametrize("mark", [stator.mark_dynamic, torch._dynamo.mark_dynamic])
@pytest.mark.parametrize(
    ("question", "refused"),
    [
        (lambda n: n % 2 == 0, 3),
        (lambda n: n * n != 81, 9),
        (lambda n: (n - 2) * (n - 3) > 0, 2),
    ],
)
def test_a_range_that_a_fact_makes_holes_into_is_an_error_at_its_line(mark, question, refused):
    def branch(x):
        return x + 1 if question(x.shape[0]) else x - 1

    compiled = stator.compile(branch, backend="eager")
    with pytest.raises(stator.ConstraintViolation, match=rf"x.size\(0\) must not be {refused}") as caught:
        compiled(marked(8, mark, min=2, max=512))
    assert caught.value.place.line in (branch.__code__.co_firstlineno + 1, question.__code__.co_firstlineno)


def test_a_view_of_blocks_breaks_the_promise_of_a_range():
    def blocks(x):
        return x.view(-1, 4, x.shape[1]).sum(1)

    compiled = stator.compile(blocks, backend="eager")
    with pytest.raises(stator.ConstraintViolation, match=r"x.size\(0\) must not be") as caught:
        compiled(marked(8, min=2, max=512))
    assert caught.value.place.line == blocks.__code__.co_firstlineno + 1


def test_a_range_may_have_holes_where_it_is_not_promised():
    def branch(x):
        return x + 1 if x.shape[0] % 2 == 0 else x - 1

    assert graph_count(branch, [marked(size) for size in (6, 7, 8, 9)]) == 2


@pytest.mark.parametrize("question", [lambda n: n > 5, lambda n: n % 2 == 0])
def test_the_promise_of_an_equal_size_is_kept(question):
    def branch(x, y):
        return x + y if question(x.shape[0]) else x - y

    compiled = stator.compile(branch, backend="eager")
    with pytest.raises(stator.ConstraintViolation, match=r"y.size\(0\) must not be"):
        compiled(marked(8), marked(8, min=2, max=512))


@pytest.mark.parametrize("mark", [stator.mark_dynamic, torch._dynamo.mark_dynamic])
def test_a_range_of_one_size_promises_a_constant(mark):
    compiled = stator.compile(fixed, backend="eager")
    x = marked(5, mark, min=5, max=5)
    torch.testing.assert_close(compiled(x), fixed(x))
    with pytest.raises(stator.ConstraintViolation, match="is 7, and not between 5 and 5"):
        compiled(marked(7, mark, min=5, max=5))


def test_two_sizes_with_ranges_may_be_equal():
    backend = CountingBackend()
    compiled = stator.compile(torch.add, backend=backend, fullgraph=True)
    for size in (5, 7, 512):
        x, y = marked(size, min=2, max=512), marked(size, min=2, max=512)
        torch.testing.assert_close(compiled(x, y), x + y)
    assert len(backend.graphs) == 1


def test_a_mark_without_a_range_promises_several_sizes():
    def branch(x):
        return x + 1 if x.shape[0] < 50 else x - 1

    assert graph_count(branch, [marked(size) for size in (5, 7, 60, 70)]) == 2


def test_a_size_outside_of_the_promised_range_is_an_error():
    compiled = stator.compile(plus, backend="eager")
    with pytest.raises(stator.ConstraintViolation, match="is 50, and not between 2 and 40"):
        compiled(marked(50, min=2, max=40))


def test_a_range_is_checked_in_later_calls():
    compiled = stator.compile(plus, backend="eager")
    compiled(marked(5, min=2, max=40))
    x = torch.randn(50, 4)
    with stator.set_stance("fail_on_recompile"), pytest.raises(stator.RecompileError, match=r"x.size\(0\) is 50"):
        compiled(x)


def test_static_marks_in_compiled_code_fix_sizes():
    def program(x):
        stator.mark_static(x, 0)
        return x + x.shape[0]

    assert graph_count(program, [torch.randn(size, 4) for size in (5, 7, 9)], dynamic=True) == 3


@pytest.mark.fixed_sizes
def test_other_marks_in_compiled_code_do_nothing():
    def program(x):
        stator.mark_dynamic(x, 0)
        stator.maybe_mark_dynamic(x, 0)
        return x + x.shape[0]

    assert graph_count(program, [torch.randn(size, 4) for size in (5, 7, 9)]) == 2


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: stator.mark_dynamic(3, 0), "takes a tensor, not int"),
        (lambda: stator.mark_dynamic(torch.ones(2), 1), "a tensor of 1 dimensions has no dimension 1"),
        (lambda: stator.mark_dynamic(torch.ones(2), 0, min=5, max=4), "min 5 is larger than max 4"),
    ],
)
def test_unfit_marks_are_refused(call, error):
    with pytest.raises(stator.UsageError, match=error):
        call()


UNBACKED = {
    "rows": lambda x: torch.nn.functional.layer_norm(x, (4,)).relu() * x.shape[0],
    "products": lambda x: (x @ x.t()).softmax(-1) @ x,
    "joined": lambda x: torch.cat([x, x[:1], x.flip(0)]).cumsum(0),
    "viewed": lambda x: x.reshape(-1).view(x.shape[0], 4).sum(1),
    "another order": lambda x: x.t().reshape(-1).sin(),
    "without ones": lambda x: x.squeeze() * 2,
    "means": lambda x: x.mean(0),
    "a loss": lambda x: torch.nn.functional.mse_loss(x, x.detach() * 2),
    "chosen rows": lambda x: x[x.sum(1) > 0] * 2,
    "chosen elements": lambda x: x.masked_select(x > 0).sin(),
    "chosen and written": lambda x: torch.where(x > 0, x, 1).index_put((x > 0,), x[x > 0] * 3),
    "made inside": lambda x: torch.arange(x.shape[0])[:, None] * x + torch.zeros(x.shape[0], 4),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", UNBACKED.values(), ids=UNBACKED)
def test_code_for_an_unbacked_size_is_right_for_all(program, backend):
    compiled = stator.compile(program, backend=backend)
    counts = Counts()
    for size in (5, 7, 1, 0, 9, 2):
        x = torch.randn(size, 4, requires_grad=True)
        expected = observe(program, [x], gradients=True)
        stator.mark_unbacked(x, 0)
        found = observe(compiled, [x], gradients=True)
        for outcome in (found, expected):  # strides of one row may differ
            outcome.gradients = [one.contiguous() for one in outcome.gradients]
        assert_same_outcome(found, expected, BY_BACKEND[backend])
    # a graph that has to assume that the size is neither 0 nor 1 leaves these to versions of their own
    assert counts.compilations <= 3
    assert counts["dynamo.internal_errors"] == counts["dynamo.refused_symbols"] == 0


def test_unbacked_sizes_that_have_to_fit_are_compared():
    def program(x, y):
        return (x + y).sin()

    compiled = stator.compile(program)
    for one, other in ((5, 5), (7, 7), (9, 4), (6, 1), (0, 0), (1, 8), (3, 3)):
        given = [torch.randn(size, 3, requires_grad=True) for size in (one, other)]
        expected = observe(program, given, gradients=True)
        for x in given:
            stator.mark_unbacked(x, 0)
        assert_same_outcome(observe(compiled, given, gradients=True), expected, BY_BACKEND["inductor"])


@pytest.mark.parametrize("program", [lambda x, k: x[k] * 2, lambda x, k: x.select(0, k).sin()], ids=["index", "select"])
def test_an_index_that_changes_is_compared_with_an_unbacked_size(program):
    compiled, counts = stator.compile(program), Counts()
    for size, at in ((9, 4), (12, 2), (5, 3), (3, 3), (3, -3), (3, -4), (2, 7)):
        x = torch.randn(size)
        expected = observe(program, [x, at])
        stator.mark_unbacked(x, 0)
        assert_same_outcome(observe(compiled, [x, at]), expected, BY_BACKEND["inductor"])
    assert counts["dynamo.internal_errors"] == counts["dynamo.refused_symbols"] == 0
