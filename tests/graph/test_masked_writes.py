"""Values written by boolean masks, one for each True, and gradients of selections by masks: kernels, and eager's
results, gradients and errors."""

from __future__ import annotations

import pytest
import torch
from tests.differential import Counts

import stator


def written(x, mask, values):
    x = x * 2
    x[mask] = values
    return x.sin()


def added(x, mask, values):
    return (x * 2).index_put((mask,), values, accumulate=True).cos()


def selected(x, mask, values):
    return (x[mask] * 3).sin()


def selected_and_written(x, mask, values):
    y = x * 2
    y[mask] = x[mask].sin()
    return y * y


def differentiated(function, tensors):
    given = [None if one is None else one.detach().clone().requires_grad_(one.requires_grad) for one in tensors]
    result = function(*given)
    leaves = [one for one in given if one is not None and one.requires_grad]
    return [result, *torch.autograd.grad(result.sum(), leaves, allow_unused=True)]


PROGRAMS = (written, added, selected, selected_and_written)


@pytest.mark.parametrize("inner", [(), (3,)], ids=["elements", "rows"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_equal_to_eager_without_index_put_of_the_library(program, inner: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    counts, compiled = Counts(), stator.compile(program)
    for rows, share in ((6, 0.5), (9, 0.2), (4, 1.1), (7, 0.8), (5, 0.0)):
        mask = torch.rand(rows, 4) < share
        x = torch.randn(rows, 4, *inner, requires_grad=True)
        values = torch.randn(int(mask.sum()), *inner, requires_grad=True)
        found, expected = (differentiated(one, (x, mask, values)) for one in (compiled, program))
        for left, right in zip(found, expected, strict=True):
            assert (left is None) is (right is None)
            if right is not None:
                torch.testing.assert_close(left, right)
                assert left.stride() == right.stride()
        if mask.any():  # the library writes no values
            assert counts["inductor_fallback:aten.index_put.default"] == 0
    assert counts["graph_breaks"] == counts["dynamo.failed_graphs"] == 0


@pytest.mark.parametrize("program", [written, added])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_other_numbers_of_values_than_of_trues(program, length: int) -> None:
    mask = torch.tensor([True, True, False, True])
    compiled = stator.compile(program)
    compiled(torch.randn(4), mask, torch.randn(3))
    x, values = torch.randn(4), torch.randn(length)
    try:
        expected = program(x, mask, values)
    except RuntimeError as error:
        with pytest.raises(type(error), match="shape mismatch"):
            compiled(x, mask, values)
    else:
        torch.testing.assert_close(compiled(x, mask, values), expected)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_one_element_written_to_itself(requires_grad: bool) -> None:
    """A value for one True has a first size of 1, and no graph asks for it."""

    def columns(x, mask, values):
        y = x.t() * 1
        y[1:3, mask] = y[1:3, mask].cos()
        z, chosen = x * 2, mask[:, None] & (x > -9)
        z[chosen] = z[chosen] * 3
        return y.flatten().sin().sum() + z.sin()

    for function in (selected_and_written, columns):
        counts, compiled = Counts(), stator.compile(function)
        for true in (3, 1, 0, 5):
            tensors = torch.randn(5, 4, requires_grad=requires_grad), torch.arange(5) < true, None
            found, expected = (
                differentiated(one, tensors) if requires_grad else [one(*tensors)] for one in (compiled, function)
            )
            torch.testing.assert_close(found, expected)
        assert counts.breaks == counts["dynamo.failed_graphs"] == 0


def test_no_row_repeated() -> None:
    def repeat(x, counts):
        return x.repeat_interleave(counts, 0) * 2

    counts, compiled = Counts(), stator.compile(repeat, fullgraph=True)
    for rows in (3, 0, 4):
        given = torch.randn(rows, 2), torch.arange(rows)
        torch.testing.assert_close(compiled(*given), repeat(*given))
    assert counts["dynamo.failed_graphs"] == 0


def test_an_input_is_as_it_was_when_the_values_do_not_fit() -> None:
    def write(x, mask, values):
        x.mul_(2)
        x[mask] = values
        return x + 1

    compiled = stator.compile(write)
    mask = torch.tensor([True, True, False, True])
    compiled(torch.ones(4), mask, torch.randn(3))
    x = torch.ones(4)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        compiled(x, mask, torch.randn(2))
    assert torch.equal(x, torch.ones(4))


def test_elements_chosen_by_one_mask_and_written_by_another() -> None:
    def move(x, source, target):
        y = x * 1
        y[target] = x[source]
        return y

    compiled = stator.compile(move)
    x = torch.randn(5)
    source, fitting, other = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 0]]).bool()
    torch.testing.assert_close(compiled(x, source, fitting), move(x, source, fitting))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        compiled(x, source, other)


def test_a_write_in_the_backward_of_a_custom_function() -> None:
    class Selection(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, mask):
            ctx.save_for_backward(mask)
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            (mask,) = ctx.saved_tensors
            made = torch.zeros_like(gradient)
            made[mask] = gradient.flatten()[: ctx.needs_input_grad.count(True) + 2]
            return made, None

    def program(x, mask, values):
        return Selection.apply(x, mask).sin()

    compiled = stator.compile(program)
    x = torch.randn(5, requires_grad=True)
    for trues in (3, 2):
        mask = torch.arange(5) < trues
        outcomes = []
        for one in (program, compiled):
            try:
                outcomes.append(differentiated(one, (x, mask, x.detach()))[1])
            except RuntimeError as error:
                outcomes.append(type(error))
        assert outcomes[0] is outcomes[1] if trues == 2 else torch.allclose(*outcomes)
