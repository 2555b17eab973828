"""Gradients of losses by arithmetic. `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import cast, decomposes, iota

aten = torch.ops.aten

# Eager's lower bound of the denominator in the gradient of binary cross entropy.
LEAST_VARIANCE = 1e-12


def scaled(grad: Any, like: Any, reduction: int) -> Any:
    """Return the gradient of each element's loss."""
    if reduction != 1:
        return grad
    count: Any = 1
    for size in like.shape:
        count = count * size
    return aten.div.Tensor(grad, count) if count != 0 else grad


@decomposes("smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad: Any, self: Any, target: Any, reduction: int, beta: float) -> Any:
    grad = scaled(grad, self, reduction)
    difference = aten.sub.Tensor(self, target)
    inner = aten.div.Tensor(aten.mul.Tensor(grad, difference), beta)
    upper = aten.where.self(aten.ge.Scalar(difference, beta), grad, inner)
    return aten.where.self(aten.le.Scalar(difference, -beta), aten.neg.default(grad), upper)


@decomposes("huber_loss_backward")
def huber_loss_backward(grad: Any, self: Any, target: Any, reduction: int, delta: float) -> Any:
    grad = scaled(grad, self, reduction)
    difference = aten.sub.Tensor(self, target)
    far = aten.mul.Tensor(grad, delta)
    upper = aten.where.self(aten.gt.Scalar(difference, delta), far, aten.mul.Tensor(grad, difference))
    return aten.where.self(aten.lt.Scalar(difference, -delta), aten.neg.default(far), upper)


@decomposes("binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad: Any, self: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    variance = aten.clamp_min.default(aten.mul.Tensor(aten.rsub.Scalar(self, 1.0), self), LEAST_VARIANCE)
    slope = aten.div.Tensor(aten.sub.Tensor(self, target), variance)
    if weight is not None:
        slope = aten.mul.Tensor(slope, weight)
    return aten.mul.Tensor(slope, scaled(grad, self, reduction))


@decomposes("soft_margin_loss_backward")
def soft_margin_loss_backward(grad: Any, self: Any, target: Any, reduction: int) -> Any:
    power = aten.exp.default(aten.neg.default(aten.mul.Tensor(target, self)))
    slope = aten.div.Tensor(aten.mul.Tensor(aten.neg.default(target), power), aten.add.Tensor(power, 1.0))
    return aten.mul.Tensor(slope, scaled(grad, self, reduction))


@decomposes("nll_loss_backward nll_loss2d_backward")
def nll_loss_backward(
    grad: Any, self: Any, target: Any, weight: Any, reduction: int, ignore_index: Any, total_weight: Any
) -> Any:
    """Minus the weight where the class (along dimension 1, or 0 of an unbatched input) is the target, else zero."""
    if 0 in tuple(self.shape) or 0 in tuple(target.shape):
        return NotImplemented
    rank = len(self.shape)
    dim = 1 if rank > 1 else 0
    target = cast(target, torch.int64)
    ignored = aten.eq.Scalar(target, ignore_index)
    grad = aten.neg.default(aten.div.Tensor(grad, total_weight) if reduction == 1 else grad)
    if weight is not None:
        grad = aten.mul.Tensor(grad, aten.index.Tensor(weight, [aten.where.ScalarSelf(ignored, 0, target)]))
    grad = aten.where.ScalarSelf(ignored, 0.0, grad)
    classes = aten.view.default(iota(self.shape[dim], self), [-1, *[1] * (rank - dim - 1)])
    chosen = aten.eq.Tensor(aten.unsqueeze.default(target, dim), classes)
    return aten.where.ScalarOther(chosen, aten.unsqueeze.default(grad, dim), 0.0)
