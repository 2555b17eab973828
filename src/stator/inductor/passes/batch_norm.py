"""Folds batch normalisation with frozen statistics into the frozen weights of the convolution before it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from stator.prims.record import TensorMeta

from .frozen_inputs import PREFIX, is_frozen

aten = torch.ops.aten


def fold_batch_norms(gm: fx.GraphModule) -> fx.GraphModule:
    """Convolutions whose only reader is such a batch normalisation get its scale and shift, in place.

    The scaled weights are rounded, once, to the weight's dtype. Where they or the shifts are not finite, nothing is
    folded.
    """
    for node in list(gm.graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default and _reads_convolution(node):
            _fold(gm, node)
    return gm


def _reads_convolution(node: fx.Node) -> bool:
    convolution, *parameters = node.args[:5]
    if not isinstance(convolution, fx.Node) or convolution.target is not aten.convolution.default:
        return False
    _, weight, bias = convolution.args[:3]
    constants = [weight, *(one for one in (bias, *parameters) if one is not None)]
    only_reader = len(convolution.users) == 1 and convolution.args[6] is False  # not a transposed convolution
    read = all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    return only_reader and read and all(isinstance(one, fx.Node) and is_frozen(one) for one in constants)


def _fold(gm: fx.GraphModule, node: fx.Node) -> None:
    arguments: Any = node.args
    convolution, epsilon = arguments[0], arguments[6]
    weight, bias = (_value(gm, one) for one in convolution.args[1:3])
    gamma, beta, mean, variance = (_value(gm, one) for one in arguments[1:5])
    assert weight is not None and mean is not None and variance is not None
    with torch.no_grad(), torch._C._DisableAutocast(), torch._C._InferenceMode(False):
        scale = torch.rsqrt(variance.double() + epsilon)
        scale = scale if gamma is None else scale * gamma.double()
        shift = (0.0 if bias is None else bias.double()) - mean.double()
        shift = shift * scale if beta is None else shift * scale + beta.double()
        scaled = weight.double() * scale.reshape(-1, *[1] * (weight.dim() - 1))
        # in the weight's own layout
        new_weight, new_bias = torch.empty_like(weight).copy_(scaled), shift.to(weight.dtype)
        if not (new_weight.isfinite().all() and new_bias.isfinite().all()):
            return
    with gm.graph.inserting_before(convolution):
        made = [
            _constant(gm, f"{PREFIX}{convolution.name}_{role}", value, convolution.args[1].meta["val"])
            for role, value in (("weight", new_weight), ("bias", new_bias))
        ]
    convolution.args = (convolution.args[0], *made, *convolution.args[3:])
    for user in list(node.users):
        user.replace_all_uses_with(convolution)
        gm.graph.erase_node(user)
    gm.graph.erase_node(node)


def _value(gm: fx.GraphModule, node: Any) -> torch.Tensor | None:
    return None if node is None else getattr(gm, node.target)


def _constant(gm: fx.GraphModule, name: str, value: torch.Tensor, like: Any) -> fx.Node:
    gm.register_buffer(name, value, persistent=False)
    node = gm.graph.get_attr(name)
    shape, stride = tuple(value.shape), tuple(value.stride())
    node.meta["val"] = TensorMeta(shape, stride, value.dtype, like.device)
    return node
