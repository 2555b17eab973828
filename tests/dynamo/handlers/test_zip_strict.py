"""zip(strict=True) of iterables of different lengths raises eager's error inside of one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator


@pytest.mark.parametrize("lengths", [(2, 1), (1, 2), (2, 2, 1), (1, 1, 3), (3, 1, 3), (0, 1), (2, 2), ()])
def test_unequal_lengths(lengths: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> Any:
        rows = zip(*[[x + i for i in range(length)] for length in lengths], strict=True)
        seen: list[Any] = []
        try:
            for row in rows:
                seen.append(sum(row))
        except ValueError as error:
            seen.append(str(error))
        return seen

    x = torch.randn(3)
    expected, actual = program(x), stator.compile(program, backend="eager", fullgraph=True)(x)
    for one, other in zip(expected, actual, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
