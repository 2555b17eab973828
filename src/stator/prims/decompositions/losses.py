"""Losses by arithmetic and reductions. `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import Any

import torch

from .conform import cast, decomposes

aten = torch.ops.aten


def reduced(loss: Any, reduction: int) -> Any:
    if reduction == 0:
        return loss
    return aten.mean.default(loss) if reduction == 1 else aten.sum.default(loss)


@decomposes("mse_loss")
def mse_loss(self: Any, target: Any, reduction: int = 1) -> Any:
    difference = aten.sub.Tensor(self, target)
    return reduced(aten.mul.Tensor(difference, difference), reduction)


@decomposes("mse_loss_backward")
def mse_loss_backward(grad_output: Any, self: Any, target: Any, reduction: int) -> Any:
    factor: Any = 2.0
    if reduction == 1:
        count: Any = 1
        for size in self.shape:
            count = count * size
        factor = 2.0 / count
    return aten.mul.Tensor(aten.mul.Tensor(aten.sub.Tensor(self, target), factor), grad_output)


@decomposes("smooth_l1_loss")
def smooth_l1_loss(self: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    distance = aten.abs.default(aten.sub.Tensor(self, target))
    if beta == 0:
        return reduced(distance, reduction)
    near = aten.div.Tensor(aten.mul.Tensor(aten.mul.Tensor(distance, distance), 0.5), beta)
    return reduced(
        aten.where.self(aten.lt.Scalar(distance, beta), near, aten.sub.Tensor(distance, 0.5 * beta)), reduction
    )


@decomposes("huber_loss")
def huber_loss(self: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    distance = aten.abs.default(aten.sub.Tensor(self, target))
    near = aten.mul.Tensor(aten.mul.Tensor(distance, distance), 0.5)
    far = aten.mul.Tensor(aten.sub.Tensor(distance, 0.5 * delta), delta)
    return reduced(aten.where.self(aten.le.Scalar(distance, delta), near, far), reduction)


@decomposes("binary_cross_entropy")
def binary_cross_entropy(self: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    """-(y log p + (1 - y) log(1 - p)), the logarithms bounded below by -100 as in eager."""
    positive = aten.mul.Tensor(target, aten.clamp_min.default(aten.log.default(self), -100.0))
    rest = aten.clamp_min.default(aten.log1p.default(aten.neg.default(self)), -100.0)
    negative = aten.mul.Tensor(aten.rsub.Scalar(target, 1.0), rest)
    loss = aten.neg.default(aten.add.Tensor(positive, negative))
    return reduced(loss if weight is None else aten.mul.Tensor(loss, weight), reduction)


@decomposes("soft_margin_loss")
def soft_margin_loss(self: Any, target: Any, reduction: int = 1) -> Any:
    margin = aten.mul.Tensor(aten.neg.default(target), self)
    return reduced(aten.log1p.default(aten.exp.default(margin)), reduction)


@decomposes("nll_loss_forward nll_loss2d_forward")
def nll_loss_forward(self: Any, target: Any, weight: Any, reduction: int, ignore_index: Any) -> Any:
    """The negative log-likelihoods of the targets, classes along dimension 1 (0 for an unbatched input)."""
    if 0 in tuple(self.shape) or 0 in tuple(target.shape):
        return NotImplemented
    batched = len(self.shape) > 1
    dim = 1 if batched else 0
    target = cast(target, torch.int64)
    ignored = aten.eq.Scalar(target, ignore_index)
    safe = aten.where.ScalarSelf(ignored, 0, target)
    index = aten.unsqueeze.default(safe, dim)
    picked = aten.neg.default(aten.squeeze.dim(aten.gather.default(self, dim, index), dim))
    if weight is None:
        weights = cast(aten.logical_not.default(ignored), self.dtype)
    else:
        weights = aten.where.ScalarSelf(ignored, 0.0, aten.index.Tensor(weight, [safe]))
    loss = aten.where.ScalarSelf(ignored, 0.0, aten.mul.Tensor(picked, weights))
    if reduction == 0 and batched:
        return loss, aten.new_zeros.default(self, [])
    total = aten.sum.default(weights)
    summed = aten.sum.default(loss)
    return (aten.div.Tensor(summed, total) if reduction == 1 else summed), total
