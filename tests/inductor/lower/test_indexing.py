"""Gathers and scatters against eager, including what is out of range."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers, lowered_of
from tests.inductor.lowered_evaluator import run

import stator


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_negative_indices_wrap_where_eager_wraps_and_fail_where_it_fails():
    x, at = torch.randn(5, 3), torch.tensor([-1, -5, 2])
    assert_lowers(lambda x, i: x[i], x, at)
    lowered = lowered_of(lambda x, i: F.embedding(i, x), [x, torch.tensor([0, 1])])
    with pytest.raises(IndexError):
        run(lowered, [x, torch.tensor([0, -1])])


@pytest.mark.parametrize("bad", [5, -6, 10**12])
def test_an_index_out_of_range_is_an_error(bad):
    x = torch.randn(5, 3)
    lowered = lowered_of(lambda x, i: x[i], [x, torch.tensor([0, 1])])
    with pytest.raises(IndexError):
        run(lowered, [x, torch.tensor([0, bad])])


def test_padding_of_a_gather_does_not_check_what_is_masked_off():
    x, at = torch.randn(5, 3), torch.randint(0, 5, (4,))
    assert_lowers(lambda x, i: F.pad(x[i], (0, 0, 2, 2)), x, at)


def test_assignment_through_a_mask():
    def function(x, m, v):
        y = x.clone()
        y[m] = 3.0
        y[m[:, 0]] = v
        return y

    x = torch.randn(6, 3)
    assert_lowers(function, x, x > 0, torch.tensor(-1.0))


def test_of_several_assignments_to_one_place_the_last_holds():
    x, at, values = torch.zeros(6, 3), torch.tensor([1, 1, 4]), torch.randn(3, 3)
    assert_lowers(lambda x, i, v: x.index_put((i,), v), x, at, values)


ONE_POSITION = {
    "index": lambda x, i: x[i],
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:1, None], 1.0),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "index_add": lambda x, i: x.index_add(0, i, x.expand(2, 3)),
}


@pytest.mark.parametrize("name", ONE_POSITION)
def test_an_index_into_a_dimension_of_one_element_is_checked(name):
    program, x = ONE_POSITION[name], torch.randn(1, 3)
    compiled = stator.compile(program)
    torch.testing.assert_close(compiled(x, torch.tensor([0, 0])), program(x, torch.tensor([0, 0])))
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.tensor([7, 0]))


NO_ADDRESS = {
    "expanded": lambda x, i: x.expand(5, 3)[i],
    "sum": lambda x, i: x.expand(5, 3)[i].sum(),
    "softmax": lambda x, i: x.expand(5, 3)[i].softmax(0),
    "variance": lambda x, i: x.expand(5, 3)[i].var(1),
    "gather": lambda x, i: x.expand(5, 3).gather(0, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x.expand(5, 3)),
    "constant": lambda x, i: torch.zeros(5, 3)[i] + x,
    "index of an index": lambda x, i: x.expand(5, 3)[torch.arange(5)[i]],
    "part": lambda x, i: torch.cat([x.expand(5, 3)[i], x]),
    "loss": lambda x, i: F.cross_entropy(x[:, :1].expand(2, 5), i),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", NO_ADDRESS)
def test_an_index_that_no_address_contains_is_checked(name, dynamic):
    program, x = NO_ADDRESS[name], torch.randn(1, 3)
    compiled = stator.compile(program, dynamic=dynamic)
    torch.testing.assert_close(compiled(x, torch.tensor([4, 4])), program(x, torch.tensor([4, 4])))
    for wrong in (torch.tensor([4, 7]), torch.tensor([-7, 4])):
        with pytest.raises((IndexError, RuntimeError)):
            compiled(x, wrong)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("where", [0, 3, 17, 36])
@pytest.mark.parametrize("bad", [-1, -37, 37, 2**31 - 1])
def test_positions_are_not_counted_from_the_end(dtype: torch.dtype, where: int, bad: int) -> None:
    """Of embeddings, selections, gathers and scatters: in whole vectors and in the rest."""
    table, at = torch.randn(37, 5), torch.randint(37, (37,)).to(dtype)
    at[where] = bad
    wide = at.long()[:, None].expand(37, 5)
    functions = [
        lambda: torch.nn.functional.embedding(at, table),
        lambda: table.index_select(0, at),
        lambda: table.gather(0, wide),
        lambda: table.T.contiguous().gather(1, wide.T),
        lambda: table.scatter(0, wide, table),
        lambda: table.scatter_add(0, wide, table),
    ]
    for function in functions:
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            function()
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            stator.compile(function)()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(600, 601), (600, 100), (511, 601), (0, 601), (512, 1040)])
def test_columns_selected_for_all_rows(dtype: torch.dtype, rows: int, columns: int) -> None:
    """The same indices for rows that lie near each other, and far apart."""
    torch.manual_seed(0)
    x = (torch.randn(rows, columns) * 9).to(dtype)
    at = torch.randint(-columns, columns, (columns,))
    function = stator.compile(lambda x, at: (x[:, at], x.t()[at], x[:, at] * 2 + x), dynamic=False)
    found = function(x, at)
    for one, other in zip(found, (x[:, at], x.t()[at], x[:, at] * 2 + x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=0)
    if rows:
        at[columns - 1] = columns
        with pytest.raises(IndexError):
            function(x, at)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2, 16, 5, 7), (1, 33, 1, 9), (2, 64, 12, 12)], ids=str)
def test_bilinear_upsampling_of_channels_last_images(
    shape: tuple[int, ...], dtype: torch.dtype, align_corners: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    for size in [(9, 13), (3, 20), (shape[2], 11), (1, 1)]:

        def function(x, size=size):
            return F.interpolate(x, size, mode="bilinear", align_corners=align_corners)

        actual, expected = stator.compile(function)(x), function(x)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)  # positions are rounded
        assert actual.stride() == expected.stride()
        grad = torch.randn(expected.shape, dtype=dtype)
        gradients = [torch.autograd.grad(one, x, grad)[0] for one in (actual, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
