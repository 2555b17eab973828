"""Floating-point operations of recurrent layers, which programs on symbolic sizes run as one operator: those of the
matrix products that eager runs, step by step. None where eager calls oneDNN, for which torch's table has no formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._ops import OpOverloadPacket

from stator.prims.operators.recurrent_layer import recurrent_layer, recurrent_layer_backward, runs_in_onednn


def _forward(
    kind: str, input: Any, states: Sequence[Any], weights: Sequence[Any], biases: bool, bidirectional: bool, *_: Any
) -> Any:
    if kind == "lstm" and runs_in_onednn(input, states):
        return None
    steps, batch = input.shape[0], input.shape[1]
    return 2 * steps * batch * sum(one.numel() for one in weights if one.dim() == 2)


def _backward(
    gradients: Any,
    results: Any,
    needed: Sequence[bool],
    kind: str,
    input: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    biases: bool,
    bidirectional: bool,
    *_: Any,
) -> Any:
    """A product of each matrix with gradients for each step, and one for the matrix's own gradient. The first state and
    the input may need none."""
    if kind == "lstm" and runs_in_onednn(input, states):
        return None
    steps, batch = input.shape[0], input.shape[1]
    count = len(weights) // (2 if bidirectional else 1)
    total = 0
    for first in range(0, len(weights), count):
        from_input, recurrent, *others = [one.numel() for one in weights[first : first + count] if one.dim() == 2]
        own = (from_input + recurrent + sum(others)) * steps if needed[2] else 0
        through = (from_input if needed[0] else 0) * steps + recurrent * (steps if needed[1] else steps - 1)
        total = total + 2 * batch * (own + through + sum(others) * steps)
    return total


FORMULAS: dict[OpOverloadPacket, Callable[..., Any]] = {
    recurrent_layer.overloadpacket: _forward,
    recurrent_layer_backward.overloadpacket: _backward,
}
