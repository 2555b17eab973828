"""torch.nn.attention.flex_attention without gradients is one graph, and what it says it is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stator

SLOPES = torch.tensor([0.5, 0.25])
DOCUMENT = torch.arange(128) // 50


def causal(batch: Any, head: Any, row: Any, column: Any) -> Any:
    return row >= column


def within_documents(batch: Any, head: Any, row: Any, column: Any) -> Any:
    return (DOCUMENT[row] == DOCUMENT[column]) & (row >= column)


def alibi(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
    return score + SLOPES[head] * (column - row)


def doubled(score: Any, batch: Any, head: Any, row: Any, column: Any) -> Any:
    return score * 2


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Any, mask: Any) -> torch.Tensor:
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    head = torch.arange(q.shape[1])[:, None, None]
    row, column = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    if score is not None:
        scores = score(scores, 0, head, row, column)
    if mask is not None:
        scores = scores.masked_fill(~mask(0, head, row, column), -math.inf)
    return scores.softmax(-1) @ v


def given(heads: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, size, 128, 8, generator=generator) for size in (heads, 2, 2)]


@pytest.mark.each_pair
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("score", [None, doubled, alibi])
@pytest.mark.parametrize("mask", [None, causal, within_documents])
def test_scores_and_masks(score: Any, mask: Any, backend: str) -> None:
    blocks = None if mask is None else create_block_mask(mask, None, None, 128, 128, device="cpu")

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks) * 2

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(*given()) / 2, reference(*given(), score, mask), rtol=1e-4, atol=1e-5)


def test_the_mask_may_be_made_inside_and_heads_be_grouped() -> None:
    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        blocks = create_block_mask(causal, None, None, 128, 128, device="cpu")
        return flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given(4)), reference(*given(4), None, causal), rtol=1e-4, atol=1e-5)


def test_gradients_are_left_to_torch() -> None:
    """On the CPU it refuses."""
    q, k, v = given()
    compiled = stator.compile(lambda q: flex_attention(q, k, v), backend="eager")
    with pytest.raises(NotImplementedError, match="backward"):
        compiled(q.requires_grad_())


def test_where_a_tensor_begins_in_memory_made_inside() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return y[1:, 1].storage_offset(), y.t()[1].storage_offset(), y

    x = torch.ones(4, 4)
    compiled = stator.compile(program, backend="eager", fullgraph=True)
    assert compiled(x)[:2] == program(x)[:2] == (5, 1)
    ends = stator.compile(lambda x: x.storage_offset() + x, backend="eager")
    for start in (0, 2):
        assert torch.equal(ends(x[start : start + 2]), start * 4 + x[:2])
