"""Text with sizes and changing numbers in it: a constant only where the program uses the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Counts, assert_same

import stator


def as_eager(function: Callable[..., Any], *calls: tuple[Any, ...]) -> int:
    """Compare all calls with eager; the number of compilations."""
    compiled, counts = stator.compile(function, backend="eager", fullgraph=True), Counts()
    for arguments in calls:
        found, expected = compiled(*arguments), function(*arguments)
        assert_same(found, expected)
    return counts.compilations


def of_rows(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(size, 3),) for size in sizes]


@pytest.mark.fixed_sizes
def test_the_message_of_a_check_that_holds_needs_no_constant():
    def checked(x):
        height, width = x.shape
        torch._assert(height > 1, f"{height} rows, {width=}, {height:5d}, {height!r}, twice {2 * height}")
        return x + 1

    assert as_eager(checked, *of_rows(4, 5, 6, 7)) == 2


def test_a_message_that_is_raised_has_the_numbers_of_its_call():
    def checked(x):
        if x.shape[0] % 2:
            raise ValueError(f"{x.shape[0]} rows")
        return x + 1

    compiled = stator.compile(checked, backend="eager")
    for size in (4, 6, 5, 7, 9):
        x = torch.randn(size, 3)
        if size % 2:
            with pytest.raises(ValueError, match=f"^{size} rows$"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), x + 1)


def test_text_that_is_used_is_that_of_each_call():
    def named(x):
        return x + 1, f"{x.shape[0]}:{x.shape[1]}", {f"rows {x.shape[0]}": 1}, len(f"{x.shape[0]}") + 0

    assert as_eager(named, *of_rows(4, 5, 16, 4)) == 3


def test_text_of_an_int_argument():
    def named(x, n):
        text = f"{n} times"
        return x * n if text else x

    assert as_eager(named, *((torch.ones(3), n) for n in (2, 3, 4, 5))) <= 4


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(
    "text",
    [
        lambda x: f"{x.shape} {list(x.shape)!r:>20} {x.shape[1:]}",
        lambda x: f"{(x.shape, 'of', x.dtype, 2.5, None)}",
        lambda x: str(x.shape) + " " + repr(x.shape[0]) + format(x.shape[0] * 2, "5d"),
        lambda x: "%d rows, %s" % (x.shape[0], x.shape),  # noqa: UP031
        lambda x: "{1} of {0:>4} and {0!r}".format(*x.shape),
        lambda x: " x ".join(str(size) for size in x.shape) + "!",
        lambda x: " x ".join(map("{:3d}".format, x.shape)),
    ],
)
def test_text_that_leaves_the_frame_needs_no_constant(text):
    def labelled(x):
        label = text(x)
        torch._assert(x.shape[0] > 1, label)
        return x + 1, label

    assert as_eager(labelled, *((torch.randn(size, size + 1),) for size in (4, 5, 6, 17))) == 2


def test_text_of_a_list_is_that_of_its_time():
    def labelled(x):
        sizes = list(x.shape)
        label = str(sizes)
        sizes.append(0)
        return x + 1, label, sizes

    assert as_eager(labelled, *of_rows(4, 5, 6, 17)) <= 2


def test_templates_that_do_not_fit_raise_as_in_eager():
    def labelled(x):
        try:
            return x + 1, "{} {} {}".format(*x.shape)
        except IndexError as error:
            return x, str(error)

    assert as_eager(labelled, *of_rows(4, 5, 6, 17)) <= 2
