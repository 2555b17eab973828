"""Attention as kernels of ours, by the rule and on each tile: as exact as eager, and NaN where eager has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.device import DEVICE, only_cuda
from torch import Tensor

import stator
from stator.inductor.codegen import triton
from stator.inductor.codegen.triton.tiled.attention_tiles import TILES, TILES_OF_FLOAT32, choose_attention
from stator.inductor.schedule.groups import AttentionGroup, AttentionTile

pytestmark = [pytest.mark.gpu, only_cuda, pytest.mark.fixed_sizes]
launches: list[AttentionGroup] = []


@pytest.fixture(autouse=True)
def count_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    launches.clear()
    stator.reset()

    def choose(group: AttentionGroup, **lowered: Any) -> Any:
        tile = choose_attention(group, **lowered)
        launches.extend([group] if tile is not None else [])
        return tile

    monkeypatch.setattr(triton, "choose_attention", choose)


def by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = q @ k.transpose(-1, -2) * 0.125
    if bias is not None:
        scores = scores + bias
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


def masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Few heads of keys, a cap, and keys that are hidden by their place."""
    k, v = [one[:, ::2].repeat_interleave(2, 1) for one in (k, v)]
    place = torch.arange(q.shape[2], device=q.device)
    scores = torch.tanh(q @ k.transpose(-1, -2) / 50) * 50
    scores = torch.where(place[:, None] >= place, scores, -math.inf)
    return torch.softmax(scores, -1) @ v


def called(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)


def causal(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


FUNCTIONS = (by_hand, masked, called, causal)


def sides(length: int, dtype: torch.dtype, width: int = 64) -> list[Tensor]:
    return [torch.randn(2, length, 4, width, device=DEVICE).to(dtype).transpose(1, 2) for _ in range(3)]


def check(function: Callable[..., Tensor], tensors: list[Any], **settings: Any) -> None:
    with torch.no_grad():
        found, eager = stator.compile(function, **settings)(*tensors), function(*tensors)
        exact = function(*[None if one is None else one.double() for one in tensors])
    assert torch.equal(found.isnan(), eager.isnan()) and found.dtype is eager.dtype and found.stride() == eager.stride()
    errors = [float((one.double() - exact).nan_to_num().norm()) for one in (found, eager)]
    # float32 is multiplied as sums of three products of halves, which lose one bit
    assert errors[0] <= (2 if found.dtype is torch.float32 else 1.1) * errors[1]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_attention_as_the_rule_chooses(mode: str, function: Any) -> None:
    for length, dtype in ((49, torch.bfloat16), (128, torch.float16), (300, torch.bfloat16), (197, torch.float32)):
        bias = torch.randn(1, 4, length, length, device=DEVICE).to(dtype)
        for one in (None, bias):
            launches.clear()
            check(function, [*sides(length, dtype), one], mode=mode)
            assert launches


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_tile(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(tile, size) for tile in TILES for size in ((49, 32, torch.bfloat16), (200, 128, torch.bfloat16))]
    cases += [(tile, (200, 64, torch.float32)) for tile in TILES_OF_FLOAT32]
    for tile, (length, width, dtype) in cases:

        def choose(group: AttentionGroup, tile: AttentionTile = tile, **_: Any) -> AttentionTile:
            return replace(tile, parts=1) if group.attention.causal else tile

        monkeypatch.setattr(triton, "choose_attention", choose)
        stator.reset()
        bias = torch.randn(2, 1, length, length, device=DEVICE).to(dtype)
        check(function, [*sides(length, dtype, width), bias], options={"verify": True})


def one_token(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """Heads that share keys, as programs write it that keep keys and values of earlier tokens."""
    k, v = [one[:, :, None].expand(-1, -1, 4, -1, -1).flatten(1, 2) for one in (k, v)]
    scores = q @ k.transpose(-1, -2) * 0.125 + hidden
    return (torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2).flatten(2)


def one_token_called(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    k, v = [one[:, :, None].expand(-1, -1, 4, -1, -1).flatten(1, 2) for one in (k, v)]
    return F.scaled_dot_product_attention(q, k, v, hidden).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("function", (one_token, one_token_called))
@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_few_rows_and_many_keys(mode: str, function: Any) -> None:
    for rows, count, dtype in ((1, 4096, torch.bfloat16), (3, 1500, torch.float16)):
        q = torch.randn(2, rows, 8, 64, device=DEVICE).to(dtype).transpose(1, 2)
        k, v = [torch.randn(2, 2, count, 64, device=DEVICE).to(dtype) for _ in range(2)]
        hidden = torch.zeros(2, 1, rows, count, device=DEVICE).to(dtype)
        hidden[..., count // 2 :] = torch.finfo(dtype).min if function is one_token else -math.inf
        launches.clear()
        check(function, [q, k, v, hidden], mode=mode)
        (launch,) = launches
        assert (launch.attention.batch, launch.attention.rows) == (4, 4 * rows)


@pytest.mark.parametrize("allowed", (False, True))
def test_float32_is_as_exact_whether_tf32_is_allowed_or_not(allowed: bool, request: pytest.FixtureRequest) -> None:
    # a monkeypatch would end by deleting what is no attribute of the instance
    matmul = torch.backends.cuda.matmul
    request.addfinalizer(partial(setattr, matmul, "allow_tf32", matmul.allow_tf32))
    matmul.allow_tf32 = allowed
    for length in (49, 300):
        tensors = [*sides(length, torch.float32), torch.randn(1, 4, length, length, device=DEVICE)]
        with torch.no_grad():
            found = stator.compile(by_hand)(*tensors)
        exact = by_hand(*[one.double() for one in tensors])
        assert launches
        assert float((found - exact).norm() / exact.norm()) < 1e-6
        stator.reset()


@pytest.mark.parametrize("side", range(4))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_infinities_and_nan(dtype: torch.dtype, side: int) -> None:
    for value in (math.inf, -math.inf, math.nan):
        tensors = [*sides(128, dtype), torch.zeros(2, 1, 1, 128, device=DEVICE).to(dtype)]
        tensors[side][..., -1, 3] = value
        if side == 3:
            tensors[side][0] = -math.inf  # no key at all
        launches.clear()
        check(by_hand, tensors)
        assert launches


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_rows_hidden_by_the_smallest_number(dtype: torch.dtype) -> None:
    bias = torch.zeros(2, 1, 128, 128, device=DEVICE).to(dtype)
    bias[:, :, 5:20], bias[..., 100:] = torch.finfo(dtype).min, torch.finfo(dtype).min
    check(by_hand, [*sides(128, dtype), bias])
    assert launches


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def slope(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        return torch.where(row + 3 >= key, score - (row - key) * 0.03, -math.inf)

    check(lambda q, k, v: flex_attention(q, k, v, score_mod=slope), sides(128, torch.bfloat16))
    assert launches


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, by_hand: bool) -> Tensor:
    """By hand, the library does not see it."""
    b = bias if bias is None else bias.expand(q.shape[0], -1, -1, -1)
    if not by_hand:
        shared = q.shape[1] != k.shape[1]
        return (
            F.scaled_dot_product_attention(q, k, v, b, is_causal=causal, enable_gqa=shared).transpose(1, 2).flatten(2)
        )
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores if b is None else scores + b
    return (torch.softmax(scores.float(), -1).to(q.dtype) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "kind", ("bias", "mask", "none", "causal", "shared", "bias apart", "bias by hand", "mask by hand", "by hand")
)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_gradients(dtype: torch.dtype, kind: str) -> None:
    """Of heads whose rows fit into a tile, also with a bias that has a gradient, and with heads that share keys."""
    for length, width in ((49, 32), (128, 64)):
        q, k, v = sides(length, dtype, width)
        if kind == "shared":
            k, v = [one[:, ::2].contiguous() for one in (k, v)]
        bias = torch.randn(1, 4, length, length, device=DEVICE).to(dtype)
        if "apart" in kind:  # ATen multiplies as float32 there
            bias = bias.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        if "mask" in kind:
            bias[..., 7:20] = -math.inf
        tensors = [one.requires_grad_() for one in (q, k, v)]
        given = bias.requires_grad_("bias" in kind) if "bias" in kind or "mask" in kind else None
        wanted = [*tensors, *([bias] if "bias" in kind else [])]
        weight = torch.randn(2, length, 4 * width, device=DEVICE).to(dtype)

        def run(call: Any, cast: torch.dtype | None = None) -> list[Tensor]:
            given_to = [one if one is None or cast is None else one.to(cast) for one in (*tensors, given)]
            out = call(*[one if one is None else one * 1.0 for one in given_to], kind == "causal", "hand" in kind)
            return [out, *torch.autograd.grad((out * 2.0).cos(), wanted, weight.to(out.dtype))]

        launches.clear()
        stator.reset()
        compiled = stator.compile(lambda *args: attend(*args) * 1.5)
        eager = lambda *args: attend(*args) * 1.5  # noqa: E731
        results = run(compiled), run(eager), run(eager, torch.double)
        assert any(one.attention.tangent is not None for one in launches)
        for mine, other, exact in zip(*results, strict=True):
            assert mine.dtype is other.dtype and mine.shape == other.shape
            errors = [float((one.double() - exact).norm()) for one in (mine, other)]
            assert errors[0] <= (2 if "apart" in kind else 1.1) * errors[1]
