"""Large fresh tensors are ordinary tensors, whether or not the system gives huge pages."""

from __future__ import annotations

import pytest
import torch

import stator
from stator.runtime import huge_pages


@pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
@pytest.mark.parametrize("refused", [False, True])
def test_like_empty_like(size: int, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if refused:
        monkeypatch.setattr(huge_pages, "_advise", None)
    template = torch.empty(size, dtype=torch.float64)
    made = huge_pages.large_like(template)
    assert (made.shape, made.dtype, made.stride()) == (template.shape, template.dtype, template.stride())
    assert torch.equal(made.fill_(1.0), torch.ones(size, dtype=torch.float64))


def test_a_large_result() -> None:
    x = torch.randn(huge_pages.LARGE_BYTES // 4 + 3)
    with torch.no_grad():
        first = stator.compile(lambda t: t * 2)(x)
    torch.testing.assert_close(first, x * 2)
