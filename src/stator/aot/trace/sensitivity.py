"""Which programs multiply differences in rounding while they are trained, so that eager's bits are worth their price.

A derivative that jumps (ReLU's at zero) passes on all of a gradient or nothing, whichever side of the jump a value was
rounded to; what was chosen by comparing, sorting or rounding is another thing altogether on the other side; and a
normalisation by the statistics of few samples divides by small differences. In programs without these a difference in
the last bit stays one. docs/exactness.md has figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

_HALVES = (torch.float16, torch.bfloat16)

# Functions and methods of torch by name, without the underscore of those that write in place.
_JUMPING_DERIVATIVES = (
    "relu relu6 rrelu leaky_relu prelu selu hardtanh hardswish hardsigmoid threshold hardshrink softshrink clamp clip "
    "clamp_min clamp_max abs absolute maximum minimum fmax fmin max min amax amin aminmax l1_loss margin_ranking_loss "
    "hinge_embedding_loss multi_margin_loss multilabel_margin_loss triplet_margin_loss cosine_embedding_loss "
    "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
    "fractional_max_pool2d fractional_max_pool3d lp_pool1d lp_pool2d lp_pool3d cummax cummin copysign rnn_relu "
    "rnn_relu_cell renorm"
)
_JUMPING_VALUES = (
    "sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile argmax argmin gt ge lt le eq ne "
    "greater greater_equal less less_equal not_equal sign sgn round floor ceil trunc fix frac floordiv floor_divide "
    "remainder mod fmod heaviside bucketize searchsorted bernoulli multinomial int long special_round "
    "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine fused_moving_avg_obs_fake_quant"
)
_JUMPING = frozenset((*_JUMPING_DERIVATIVES.split(), *_JUMPING_VALUES.split()))
# Those that take the statistics of what they are given if their argument of this name, the sixth one, says so.
_BY_STATISTICS = {"batch_norm": "training", "instance_norm": "use_input_stats"}


def _of_absolute_values(order: Any, is_inside: bool) -> bool:
    """Norms of order one, of the largest or smallest one, and of those that are not zero."""
    return isinstance(order, int | float) and (order <= 1 or order == math.inf)


def _of_extremes(way: Any, is_inside: bool) -> bool:
    return way in ("amax", "amin", "max", "min")


# Those that jump with some values of an argument: its place, its name, and whether they do.
_BY_ARGUMENT: dict[str, tuple[int, str, Callable[[Any, bool], bool]]] = {
    "norm": (1, "p", _of_absolute_values),
    "linalg_norm": (1, "ord", _of_absolute_values),
    "linalg_vector_norm": (1, "ord", _of_absolute_values),
    "linalg_matrix_norm": (1, "ord", _of_absolute_values),
    "normalize": (1, "p", _of_absolute_values),
    "pdist": (1, "p", _of_absolute_values),
    "cdist": (2, "p", _of_absolute_values),
    "dist": (2, "p", _of_absolute_values),
    "pairwise_distance": (2, "p", _of_absolute_values),
    "scatter_reduce": (4, "reduce", _of_extremes),
    "index_reduce": (4, "reduce", _of_extremes),
    "segment_reduce": (1, "reduce", _of_extremes),
    "embedding_bag": (6, "mode", _of_extremes),
    "gumbel_softmax": (2, "hard", lambda hard, is_inside: hard is True),
    "elu": (1, "alpha", lambda alpha, is_inside: alpha not in (None, 1)),
    "smooth_l1_loss": (5, "beta", lambda beta, is_inside: beta == 0),
    "grid_sample": (1, "grid", lambda grid, is_inside: _leads_to_gradients(grid, is_inside)),
}
# Those whose results are no floats but do not tell one number from another one beside it.
_TELLING_KINDS = frozenset(["isnan", "isinf", "isfinite", "isposinf", "isneginf", "isreal"])


def amplifier_of(gm: fx.GraphModule) -> fx.Node | None:
    """The first operator of a graph of torch calls that multiplies differences in rounding, if there is one.

    Only what gradients go through counts. A graph that computes in half floats is not asked: it rounds so much more
    than orders of sums do that nobody compares it by its last bits.
    """
    found = None
    for node, is_inside in _calls(gm):
        if _has(node, _HALVES):
            return None
        if found is None and _amplifies(node, is_inside):
            found = node
    return found


def _calls(gm: fx.GraphModule, is_inside: bool = False) -> Iterator[tuple[fx.Node, bool]]:
    """All calls, also those of the parts of a graph; and whether they are of a part."""
    for node in gm.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        yield node, is_inside
        graphs = getattr(getattr(node.target, "part_of_graph", None), "graphs", None)
        for part in graphs().values() if graphs is not None else ():
            yield from _calls(part, is_inside=True)


def _amplifies(node: fx.Node, is_inside: bool) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    name = name.partition(".")[0].strip("_")
    if name in _BY_STATISTICS:
        by_statistics = node.args[5] if len(node.args) > 5 else node.kwargs.get(_BY_STATISTICS[name])
        if by_statistics is False:
            return False
    elif name in _BY_ARGUMENT:
        place, keyword, jumps = _BY_ARGUMENT[name]
        if not jumps(node.args[place] if len(node.args) > place else node.kwargs.get(keyword), is_inside):
            return False
    elif name not in _JUMPING:
        return _counts(node, name, is_inside)
    return any(_leads_to_gradients(operand, is_inside) for operand in node.all_input_nodes)


def _counts(node: fx.Node, name: str, is_inside: bool) -> bool:
    """Whether whole numbers or truths are made of what has gradients: of its contents, not of its shape only."""
    value = _value(node)
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return False
    if name in _TELLING_KINDS or name.startswith("new_") or name.endswith("_like"):
        return False
    operands = [operand for operand in node.all_input_nodes if isinstance(_value(operand), torch.Tensor)]
    return any(_leads_to_gradients(operand, is_inside) for operand in operands)


def _leads_to_gradients(operand: fx.Node, is_inside: bool) -> bool:
    """Parts run in a grad mode of their own: there, and where nothing is known, it is taken for granted."""
    value = _value(operand)
    if not isinstance(value, torch.Tensor):
        return True
    return value.is_floating_point() and (is_inside or value.requires_grad)


def _has(node: fx.Node, dtypes: tuple[torch.dtype, ...]) -> bool:
    value = _value(node)
    return isinstance(value, torch.Tensor) and value.dtype in dtypes


def _value(node: fx.Node) -> object:
    return node.meta.get("example_value", node.meta.get("val"))
