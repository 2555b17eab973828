"""Attention whose heads share keys and values reads these once, without a copy for each head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import FUSED, NARROW, Counts, assert_same
from torch.nn import functional as F

import stator
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower
from stator.inductor.passes import drop_no_ops, merge_common_subexpressions
from stator.inductor.passes.shared_heads import share_heads

aten = torch.ops.aten


def repeated(x: torch.Tensor, repeats: int) -> torch.Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, repeats, length, width).reshape(batch, heads * repeats, length, width)


def under_a_mask(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    attended = F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3), attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


def without_a_mask(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3), scale=0.3)


def repeated_by_the_kernel(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def interleaved(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    k, v = (one.repeat_interleave(3, 1) for one in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.float())


def causal(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3), is_causal=True)


def of_other_heads(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    """The heads of keys follow each other in turn, which is no grouping."""
    return F.scaled_dot_product_attention(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1), attn_mask=mask)


def with_one_value(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v[:, :1], 6), attn_mask=mask)


def inputs(batch: int, rows: int, keys: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    q = torch.randn(batch, rows, 6, 16, dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(batch, 2, keys, 16, dtype=dtype) for _ in range(2))
    mask = torch.rand(batch, 1, rows, keys) > 0.3
    mask[..., 0] = True
    return q, k, v, mask


def under_a_mask_of_heads(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    masks = mask & (torch.arange(6) % 2 == 0).view(1, 6, 1, 1)
    masks = masks | (torch.arange(mask.shape[3]) == 0)
    return F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3), attn_mask=masks)


SHARED = (under_a_mask, without_a_mask, repeated_by_the_kernel, interleaved, under_a_mask_of_heads)
OTHERS = (causal, of_other_heads, with_one_value)
NAMES = {"ids": lambda one: getattr(one, "__name__", None)}


@pytest.mark.parametrize("rows", (1, 5))
@pytest.mark.parametrize("program", (*SHARED, *OTHERS), **NAMES)
def test_heads_that_share_keys_become_rows(program: Any, rows: int) -> None:
    given = inputs(2, rows, 9)
    gm = merge_common_subexpressions(drop_no_ops(trace(program, given, keep=can_lower).graph))
    gm = share_heads(gm)
    gm.graph.lint()
    gm.graph.eliminate_dead_code()
    gm.recompile()
    (attention,) = gm.graph.find_nodes(
        op="call_function", target=aten._scaled_dot_product_flash_attention_for_cpu.default
    )
    queries, keys = (one.meta["val"].shape[1] for one in attention.args[:2])
    copies_of_masks = rows > 1 and program not in (without_a_mask, under_a_mask_of_heads)
    if program in SHARED and not copies_of_masks:
        assert (queries, keys) == (2, 2)
    else:
        assert queries == 6
    (found,) = gm(*given)
    wanted = program(*given)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


@pytest.mark.parametrize("program", (*SHARED, *OTHERS), **NAMES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=("float32", "bfloat16"))
def test_one_program_for_all_lengths(program: Any, dtype: torch.dtype) -> None:
    if program is interleaved and dtype is torch.bfloat16:
        pytest.skip("eager refuses a mask of float32 there")
    compiled = stator.compile(program)
    counts = Counts()
    for batch, rows, keys in ((2, 3, 9), (3, 2, 11), (5, 7, 40), (4, 3, 130)):
        given = inputs(batch, rows, keys, dtype)
        assert_same(compiled(*given), program(*given), NARROW if dtype is torch.bfloat16 else FUSED)
    assert counts.compilations <= 2
    for batch, rows, keys in ((2, 1, 9), (7, 1, 33), (1, 1, 1)):
        given = inputs(batch, rows, keys, dtype)
        assert_same(compiled(*given), program(*given), NARROW if dtype is torch.bfloat16 else FUSED)


def test_exact_rounding_keeps_every_bit() -> None:
    compiled = stator.compile(under_a_mask, options={"exact_rounding": True})
    given = inputs(4, 1, 70)
    assert torch.equal(compiled(*given), under_a_mask(*given))


def test_gradients_read_repeated_keys() -> None:
    given = [one.requires_grad_() if one.is_floating_point() else one for one in inputs(2, 3, 9)]
    compiled = stator.compile(under_a_mask)
    found, wanted = (
        torch.autograd.grad(function(*given).square().sum(), given[:3]) for function in (compiled, under_a_mask)
    )
    torch.testing.assert_close(found, wanted)
