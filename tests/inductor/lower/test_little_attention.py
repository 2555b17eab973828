"""Attention whose scores stay in cache is computed by products and loops, with the results of ATen's kernel."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.differential import FUSED, NARROW, assert_same
from torch.nn import functional as F

import stator
from stator.aot import compile_inference
from stator.inductor.buffers import Extern
from stator.inductor.lower import can_lower, lower
from stator.inductor.lower.operators import library
from stator.pipeline import compile_graph

HEADS, ROWS, KEYS, WIDTH = 4, 12, 20, 16
aten = torch.ops.aten
KERNEL = aten._scaled_dot_product_flash_attention_for_cpu.default


def operands(batch: int = 1, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Heads side by side, as layers make them."""
    torch.manual_seed(0)
    return [torch.randn(batch, length, HEADS, WIDTH, dtype=dtype).transpose(1, 2) for length in (rows, KEYS, KEYS)]


def hiding(*shape: int) -> torch.Tensor:
    """A mask that hides some keys, and all keys of a row."""
    mask = torch.zeros(*shape, ROWS, KEYS)
    mask[..., 3] = -math.inf
    mask[..., 5, :] = -math.inf
    mask[..., 7, 4:] = -1e9
    mask[..., 8, 4:] = -100.0
    return mask


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.7},
    "rows and keys": {"attn_mask": hiding()},
    "heads": {"attn_mask": hiding(1, HEADS) + torch.randn(HEADS, ROWS, KEYS)},
    "keys": {"attn_mask": torch.where(torch.arange(KEYS) > 5, -math.inf, 0.0).expand(1, 1, ROWS, KEYS)},
    "booleans": {"attn_mask": hiding() == 0},
    "all keys": {"attn_mask": torch.full((ROWS, KEYS), -math.inf)},
}


def called(function: Any, inputs: list[torch.Tensor]) -> list[Any]:
    """The library functions that a program calls."""
    found: list[Any] = []

    def compile_functional(graph: torch.fx.GraphModule, given: Any) -> Any:
        found.extend(node.target for node in lower(graph).nodes if isinstance(node, Extern))
        return compile_graph(graph, given, options=stator.pipeline.Options(verify=True))

    module = torch.fx.symbolic_trace(lambda q, k, v: (function(q, k, v),))
    with torch.no_grad():
        compile_inference(module, inputs, compile_functional, keep=can_lower)(*inputs)
    return found


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("rows", [ROWS, 1])
def test_equal_eager(mask: dict[str, Any], rows: int) -> None:
    given = operands(rows=rows)
    mask = {
        name: one[..., :rows, :] if isinstance(one, torch.Tensor) else one  # the first rows, if there are several
        for name, one in mask.items()
    }

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **mask)

    with torch.no_grad():
        assert_same(stator.compile(attend, fullgraph=True)(*given), attend(*given), FUSED)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("operand", range(3), ids=["query", "key", "value"])
def test_special_numbers(special: float, operand: int) -> None:
    given = operands()
    given[operand][0, 1, 2, 3] = special
    with torch.no_grad():
        compiled = stator.compile(F.scaled_dot_product_attention)(*given)
    expected = torch.softmax(given[0] @ given[1].transpose(-1, -2) / 4, -1) @ given[2]
    assert_same(compiled, expected.transpose(1, 2).contiguous().transpose(1, 2), FUSED)


@pytest.mark.fixed_sizes  # symbols leave attention to the kernel
@pytest.mark.parametrize(
    ("given", "by_kernel"),
    [(operands(), False), (operands(2), True), (operands(rows=7000), True)],
    ids=["one batch", "two batches", "many scores"],
)
def test_choice(given: list[torch.Tensor], by_kernel: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    assert called(attend, given) == ([KERNEL] if by_kernel else [aten.bmm.out, aten.bmm.out])


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("quicker", [True, False])
def test_half_floats_follow_the_times(
    quicker: bool, batch: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times(*sizes: Any) -> bool:
        asked.append(sizes)
        return quicker

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    asked: list[Any] = []
    monkeypatch.setattr(library, "are_products_quicker", times)
    given = operands(batch, dtype=dtype)
    assert called(attend, given) == ([aten.bmm.out, aten.bmm.out] if quicker else [KERNEL])
    assert set(asked) == {(batch * HEADS, ROWS, KEYS, WIDTH, dtype)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("batch", [1, 2])
def test_products_of_half_floats_are_as_near_to_the_truth_as_the_kernel(
    batch: int, mask: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "are_products_quicker", lambda *sizes: True)
    given = operands(batch, dtype=dtype)
    floats = {name: one for name, one in mask.items() if getattr(one, "dtype", None) is torch.float32}
    narrow = mask | {name: one.to(dtype) for name, one in floats.items()}
    wide = mask | {name: one.to(dtype).double() for name, one in floats.items()}
    with torch.no_grad():
        found = stator.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **narrow))(*given)
        kernel = F.scaled_dot_product_attention(*given, **narrow)
        truth = F.scaled_dot_product_attention(*(one.double() for one in given), **wide)
    truth = truth.nan_to_num(0.0)  # of rows of which the mask hides all keys
    assert found.stride() == kernel.stride()
    assert_same(found, kernel, NARROW)
    assert (found - truth).abs().mean() <= (kernel - truth).abs().mean()


def test_heads_that_share_keys() -> None:
    q, k, v = operands()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)

    with torch.no_grad():
        assert_same(stator.compile(attend)(q, k, v), attend(q, k, v), FUSED)


def test_gradients() -> None:
    given = [one.requires_grad_() for one in operands()]
    compiled = stator.compile(F.scaled_dot_product_attention)
    expected = torch.autograd.grad(F.scaled_dot_product_attention(*given).square().sum(), given)
    assert_same(list(torch.autograd.grad(compiled(*given).square().sum(), given)), list(expected), FUSED)
