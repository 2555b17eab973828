"""The gradient that cuDNN's attention gets has the layout of the attention's output. Needs no GPU: tensors only claim
to be there."""

from __future__ import annotations

import pytest
import torch

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
SHAPE = (2, 4, 64, 32)
CONTIGUOUS, BY_ROWS = contiguous_strides(SHAPE), (8192, 32, 128, 1)


def attention_and_gradient(query, gradient):
    out, statistics, *rest = aten._scaled_dot_product_cudnn_attention.default(query, query, query, None, True)
    return aten._scaled_dot_product_cudnn_attention_backward.default(
        gradient, query, query, query, out, statistics, rest[4], rest[5], None, *rest[:4], 0.0, False
    )


@pytest.mark.parametrize("query", [CONTIGUOUS, BY_ROWS], ids=["contiguous query", "query by rows"])
@pytest.mark.parametrize("gradient", [CONTIGUOUS, BY_ROWS], ids=["contiguous gradient", "gradient by rows"])
def test_the_gradient_is_laid_out_as_the_output(query, gradient):
    mode = FakeMode()
    given = [mode.make(TensorMeta(SHAPE, strides, torch.bfloat16, GPU, 0)) for strides in (query, gradient)]
    with torch.no_grad():
        graph = trace(attention_and_gradient, given, keep=lambda _: True).graph.graph
    (backward,) = graph.find_nodes(op="call_function", target=aten._scaled_dot_product_cudnn_attention_backward.default)
    assert backward.args[0].meta["val"].stride == backward.args[4].meta["val"].stride == query
    assert (backward.args[0].op == "placeholder") == (query == gradient)
