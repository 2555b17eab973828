"""Calls a program at several sizes, and counts the compilations that it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.differential import BY_BACKEND, Counts, Tolerance, assert_same_outcome, observe

import stator

SIZES = (5, 7, 9, 12, 6)
Make = Callable[[int], Sequence[Any]]


def check_sizes(
    function: Callable[..., Any],
    make: Make,
    *,
    expected: Callable[..., Any] | None = None,
    sizes: Sequence[int] = SIZES,
    backend: str = "aot_eager",
    dynamic: bool | None = None,
    versions: int | None = None,
    gradients: bool = True,
    fullgraph: bool = True,
    tolerance: Tolerance | None = None,
) -> None:
    """The compiled program does as eager at each size, by few versions and without constants for sizes of inputs.

    make: the arguments of a call, of this size. expected: runs in eager mode in place of the function.
    versions: 2 by default, one for the first size and one for all others; 1 under `dynamic=True`.
    """
    stator.reset()
    compiled = stator.compile(function, backend=backend, dynamic=dynamic, fullgraph=fullgraph)
    counts = Counts()
    for size in sizes:
        torch.manual_seed(size)
        outside = observe(expected or function, make(size), gradients=gradients)
        torch.manual_seed(size)
        found = observe(compiled, make(size), gradients=gradients)
        assert outside.error is None, outside.error
        for outcome in (found, outside):  # the strides of gradients are not the point here
            outcome.gradients = [None if one is None else one.contiguous() for one in outcome.gradients]
        assert_same_outcome(found, outside, tolerance or BY_BACKEND[backend])
    wanted = (1 if dynamic else 2) if versions is None else versions
    assert counts.compilations == wanted, f"{counts.compilations} versions instead of {wanted}"
    assert counts["dynamo.sizes_made_constant"] == counts["dynamo.refused_symbols"] == 0
