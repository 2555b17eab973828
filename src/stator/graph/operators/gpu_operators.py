"""Operators that ATen calls for tensors on GPUs alone, by operators that all devices have, or with more care."""

from __future__ import annotations

from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeMode, specials
from stator.prims.layout import same_strides
from stator.prims.shape_rules.operands import overloads

aten = torch.ops.aten
_LIBRARY_CTC_LOSS = "_use_cudnn_ctc_loss _use_cudnn_ctc_loss.Tensor _use_miopen_ctc_loss _use_miopen_ctc_loss.Tensor"
_BILINEAR, _ZEROS, _ALIGNED = 0, 0, True  # what cuDNN's sampler computes


@specials.register(aten._scaled_dot_product_cudnn_attention_backward.default)
def _cudnn_attention_backward(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give cuDNN the gradient in the layout of the attention's output. ATen finds cuDNN's plans by the layouts of
    query, key and value alone, and a plan that was made for a gradient of another layout computes wrong numbers."""
    gradient, output = args[0], args[4]
    if same_strides(output.shape, gradient.stride(), output.stride()):
        return NotImplemented
    with mode:
        gradient = aten.copy.default(output, gradient)
        return aten._scaled_dot_product_cudnn_attention_backward.default(gradient, *args[1:], **kwargs)


@specials.register(aten.cudnn_grid_sampler.default)
def _grid_sampler(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.dispatch(aten.grid_sampler_2d.default, (*args, _BILINEAR, _ZEROS, _ALIGNED), {})


@specials.register(aten.cudnn_grid_sampler_backward.default)
def _grid_sampler_backward(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given, grid, gradient = args
    settings = _BILINEAR, _ZEROS, _ALIGNED, [True, True]
    return mode.dispatch(aten.grid_sampler_2d_backward.default, (gradient, given, grid, *settings), {})


@specials.register(*overloads(_LIBRARY_CTC_LOSS))
def _use_library_for_ctc_loss(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Never: what the library saves for the backward has a size of its own choice."""
    return False
