"""Results whose elements overlap in eager's memory: the values are eager's, in memory of their own."""

from __future__ import annotations

import pytest
import torch

import stator


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_pieces_of_an_expanded_tensor(backend: str) -> None:
    x = torch.randn(1, 5, 5).expand(4, 5, 5)
    with torch.no_grad():
        ours = stator.compile(lambda x: torch.unsafe_chunk(x, 5, -1), fullgraph=True, backend=backend)(x)
    for piece, eager in zip(ours, torch.unsafe_chunk(x, 5, -1), strict=True):
        assert torch.equal(piece, eager)
