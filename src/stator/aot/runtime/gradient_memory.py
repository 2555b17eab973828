"""Gradients that lie in each other's memory, or in that of what came from behind.

Autograd takes a gradient for its own, and adds later ones to it in place, where nobody else holds the tensor; it does
not look who else has the memory. In eager the operators in front of a view are often still to be run, and hold what it
was made of; in front of a backward that is one node there are none. So gradients of ours have memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


def in_others(results: Sequence[Any], positions: Iterable[int | None], tangents: Sequence[torch.Tensor]) -> list[int]:
    """Positions of gradients, among the results of a backward, that lie in the memory of other ones or of tangents.

    One tensor that is there twice, or is a tangent itself, does not count: autograd sees that somebody else holds it.
    Of gradients that lie in each other's memory one is left out.
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
    """The results, those at these positions in memory of their own."""
    separated = list(results)
    for position in positions:
        separated[position] = results[position].clone()
    return separated


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _span(tensor: Any) -> tuple[int, int] | None:
    """The addresses of the first byte and behind the last. None where a tensor has no elements, or not in memory."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or not tensor.numel():
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()
