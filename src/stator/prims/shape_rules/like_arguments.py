"""Shape rules of operators whose result is laid out like one argument, whatever the other arguments are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stator.prims.layout import preserved_strides, suggested_strides
from stator.prims.record import ShapeRule, TensorMeta, shape_rule
from stator.prims.refusal import refuse_if

from .operands import fresh, overloads, with_in_place


def contiguous(tensor: Any) -> TensorMeta:
    return fresh(tensor.shape, tensor)


def preserved(tensor: Any) -> TensorMeta:
    """Describe a fresh tensor: the strides of `tensor` if dense, otherwise dense in their order."""
    shape = tuple(tensor.shape)
    return fresh(shape, tensor, stride=preserved_strides(shape, tensor.stride()))


def in_format(tensor: Any) -> TensorMeta:
    """Describe a fresh tensor in the memory format that `tensor` suggests."""
    shape = tuple(tensor.shape)
    return fresh(shape, tensor, stride=suggested_strides(shape, tensor.stride(), shape))


# Position of the argument, layout, tags, operators
TABLE: tuple[tuple[int, Callable[[Any], TensorMeta], tuple[str, ...], str], ...] = (
    (0, contiguous, ("random",), "bernoulli bernoulli.p _standard_gamma _sample_dirichlet poisson binomial"),
    (0, contiguous, ("random", "pointwise"), "rrelu_with_noise"),
    (0, contiguous, (), "_standard_gamma_grad _dirichlet_grad"),
    (0, preserved, ("pointwise",), "_prelu_kernel log_sigmoid_backward"),
    (
        0,
        preserved,
        ("random",),
        "bernoulli.Tensor uniform normal_functional exponential geometric cauchy log_normal random random.from "
        "random.to",
    ),
    (1, contiguous, ("reduction",), "nll_loss_backward nll_loss2d_backward _pdist_backward"),
    (1, contiguous, ("reduction",), "_ctc_loss_backward _ctc_loss_backward.Tensor"),
    (
        1,
        contiguous,
        ("pointwise",),
        "mse_loss_backward smooth_l1_loss_backward huber_loss_backward multi_margin_loss_backward "
        "multilabel_margin_loss_backward glu_backward",
    ),
    (
        1,
        contiguous,
        ("scatter",),
        "reflection_pad1d_backward replication_pad1d_backward max_pool3d_with_indices_backward avg_pool3d_backward "
        "_adaptive_avg_pool3d_backward adaptive_max_pool3d_backward fractional_max_pool2d_backward "
        "fractional_max_pool3d_backward",
    ),
    (1, preserved, ("pointwise",), "binary_cross_entropy_backward"),
    (
        1,
        in_format,
        ("scatter",),
        "reflection_pad2d_backward replication_pad2d_backward reflection_pad3d_backward replication_pad3d_backward "
        "max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward "
        "adaptive_max_pool2d_backward",
    ),
)


def _like(position: int, layout: Callable[[Any], TensorMeta]) -> ShapeRule:
    def rule(*args: Any, **_options: Any) -> TensorMeta:
        return layout(args[position])

    return rule


for _position, _layout, _tags, _names in TABLE:
    shape_rule(*overloads(_names), tags=_tags)(_like(_position, _layout))
with_in_place(*overloads("nan_to_num"), tags=("pointwise",))(_like(0, preserved))


@with_in_place(*overloads("renorm"), tags=("reduction",))
def renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> TensorMeta:
    refuse_if(len(self.shape) < 2 or not p > 0 or maxnorm < 0)
    return contiguous(self)
