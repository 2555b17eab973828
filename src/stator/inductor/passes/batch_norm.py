"""Folds batch normalisation with frozen statistics into the frozen weights of the convolution or product before it, or
else into one factor and one summand for each channel."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from stator.prims.layout import is_dense
from stator.prims.record import TensorMeta

from .frozen_inputs import add_frozen, is_frozen

aten = torch.ops.aten

_NORM = aten._native_batch_norm_legit_no_training.default
_PRODUCTS = (aten.mm.default, aten.addmm.default)
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dim)
_EXACT = (torch.float32, torch.float64)


def fold_batch_norms(gm: fx.GraphModule) -> fx.GraphModule:
    """Such batch normalisation becomes part of the convolution or product that it alone reads, or else a multiplication
    and an addition, in place.

    What is scaled is rounded, once, to the weight's dtype. Where it or the shifts are not finite, nothing is folded.
    """
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        for node in list(gm.graph.nodes):
            if node.target is _NORM and _is_frozen(node) and all(_takes_values(user) for user in node.users):
                if (source := _product_before(node)) is not None:
                    _fold(gm, node, source)
                elif _is_elementwise(node):
                    _scale_and_shift(gm, node)
    return gm


def _is_frozen(node: fx.Node) -> bool:
    """Whether the statistics are frozen, and the scale and the shift, if any."""
    gamma, beta, mean, variance = node.args[1:5]
    given = [one for one in (gamma, beta, mean, variance) if one is not None]
    return all(isinstance(one, fx.Node) and is_frozen(one) for one in given)


def _takes_values(user: fx.Node) -> bool:
    return bool(user.target is operator.getitem and user.args[1] == 0)


def _product_before(node: fx.Node) -> fx.Node | None:
    """The convolution or product with frozen weights that the normalisation alone reads. Between a product and the
    normalisation of its columns there may be views that keep the columns."""
    source: Any = node.args[0]
    if len(source.meta["val"].shape) == 2:
        columns = source.meta["val"].shape[1]
        while source.target in _VIEWS and len(source.users) == 1 and source.meta["val"].shape[-1:] == (columns,):
            source = source.args[0]
    if len(source.users) != 1 or source.kwargs:
        return None
    if source.target is aten.convolution.default:
        _, weight, bias = source.args[:3]
        plain = source.args[6] is False  # not a transposed convolution
    elif source.target in _PRODUCTS and source.meta["val"].shape[-1:] == node.meta["val"][0].shape[-1:]:
        bias, weight = (source.args[0] if source.target is aten.addmm.default else None), source.args[-1]
        plain = len(node.meta["val"][0].shape) == 2 and (bias is None or len(bias.meta["val"].shape) == 1)
        weight = weight.args[0] if weight.target is aten.t.default else weight
    else:
        return None
    constant = is_frozen(weight) and (bias is None or is_frozen(bias))
    return source if plain and constant else None


def _fold(gm: fx.GraphModule, node: fx.Node, source: fx.Node) -> None:
    convolves = source.target is aten.convolution.default
    bias: Any = source.args[2] if convolves else source.args[0] if source.target is aten.addmm.default else None
    matrix: Any = source.args[1] if convolves else source.args[-1]
    turned = matrix.target is aten.t.default
    weight = getattr(gm, (matrix.args[0] if turned else matrix).target)
    weight = weight.t() if turned else weight
    scale, shift = _scale_and_shift_of(gm, node, bias)
    factor = _for_channels(scale, weight.dim() - 1) if convolves else scale
    # in the weight's own layout
    scaled, shift = torch.empty_like(weight).copy_(weight.double() * factor), shift.to(weight.dtype)
    if not (scaled.isfinite().all() and shift.isfinite().all()):
        return
    with gm.graph.inserting_before(source):
        made, added = add_frozen(gm, f"{source.name}_weight", scaled), add_frozen(gm, f"{source.name}_bias", shift)
    if convolves:
        source.args = (source.args[0], made, added, *source.args[3:])
    else:
        source.args, source.target = (added, source.args[-2], made), aten.addmm.default
    _replace(node, node.args[0])


def _is_elementwise(node: fx.Node) -> bool:
    """Whether a product and a sum have the dtype and the layout of the normalisation."""
    arguments: Any = node.args
    given, result = arguments[0].meta["val"], node.meta["val"][0]
    dtypes = {given.dtype, *(one.meta["val"].dtype for one in arguments[1:5] if one is not None)}
    laid_out_alike = given.stride == result.stride and is_dense(given.shape, given.stride)
    return bool(laid_out_alike and result.dtype in _EXACT and dtypes == {result.dtype})


def _scale_and_shift(gm: fx.GraphModule, node: fx.Node) -> None:
    result: TensorMeta = node.meta["val"][0]
    constants = [_for_channels(one, len(result.shape) - 2) for one in _scale_and_shift_of(gm, node, None)]
    scale, shift = (one.to(result.dtype) for one in constants)
    if not (scale.isfinite().all() and shift.isfinite().all()):
        return
    with gm.graph.inserting_before(node):
        made: Any = node.args[0]
        for target, constant, role in ((aten.mul.Tensor, scale, "scale"), (aten.add.Tensor, shift, "shift")):
            made = gm.graph.call_function(target, (made, add_frozen(gm, f"{node.name}_{role}", constant)))
            made.meta.update(node.meta, val=result)
    _replace(node, made)


def _scale_and_shift_of(gm: fx.GraphModule, node: fx.Node, bias: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor and the summand of each channel, in double precision. bias: what is added to channels before."""
    arguments: Any = node.args
    parts: Any = [None if one is None else getattr(gm, one.target).double() for one in (*arguments[1:5], bias)]
    gamma, beta, mean, variance, before = parts
    scale = torch.rsqrt(variance + arguments[6])
    scale = scale if gamma is None else scale * gamma
    shift = ((0.0 if before is None else before) - mean) * scale
    return scale, shift if beta is None else shift + beta


def _for_channels(values: torch.Tensor, dims: int) -> torch.Tensor:
    """Values of channels, for tensors that have so many dimensions behind that of channels."""
    return values.reshape(-1, *[1] * dims)


def _replace(node: fx.Node, values: Any) -> None:
    for user in list(node.users):
        user.replace_all_uses_with(values)
        node.graph.erase_node(user)
    node.graph.erase_node(node)
