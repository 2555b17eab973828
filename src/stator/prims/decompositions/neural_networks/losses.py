"""Losses and their gradients by arithmetic and reductions. `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import cast, decomposes, iota
from stator.prims.layout import has_zero

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
        factor = 2.0 / torch.sym_max(count, 1)  # without elements there is no gradient to divide
    return aten.mul.Tensor(aten.mul.Tensor(aten.sub.Tensor(self, target), factor), grad_output)


@decomposes("smooth_l1_loss")
def smooth_l1_loss(self: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    distance = aten.abs.default(aten.sub.Tensor(self, target))
    if type(beta) in (int, float) and beta == 0:  # numbers that only the running program knows are positive
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
    """-(y log p + (1 - y) log(1 - p)), the logarithms bounded below by -100 as in eager. As there, p or y outside of
    [0, 1] is a RuntimeError on the CPU."""
    for name, given in (("input", self), ("target", target)) if self.device.type == "cpu" else ():
        inside = aten.logical_and.default(aten.ge.Scalar(given, 0), aten.le.Scalar(given, 1))
        aten._assert_async.msg(aten.all.default(inside), f"all elements of {name} should be between 0 and 1")
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
    if has_zero((*self.shape, *target.shape)):
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


@decomposes("binary_cross_entropy_with_logits", wide=False)
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    """(1 - y) x - w log(sigmoid(x)), where w is 1, or 1 + (pos_weight - 1) y; the logarithm without overflow."""
    tail = aten.log1p.default(aten.exp.default(aten.neg.default(aten.abs.default(self))))
    log_sigmoid = aten.sub.Tensor(aten.clamp_max.default(self, 0.0), tail)
    if pos_weight is not None:
        scale = aten.add.Tensor(aten.mul.Tensor(aten.sub.Tensor(pos_weight, 1.0), target), 1.0)
        log_sigmoid = aten.mul.Tensor(scale, log_sigmoid)
    loss = aten.sub.Tensor(aten.mul.Tensor(aten.rsub.Scalar(target, 1.0), self), log_sigmoid)
    return reduced(loss if weight is None else aten.mul.Tensor(loss, weight), reduction)


@decomposes("multi_margin_loss", wide=False)
def multi_margin_loss(
    self: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1
) -> Any:
    """Per sample the mean over the other classes c of w[y] max(0, margin - x[y] + x[c]) ** p."""
    if 0 in tuple(self.shape) or self.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    single = len(self.shape) < 2
    rows = aten.reshape.default(self, [1, -1]) if single else self
    wanted = aten.reshape.default(target, [-1, 1])
    classes = rows.shape[1]
    gap = aten.add.Tensor(aten.sub.Tensor(rows, aten.gather.default(rows, 1, wanted)), margin)
    cost = aten.clamp_min.default(gap, 0.0)
    cost = aten.mul.Tensor(cost, cost) if p == 2 else cost
    if weight is not None:
        cost = aten.mul.Tensor(cost, aten.index.Tensor(weight, [wanted]))
    others = aten.ne.Tensor(iota(classes, self), wanted)
    loss = aten.div.Tensor(aten.sum.dim_IntList(aten.where.ScalarOther(others, cost, 0.0), [1]), classes)
    return reduced(aten.squeeze.dim(loss, 0) if single and not len(target.shape) else loss, reduction)


@decomposes("multilabel_margin_loss_forward", wide=False)
def multilabel_margin_loss_forward(self: Any, target: Any, reduction: int) -> Any:
    """Sum max(0, 1 - x[named] + x[other]) over the classes named before the first negative target and the classes not
    named, divided by the number of classes."""
    if 0 in tuple(self.shape) or self.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    single = len(self.shape) < 2
    rows = aten.reshape.default(self, [1, -1]) if single else self
    labels = aten.reshape.default(target, list(rows.shape))
    classes = rows.shape[1]
    order = iota(classes, self)
    end = aten.amin.default(aten.where.ScalarOther(aten.lt.Scalar(labels, 0), order, classes), [1], True)
    named = aten.lt.Tensor(order, end)
    label = aten.where.ScalarOther(named, labels, 0)
    matches = aten.eq.Tensor(aten.unsqueeze.default(label, 2), order)
    matches = aten.logical_and.default(matches, aten.unsqueeze.default(named, 2))
    is_target = aten.any.dim(matches, 1)
    gap = aten.rsub.Tensor(
        aten.unsqueeze.default(aten.gather.default(rows, 1, label), 2), aten.unsqueeze.default(rows, 1)
    )
    cost = aten.clamp_min.default(aten.add.Tensor(gap, 1.0), 0.0)
    pairs = aten.logical_and.default(
        aten.unsqueeze.default(named, 2), aten.unsqueeze.default(aten.logical_not.default(is_target), 1)
    )
    loss = aten.div.Tensor(aten.sum.dim_IntList(aten.where.ScalarOther(pairs, cost, 0.0), [1, 2]), classes)
    flags = aten.reshape.default(cast(is_target, self.dtype), list(target.shape))
    return reduced(aten.squeeze.dim(loss, 0) if single else loss, reduction), flags


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
    if has_zero((*self.shape, *target.shape)):
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
