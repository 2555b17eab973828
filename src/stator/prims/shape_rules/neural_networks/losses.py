"""Shape rules of losses. `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import holds, preserved_strides
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.shape_rules.operands import elementwise, fresh, overloads, shape_table
from stator.prims.type_promotion import common_dtype

LOSS = ("reduction",)


def elementwise_loss(self: Any, target: Any, reduction: int) -> TensorMeta:
    result = elementwise((self, target), common_dtype((self, target)))
    return result if reduction == 0 else fresh((), self, result.dtype)


@shape_rule(*overloads("smooth_l1_loss"), tags=LOSS)
def smooth_l1_loss(self: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> TensorMeta:
    refuse_if(not beta >= 0)
    return elementwise_loss(self, target, reduction)


@shape_rule(*overloads("huber_loss"), tags=LOSS)
def huber_loss(self: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> TensorMeta:
    refuse_if(not delta > 0)
    return elementwise_loss(self, target, reduction)


@shape_rule(*overloads("binary_cross_entropy"), tags=LOSS)
def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = 1) -> TensorMeta:
    shape = tuple(self.shape)
    return fresh(shape, self, stride=preserved_strides(shape, self.stride())) if reduction == 0 else fresh((), self)


@shape_rule(*overloads("binary_cross_entropy_with_logits"), tags=LOSS)
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> TensorMeta:
    result = elementwise((self, target, weight, pos_weight), common_dtype((self, target, weight, pos_weight)))
    return result if reduction == 0 else fresh((), self, result.dtype)


@shape_rule(*overloads("nll_loss_forward"), tags=LOSS)
def nll_loss_forward(
    self: Any, target: Any, weight: Any, reduction: int, ignore_index: Any
) -> tuple[TensorMeta, TensorMeta]:
    refuse_if(len(self.shape) not in (1, 2) or len(target.shape) > 1)
    _check_labels(target)
    batched = len(self.shape) == 2
    refuse_if(batched and not holds(self.shape[0] == target.shape[0]))
    shape = (self.shape[0],) if reduction == 0 and batched else ()
    return fresh(shape, self), fresh((), self)


@shape_rule(*overloads("nll_loss2d_forward"), tags=LOSS)
def nll_loss2d_forward(
    self: Any, target: Any, weight: Any, reduction: int, ignore_index: Any
) -> tuple[TensorMeta, TensorMeta]:
    _check_labels(target)
    shape = (self.shape[0], *self.shape[2:]) if reduction == 0 else ()
    return fresh(shape, self), fresh((), self)


def _check_labels(target: Any) -> None:
    refuse_if(target.dtype not in (torch.int64, torch.uint8))


@shape_rule(*overloads("multilabel_margin_loss_forward"), tags=LOSS)
def multilabel_margin_loss_forward(self: Any, target: Any, reduction: int) -> tuple[TensorMeta, TensorMeta]:
    batched = reduction == 0 and len(self.shape) == 2
    return fresh(self.shape[:1] if batched else (), self), fresh(target.shape, self)


@shape_rule(*overloads("_ctc_loss"), tags=LOSS)
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Sequence[Any],
    target_lengths: Sequence[Any],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[TensorMeta, TensorMeta]:
    """The loss of each sequence, and the log probabilities of its prefixes, with blanks in between."""
    longest: Any = 0
    for length in target_lengths:
        longest = longest if length <= longest else length
    steps, batch = log_probs.shape[:2]
    return fresh((batch,), log_probs), fresh((batch, steps, 2 * longest + 1), log_probs)


shape_table(
    LOSS,
    {
        "mse_loss soft_margin_loss": lambda self, target, reduction=1: elementwise_loss(self, target, reduction),
        "multi_margin_loss": lambda self, target, p=1, margin=1, weight=None, reduction=1: fresh(
            target.shape if reduction == 0 else (), self
        ),
    },
)
