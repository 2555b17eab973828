"""Folding keeps the layout of constants that are expanded, whose memory holds each element once."""

from __future__ import annotations

import torch

import stator


def test_an_expanded_constant_is_folded() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(4).expand(3, 4)
        return x + positions, x * positions.float().sum(0)

    torch.manual_seed(0)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for got, expected in zip(stator.compile(program, fullgraph=True)(x), program(x), strict=True):
            torch.testing.assert_close(got, expected)


def test_an_expanded_constant_without_elements_is_folded() -> None:
    pool = torch.nn.AdaptiveMaxPool2d((3, None))
    compiled = stator.compile(pool, fullgraph=True)
    for shape in ((1, 3, 5, 6), (2, 3, 5, 6), (1, 3, 5, 12), (0, 3, 5, 6)):
        x = torch.randn(shape, requires_grad=True)
        torch.testing.assert_close(compiled(x), pool(x))
