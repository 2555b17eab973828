"""Library results are checked in every call: a promised layout passes, another is copied, another size refused."""

from __future__ import annotations

import pytest
import torch

from stator.base.errors import VerificationError
from stator.runtime.host import Binder

BINDER = Binder({}, {}, {})


def test_the_promised_layout_passes_as_it_is() -> None:
    check = BINDER.layout_check("x", (2, 3), (3, 1), torch.float32, "cpu", set())
    x = torch.randn(2, 3)
    assert check(x) is x


@pytest.mark.parametrize("size", [(1, 3), (3, 1), (1, 2, 1, 2, 1, 2), (0, 3), ()], ids=str)
def test_strides_that_address_nothing_do_not_matter(size: tuple[int, ...]) -> None:
    stride = tuple(7 if length < 2 else step for length, step in zip(size, torch.empty(size).stride(), strict=True))
    check = BINDER.layout_check("x", size, stride, torch.float32, "cpu", set())
    x = torch.randn(size)
    assert check(x) is x


def test_another_layout_is_copied_and_noted() -> None:
    repaired: set[str] = set()
    check = BINDER.layout_check("promised_once", (2, 3), (3, 1), torch.float32, "cpu", repaired)
    x = torch.randn(3, 2).t()
    with pytest.warns(RuntimeWarning, match="promised_once was promised"):
        made = check(x)
    assert made.stride() == (3, 1) and torch.equal(made, x) and repaired == {"promised_once"}


@pytest.mark.parametrize("wrong", [torch.randn(3, 2), torch.randn(2, 3).double(), torch.randn(6)])
def test_another_size_or_dtype_is_refused(wrong: torch.Tensor) -> None:
    check = BINDER.layout_check("x", (2, 3), (3, 1), torch.float32, "cpu", set())
    with pytest.raises(VerificationError, match="was promised as"):
        check(wrong)
