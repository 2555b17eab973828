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


def test_elements_that_share_an_address_partly_are_written_to_as_in_eager() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).sum()

    ours, theirs = (torch.as_strided(torch.arange(20.0), (3, 4), (2, 1)) for _ in range(2))
    found = stator.compile(function, backend="aot_eager")(ours)
    assert torch.equal(found, function(theirs)) and torch.equal(ours, theirs)
