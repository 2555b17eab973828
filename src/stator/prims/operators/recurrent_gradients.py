"""Gradients of a recurrent layer from its input and its results alone.

The results are the hidden states of all steps, so one product computes the gates of all steps again. The rest of the
recurrence is linear in the gradients: two to four operators a step, whose factors are computed first for all steps.
Gradients of weights are one product over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments and results of `stator::recurrent_layer`; `output` holds the results of all steps."""

    kind: str
    input: Tensor
    states: Sequence[Tensor]
    weights: Sequence[Tensor]
    biases: bool
    bidirectional: bool
    output: Tensor


@dataclass(frozen=True, slots=True)
class _Swept:
    """Gradients of the gates' parts that come from the input and from the hidden state, [steps, batch, gates]; of the
    first states; of the projection."""

    of_input: Tensor
    of_hidden: Tensor
    states: tuple[Tensor, ...]
    projection: Tensor | None = None


def layer_gradients(given: Given, gradients: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor]:
    """The needed gradients: of the input, of the states, of the weights. Half floats are computed in float32."""
    dtype = torch.promote_types(given.output.dtype, torch.float32)
    input, output, *rest = [one.to(dtype) for one in (given.input, given.output, *given.states, *given.weights)]
    states, weights = rest[: len(given.states)], rest[len(given.states) :]
    results = [None if one is None else one.to(dtype) for one in gradients]
    directions = 2 if given.bidirectional else 1
    size, count = output.shape[2] // directions, len(weights) // directions
    of_input: list[Tensor] = []
    of_states, of_weights = [], []
    for at in range(directions):
        columns = slice(at * size, (at + 1) * size)
        arriving = None if results[0] is None else results[0][:, :, columns]
        steps: list[Tensor | None] = [input, output[:, :, columns], arriving]
        if at:  # the second direction reads the sequence from its end
            steps = [None if one is None else one.flip(0) for one in steps]
        last = [None if one is None else one[at] for one in results[1:]]
        found = _direction(given, steps, [one[at] for one in states], last, weights[at * count :][:count], needed)
        if found[0] is not None:
            of_input.append(found[0].flip(0) if at else found[0])
        of_states.append(found[1])
        of_weights += found[2]
    made = [of_input[0] + of_input[1] if given.bidirectional else of_input[0]] if needed[0] else []
    if needed[1]:
        made += [torch.stack(parts) for parts in zip(*of_states, strict=True)]
    return made + of_weights if needed[2] else made


def _direction(
    given: Given,
    steps: Sequence[Tensor | None],
    states: Sequence[Tensor],
    last: Sequence[Tensor | None],
    weights: Sequence[Tensor],
    needed: Sequence[bool],
) -> tuple[Tensor | None, Sequence[Tensor], list[Tensor]]:
    """Gradients of one direction. steps: input, results and gradients of the results."""
    input, output, arriving = steps
    assert input is not None and output is not None
    before = torch.cat((states[0].unsqueeze(0), output[:-1]))  # the hidden states that the steps read
    # The gradient of the hidden state behind each step: what arrives there, to which the sweep adds what flows back.
    flowing = before.new_empty((len(output) + 1, *output.shape[1:]))
    flowing[1:] = 0 if arriving is None else arriving
    flowing[0] = 0
    if last[0] is not None:
        flowing[-1].add_(last[0])
    biases = weights[2:4] if given.biases else (None, None)
    if given.kind == "lstm":
        gates = F.linear(input, weights[0], biases[0]).add_(F.linear(before, weights[1], biases[1]))
        projection = weights[-1] if len(weights) % 2 else None
        swept = _sweep_lstm(gates, weights[1], projection, states[1], flowing, last[1])
    elif given.kind == "gru":
        parts = F.linear(input, weights[0], biases[0]), F.linear(before, weights[1], biases[1])
        swept = _sweep_gru(*parts, weights[1], before, flowing)
    else:
        slope = 1 - output * output if given.kind == "rnn_tanh" else (output > 0).to(output.dtype)
        swept = _sweep_rnn(slope, weights[1], flowing)
    rows = swept.of_input.flatten(0, 1), swept.of_hidden.flatten(0, 1)
    of_weights = []
    if needed[2]:
        of_weights = [rows[0].t() @ input.flatten(0, 1), rows[1].t() @ before.flatten(0, 1)]
        if given.biases:
            of_weights += [rows[0].sum(0), rows[1].sum(0)]
        if given.kind == "gru":  # from the sweep's order of gates to that of the weights
            of_weights[1::2] = [one.roll(-(len(one) // 3), 0) for one in of_weights[1::2]]
        if swept.projection is not None:
            of_weights.append(swept.projection)
    return swept.of_input @ weights[0] if needed[0] else None, swept.states, of_weights


def _sweep_rnn(slope: Tensor, weight: Tensor, flowing: Tensor) -> _Swept:
    """h = f(a): the gradient of a is that of h times the slope."""
    gates = torch.empty_like(slope)
    hidden = flowing.unbind(0)
    for step, (factor, gate) in reversed(list(enumerate(zip(slope.unbind(0), gates.unbind(0), strict=True)))):
        torch.mul(hidden[step + 1], factor, out=gate)
        hidden[step].addmm_(gate, weight)
    return _Swept(gates, gates, (hidden[0],))


def _sweep_gru(by_input: Tensor, by_hidden: Tensor, weight: Tensor, before: Tensor, flowing: Tensor) -> _Swept:
    """h' = n + z (h - n), n = tanh(x_n + r h_n): all gradients of a step are multiples of that of h'."""
    size = before.shape[2]
    reset, update = (by_input[:, :, : 2 * size] + by_hidden[:, :, : 2 * size]).sigmoid_().split(size, 2)
    hidden_new = by_hidden[:, :, 2 * size :]
    new = torch.addcmul(by_input[:, :, 2 * size :], reset, hidden_new).tanh_()
    # of: h itself; the hidden parts of n, r and z; the input's part of n. Each run of three is a product's operand.
    factors = before.new_empty((*before.shape[:2], 5, size))
    kept, of_hidden, of_reset, of_update, of_new = factors.unbind(2)
    kept.copy_(update)
    torch.mul(1 - update, 1 - new * new, out=of_new)
    torch.mul(of_new, reset, out=of_hidden)
    torch.mul(of_hidden * hidden_new, 1 - reset, out=of_reset)
    torch.mul((before - new) * update, 1 - update, out=of_update)
    weight = weight.roll(size, 0)  # rows in the order of n, r, z
    steps = factors.unbind(0)  # the products overwrite their factors
    flat = factors.flatten(2)
    gates = flat[:, :, size : 4 * size].unbind(0)
    passed = kept.unbind(0)
    hidden, behind = flowing.unbind(0), flowing.unsqueeze(2).unbind(0)
    for step in range(len(steps) - 1, -1, -1):
        steps[step].mul_(behind[step + 1])
        hidden[step].add_(passed[step]).addmm_(gates[step], weight)
    return _Swept(flat[:, :, 2 * size :], flat[:, :, size : 4 * size], (hidden[0],))


def _sweep_lstm(
    gates: Tensor, weight: Tensor, projection: Tensor | None, cell: Tensor, flowing: Tensor, last_cell: Tensor | None
) -> _Swept:
    """c' = f c + i g, h' = o tanh(c'). The cells are computed again first, step by step."""
    size = cell.shape[1]
    entering, forgetting = gates[:, :, : 2 * size].sigmoid_().split(size, 2)
    candidate = gates[:, :, 2 * size : 3 * size].tanh_()
    showing = gates[:, :, 3 * size :].sigmoid_()
    cells = gates.new_empty((len(gates) + 1, *cell.shape))
    cells[0] = cell
    torch.mul(entering, candidate, out=cells[1:])
    states = cells.unbind(0)
    for step, forgotten in enumerate(forgetting.unbind(0)):
        states[step + 1].addcmul_(forgotten, states[step])
    shown = cells[1:].tanh()
    # of: the cell before; the gates f, i and g, as multiples of the cell's gradient; o, a multiple of that of h'
    factors = gates.new_empty((*gates.shape[:2], 5, size))
    kept, of_entering, of_forgetting, of_candidate, of_showing = factors.unbind(2)
    kept.copy_(forgetting)
    torch.mul(candidate * entering, 1 - entering, out=of_entering)
    torch.mul(cells[:-1] * forgetting, 1 - forgetting, out=of_forgetting)
    torch.mul(entering, 1 - candidate * candidate, out=of_candidate)
    torch.mul(shown * showing, 1 - showing, out=of_showing)
    into_cell = torch.mul(showing, 1 - shown * shown).unbind(0)
    by_cell, by_hidden = factors[:, :, :4].unbind(0), of_showing.unbind(0)  # the products overwrite their factors
    passed, parts = kept.unbind(0), factors.flatten(2)[:, :, size:]
    operands, hidden = parts.unbind(0), flowing.unbind(0)
    moving = torch.zeros_like(cell) if last_cell is None else last_cell
    for step in range(len(operands) - 1, -1, -1):
        behind = hidden[step + 1] if projection is None else hidden[step + 1] @ projection
        by_cell[step].mul_(torch.addcmul(moving, behind, into_cell[step]).unsqueeze(1))
        by_hidden[step].mul_(behind)
        moving = passed[step]
        hidden[step].addmm_(operands[step], weight)
    of_projection = None
    if projection is not None:
        of_projection = flowing[1:].flatten(0, 1).t() @ (showing * shown).flatten(0, 1)
    return _Swept(parts, parts, (hidden[0], moving), of_projection)
