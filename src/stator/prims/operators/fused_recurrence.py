"""One layer and direction of an LSTM as oneDNN computes it for eager programs on the CPU: `stator::lstm_layer`.

For graphs that run operator by operator; others decompose the recurrence into products and elementwise operators.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta, shape_rule

aten = torch.ops.aten


def _lstm_layer(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Run ATen's operator with gradients enabled, because otherwise it saves nothing for a backward."""
    with torch.enable_grad():
        return aten.mkldnn_rnn_layer.default(*arguments)


_library = torch.library.Library("stator", "FRAGMENT")
_library.define(
    "lstm_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx, Tensor cx, "
    "bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases, bool bidirectional, "
    "bool batch_first, bool train) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.impl("lstm_layer", _lstm_layer, "CompositeExplicitAutograd")

lstm_layer = torch.ops.stator.lstm_layer.default


@shape_rule(aten.mkldnn_rnn_layer.default)
def inference_shape(input: Any, *rest: Any) -> tuple[TensorMeta | None, ...]:
    """Like `lstm_layer_shape`, without gradients enabled."""
    return (*lstm_layer_shape(input, *rest)[:3], None)


@shape_rule(lstm_layer)
def lstm_layer_shape(input: Any, *rest: Any) -> tuple[TensorMeta, ...]:
    """Returns results [steps, batch, hidden], the last hidden and cell state, and oneDNN's workspace for the backward.
    The workspace has oneDNN's own size; here it is empty, and only the backward may read it."""
    hx, cx, hidden = rest[4], rest[5], rest[9]
    return (
        _contiguous((*input.shape[:2], hidden), input),
        _contiguous(hx.shape, input),
        _contiguous(cx.shape, input),
        TensorMeta((0,), (1,), torch.uint8, input.device),
    )


@shape_rule(aten.mkldnn_rnn_layer_backward.default)
def backward_shape(input: Any, weight1: Any, weight2: Any, _w3: Any, _w4: Any, hx: Any, cx: Any, *_: Any) -> Any:
    """Returns gradients of the input, both weights, both biases (even if there are none) and both states."""
    bias = (weight2.shape[0],)
    shapes = (input.shape, weight1.shape, weight2.shape, bias, bias, hx.shape, cx.shape)
    return tuple(_contiguous(shape, input) for shape in shapes)


def _contiguous(shape: Any, like: Any) -> TensorMeta:
    return TensorMeta(tuple(shape), contiguous_strides(tuple(shape)), like.dtype, like.device)
