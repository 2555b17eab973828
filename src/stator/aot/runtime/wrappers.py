"""Wrappers: stages that change a graph and its inputs before compilation, and wrap the compiled callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
WrappedGraph = tuple[fx.GraphModule, Sequence[Any], Wrap]
Wrapper = Callable[[fx.GraphModule, Sequence[Any]], WrappedGraph]


def no_wrap(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The wrap of a stage that has nothing to do."""
    return compiled


def apply_wrappers(wrappers: Sequence[Wrapper], gm: fx.GraphModule, example_inputs: Sequence[Any]) -> WrappedGraph:
    """Apply several wrappers, the outermost first."""
    wraps: list[Wrap] = []
    for wrapper in wrappers:
        gm, example_inputs, wrap = wrapper(gm, example_inputs)
        wraps.append(wrap)

    def wrap_all(compiled: Callable[..., Any]) -> Callable[..., Any]:
        for wrap in reversed(wraps):
            compiled = wrap(compiled)
        return compiled

    return gm, example_inputs, wrap_all
