"""The choice among libraries for a constant weight takes little time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stator.runtime import packed_products


def test_a_small_weight_is_laid_out_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out = 0
    pack = packed_products.packed_weight

    def counted(*args: Any) -> torch.Tensor:
        nonlocal laid_out
        laid_out += 1
        return pack(*args)

    def choose(kind: str, facts: Any, alternatives: Any, rule: str) -> str:
        for runs in alternatives().values():
            list(runs)
        return rule

    monkeypatch.setattr(packed_products, "packed_weight", counted)
    monkeypatch.setattr(packed_products, "quickest_on_cpu", choose)
    packed_products.quickest_product(64, torch.randn(8, 16), rows_are_known=True)
    assert 0 < laid_out <= 2 * packed_products._MOST_PARTS
