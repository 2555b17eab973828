"""Attention's library calls take queries as they lie, and what they return lies as it was promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from lowering_oracle import assert_lowers, library_calls, loop_nodes

from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower, lower
from stator.pipeline import compile_graph
from stator.runtime import attention_masks

pytestmark = pytest.mark.filterwarnings("error:stator")  # a broken promise is repaired by a copy, with a warning

aten = torch.ops.aten
forward = aten._scaled_dot_product_flash_attention_for_cpu
backward = aten._scaled_dot_product_flash_attention_for_cpu_backward

BATCH, HEADS, LENGTH, CHANNELS = SHAPE = (2, 3, 8, 16)
# outermost dimension first
CONTIGUOUS, HEADS_INSIDE, LENGTH_OUTSIDE, CHANNELS_OUTSIDE = (0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (3, 0, 1, 2)
LAYOUTS = [CONTIGUOUS, HEADS_INSIDE, LENGTH_OUTSIDE, CHANNELS_OUTSIDE]


def laid_out(order: Sequence[int]) -> torch.Tensor:
    inverse = sorted(range(4), key=order.__getitem__)
    return torch.randn([SHAPE[dim] for dim in order]).permute(inverse)


def compare(function: Callable, *inputs: torch.Tensor, expected: Sequence[torch.Tensor] | None = None) -> None:
    traced = trace(function, inputs, keep=can_lower)
    compiled = compile_graph(traced.graph, list(inputs), options=Options(verify=True))
    if expected is None:
        expected = function(*inputs)
    for _ in range(2):  # promises are checked in another way from the second call on
        actual = compiled(*inputs)
        torch.testing.assert_close(tuple(actual), tuple(expected), rtol=1e-5, atol=1e-5)
        assert [part.stride() for part in actual] == [part.stride() for part in expected]


def attend(x: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A block that copies its query into another layout, as Whisper does."""
    query = (x * 0.5).view(BATCH, LENGTH, HEADS, CHANNELS).transpose(1, 2).contiguous()
    attended = forward(query, key, value)[0]
    return (attended.transpose(1, 2).reshape(BATCH * LENGTH, HEADS * CHANNELS) @ weight,)


def test_copied_query_is_not_copied_nor_is_the_result() -> None:
    torch.manual_seed(0)
    x, key, value = torch.randn(BATCH, LENGTH, HEADS * CHANNELS), laid_out(HEADS_INSIDE), laid_out(CONTIGUOUS)
    weight = torch.randn(HEADS * CHANNELS, 5)
    lowered = assert_lowers(attend, x, key, value, weight, library=2)
    assert len(loop_nodes(lowered)) == 1  # the multiplication by 0.5
    call, _ = library_calls(lowered)
    within = HEADS * CHANNELS
    assert lowered.buffers[call.outputs[0]].layout.stride == (LENGTH * within, CHANNELS, within, 1)
    compare(attend, x, key, value, weight)


def test_returned_result_lies_as_in_eager() -> None:
    torch.manual_seed(0)

    def function(x, key, value):
        return forward((x * 0.5).transpose(1, 2).contiguous(), key, value)

    x = torch.randn(BATCH, LENGTH, HEADS, CHANNELS)
    compare(function, x, laid_out(CONTIGUOUS), laid_out(CONTIGUOUS))


@pytest.mark.parametrize("query", LAYOUTS)
@pytest.mark.parametrize("others", LAYOUTS)
def test_forward_in_every_layout(query: Sequence[int], others: Sequence[int]) -> None:
    torch.manual_seed(0)
    given = laid_out(query), laid_out(others), laid_out(others), torch.randn(BATCH, 1, LENGTH, LENGTH)
    # eager reads wrong memory where channels are not innermost: it is asked on copies
    attended, statistics = forward(*[part.contiguous() for part in given[:3]], attn_mask=given[3])
    expected = torch.empty_like(given[0]).copy_(attended), statistics
    compare(lambda q, k, v, m: forward(q, k, v, attn_mask=m), *given, expected=expected)


@pytest.mark.parametrize("gradient", LAYOUTS)
@pytest.mark.parametrize("query", [CONTIGUOUS, HEADS_INSIDE])
def test_backward_in_every_layout(gradient: Sequence[int], query: Sequence[int]) -> None:
    torch.manual_seed(0)
    query, key, value = laid_out(query), laid_out(CONTIGUOUS), laid_out(HEADS_INSIDE)
    attended, statistics = forward(query, key, value, 0.0, True)
    inputs = (laid_out(gradient), query, key, value, attended, statistics)
    traced = trace(lambda *parts: backward(*parts, 0.0, True), inputs, keep=can_lower)
    actual = compile_graph(traced.graph, list(inputs), options=Options(verify=True))(*inputs)
    expected = backward(inputs[0].contiguous(), *inputs[1:], 0.0, True)
    torch.testing.assert_close(tuple(actual), tuple(expected), rtol=1e-5, atol=1e-5)
    assert [part.stride() for part in actual] == [part.stride() for part in expected]


def test_saved_values_in_the_layout_of_the_forward_are_not_copied() -> None:
    """What the forward kept in a layout of its own reaches the call of the backward as it is."""
    torch.manual_seed(0)
    key, value, gradient = laid_out(CONTIGUOUS), laid_out(CONTIGUOUS), laid_out(CONTIGUOUS)
    query, other = laid_out(CONTIGUOUS), laid_out(HEADS_INSIDE)
    inputs = (gradient, query, key, value, *forward(query, key, value))
    traced = trace(lambda *parts: backward(*parts, 0.0, False), inputs, keep=can_lower)
    moved = (gradient, other, key, value, *forward(other, key, value))
    traced.graph.meta["given_strides"] = [tensor.stride() for tensor in moved]
    assert not loop_nodes(lower(traced.graph))
    compiled = compile_graph(traced.graph, list(moved), options=Options(verify=True))
    torch.testing.assert_close(tuple(compiled(*moved)), backward(*moved, 0.0, False), rtol=0, atol=0)


LONG = 512


@pytest.mark.parametrize("hidden", ["nothing", "a key of the first query", "a key of the last query", "nan"])
@pytest.mark.parametrize("expanded", [False, True])
def test_large_mask_that_may_hide_nothing(hidden: str, expanded: bool) -> None:
    """Each call looks at the mask: the library adds one of zeros for nothing."""
    torch.manual_seed(0)
    query, key, value, gradient = (torch.randn(1, 2, LONG, 16) for _ in range(4))
    mask = torch.zeros(1, 1, 1 if expanded else LONG, LONG)
    if hidden != "nothing":
        mask[0, 0, -1 if "last" in hidden else 0, 7] = torch.nan if hidden == "nan" else -torch.inf

    def function(query, key, value, mask, gradient):
        mask = (mask * 1.0).expand(1, 1, LONG, LONG)
        attended, statistics = forward(query, key, value, attn_mask=mask)
        gradients = backward(gradient, query, key, value, attended, statistics, 0.0, False, attn_mask=mask)
        return attended, statistics, *gradients

    inputs = query, key, value, mask, gradient
    traced = trace(function, inputs, keep=can_lower)
    calls = [str(call.target) for call in library_calls(lower(traced.graph))]
    assert calls == ["stator.masked_attention.default", "stator.masked_attention_backward.default"]
    compiled = compile_graph(traced.graph, list(inputs), options=Options(verify=True))
    expected = function(*inputs)
    for _ in range(2):
        torch.testing.assert_close(tuple(compiled(*inputs)), expected, rtol=0, atol=0, equal_nan=True)


def test_large_mask_of_zeros_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several calls under one mask share the answer."""
    taken = []
    usual = attention_masks._attention
    monkeypatch.setattr(attention_masks, "_attention", lambda *a, **k: taken.append(k["attn_mask"]) or usual(*a, **k))
    query, zeros, causal = torch.randn(1, 1, LONG, 16), torch.zeros(LONG, LONG), torch.ones(LONG, LONG).triu(1) * -1e9

    def function(query, mask):
        mask = mask + 0.0
        once = forward(query, query, query, attn_mask=mask)[0]
        return (forward(once, query, query, attn_mask=mask)[0],)

    traced = trace(function, (query, zeros), keep=can_lower)
    assert len(loop_nodes(lower(traced.graph))) == 2  # the addition, and whether there is anything but zeros
    compiled = compile_graph(traced.graph, [query, zeros], options=Options(verify=True))
    for mask in (zeros, causal):
        torch.testing.assert_close(tuple(compiled(query, mask)), function(query, mask), rtol=0, atol=0)
    assert [mask is None for mask in taken] == [True, True, False, False]
