"""Whether results and gradients have eager's bits, as with `exact_rounding`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from recorder import describe, strides_that_matter
from torch.utils import _pytree as pytree

Run = Callable[[Any], Any]


def other_bits(ours: Any, eagers: Any) -> str | None:
    """How two tensors differ; None for the same bits. Any NaN is any other, zeros of either sign are two."""
    if not isinstance(eagers, torch.Tensor):
        return None if ours is eagers or ours == eagers else f"{ours!r} instead of {eagers!r}"
    if not isinstance(ours, torch.Tensor) or (ours.shape, ours.dtype) != (eagers.shape, eagers.dtype):
        return f"{ours!r} instead of {eagers!r}"
    if strides_that_matter(eagers) not in (None, strides_that_matter(ours)):
        return f"{describe(ours)} instead of {describe(eagers)}"
    left, right = (_real(tensor.detach()) for tensor in (ours, eagers))
    same = left == right
    if left.is_floating_point():
        same = (same & (left.signbit() == right.signbit())) | (left.isnan() & right.isnan())
    if bool(same.all()):
        return None
    return f"{int((~same).sum())} of {same.numel()} numbers, up to {(left.double() - right.double()).abs().max():.1e}"


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Conjugate and negative bits apply."""
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def difference(ours: Any, eagers: Any) -> str | None:
    """The same of all tensors in two structures."""
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(eagers), strict=True)
    told = [f"{at}: {problem}" for at, pair in enumerate(pairs) if (problem := other_bits(*pair))]
    return "; ".join(told) or None


def problems(
    found: Iterable[Any],
    run: Callable[[Any], Any],
    eager: Callable[[Any], Any],
    refused: Callable[[Any, Exception], bool],
) -> Iterator[str]:
    """Of each case: what is not eager's, unless eager is not eager's either when it runs once more."""
    for case in found:
        try:
            ours = run(case)
        except Exception as error:
            if not refused(case, error):
                yield f"{case.describe()}: {type(error).__name__}: {error}"
            continue
        expected = eager(case)
        problem = difference(ours, expected)
        if problem and not difference(eager(case), expected):
            yield f"{case.describe()}: {problem}"
