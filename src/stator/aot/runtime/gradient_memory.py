"""Finds gradients that lie in the memory of other gradients or of tangents, and copies them.

Autograd accumulates in place into a gradient that only autograd holds, without asking who else uses its memory. In
eager the nodes between two gradients usually hold such a tensor; behind a compiled backward, which is one node, nothing
does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from stator.prims.layout import extent


def aliasing_gradients(
    results: Sequence[Any], positions: Iterable[int | None], tangents: Sequence[torch.Tensor]
) -> list[int]:
    """Positions of gradients that lie in the memory of other gradients or of tangents.

    A tensor that is returned twice, or that is itself a tangent, does not count: autograd sees its second holder. Of
    gradients that share memory one is left out, because it may keep that memory.
    """
    behind = [(span, tangent) for tangent in tangents if (span := _span(tangent)) is not None]
    found, spans = [], []
    for position in sorted({position for position in positions if position is not None}):
        span, gradient = _span(results[position]), results[position]
        if span is None:
            continue
        if any(_meet(span, other) and tangent is not gradient for other, tangent in behind):
            found.append(position)
        else:
            spans.append((span, position))
    reach, widest = 0, None
    for (start, end), position in sorted(spans):
        if start < reach and results[position] is not widest:
            found.append(position)
        elif end > reach:
            reach, widest = end, results[position]
    return found


def with_copies(results: Sequence[Any], positions: Iterable[int]) -> list[Any]:
    """The results, with copies at these positions."""
    separated = list(results)
    for position in positions:
        separated[position] = results[position].clone()
    return separated


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _span(tensor: Any) -> tuple[int, int] | None:
    """The addresses of the first byte and of the byte behind the last; None for tensors without elements or strided
    memory."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or not tensor.numel():
        return None
    start = tensor.data_ptr()
    return start, start + extent(tensor.shape, tensor.stride()) * tensor.element_size()
