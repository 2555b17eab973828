"""The connectionist temporal classification loss of sequences whose lengths are tensors: `stator::` operators.

ATen saves for the backward an array whose size is the longest target length, which is data. Here the array has the
largest possible size; the rest is never read. ATen does the computation.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import contiguous_strides, numel
from stator.prims.record import TensorMeta, shape_rule

aten = torch.ops.aten


def longest_possible(targets: Any) -> Any:
    """Return the largest possible target length, for targets [batch, longest] or [sum of lengths]."""
    return targets.shape[1] if targets.dim() == 2 else numel(tuple(targets.shape))


def _forward(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    loss, alpha = aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    wide = alpha.new_zeros((*alpha.shape[:2], 2 * longest_possible(targets) + 1))
    wide[:, :, : alpha.shape[2]] = alpha
    return loss, wide


def _backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    loss: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    longest = int(target_lengths.max()) if target_lengths.numel() else 0
    alpha = log_alpha[:, :, : 2 * longest + 1].contiguous()
    return aten._ctc_loss_backward.Tensor(
        grad, log_probs, targets, input_lengths, target_lengths, loss, alpha, blank, zero_infinity
    )


_LENGTHS = "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths"
_OPTIONS = "int blank, bool zero_infinity"
_library = torch.library.Library("stator", "FRAGMENT")
_library.define(f"ctc_loss({_LENGTHS}, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(f"ctc_loss_backward(Tensor grad, {_LENGTHS}, Tensor loss, Tensor log_alpha, {_OPTIONS}) -> Tensor")
_library.impl("ctc_loss", _forward, "CompositeExplicitAutograd")
_library.impl("ctc_loss_backward", _backward, "CompositeExplicitAutograd")

ctc_loss = torch.ops.stator.ctc_loss.default
ctc_loss_backward = torch.ops.stator.ctc_loss_backward.default


@shape_rule(ctc_loss, tags=("reduction",))
def ctc_loss_shape(log_probs: Any, targets: Any, *_rest: Any) -> tuple[TensorMeta, TensorMeta]:
    """Returns the loss of each sequence, [batch], and the log probabilities of prefixes of its target."""
    steps, batch = log_probs.shape[:2]
    return _made((batch,), log_probs), _made((batch, steps, 2 * longest_possible(targets) + 1), log_probs)


@shape_rule(ctc_loss_backward, tags=("reduction",))
def ctc_loss_backward_shape(grad: Any, log_probs: Any, *_rest: Any) -> TensorMeta:
    return _made(tuple(log_probs.shape), log_probs)


def _made(shape: tuple[Any, ...], like: Any) -> TensorMeta:
    return TensorMeta(shape, contiguous_strides(shape), like.dtype, like.device)
