"""Programs with `assert`, in a file whose assertions pytest leaves as they are."""

from __future__ import annotations

import torch


def asserted(x: torch.Tensor, most: int) -> torch.Tensor:
    assert x.sum() < most, f"too large: {x}"
    return x * 2


def written_around(x: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    log.add_(1)
    assert x.sum() > 0, "not positive"
    log.add_(10)
    return x * 2
