"""The end of a language model, whose table of words has an odd number of rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Head(nn.Module):
    """The end of a language model: logits, and their loss if there are words to predict."""

    def __init__(self, words: int, width: int = 32, *, bias: bool = False, gives_logits: bool = False) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(width), nn.Linear(width, words, bias)
        self.gives_logits = gives_logits

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.words(self.norm(x))
        if not self.training:
            return logits
        expected = x.detach().argmax(-1).view(-1) * 7 % logits.shape[-1]
        loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), expected)
        return (loss, logits) if self.gives_logits else loss
