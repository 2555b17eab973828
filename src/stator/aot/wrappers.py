"""Wrappers: stages that change a graph and its inputs before it is compiled, and wrap what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Wrapped = tuple[fx.GraphModule, Sequence[Any], Wrap]
Wrapper = Callable[[fx.GraphModule, Sequence[Any]], Wrapped]


def unchanged(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """What a wrapper gives that has nothing to do."""
    return compiled


def wrapped(wrappers: Sequence[Wrapper], gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Wrapped:
    """Several wrappers as one, the outermost first."""
    wraps: list[Wrap] = []
    for wrapper in wrappers:
        gm, example_inputs, wrap = wrapper(gm, example_inputs)
        wraps.append(wrap)

    def wrap_all(compiled: Callable[..., Any]) -> Callable[..., Any]:
        for wrap in reversed(wraps):
            compiled = wrap(compiled)
        return compiled

    return gm, example_inputs, wrap_all
