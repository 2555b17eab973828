"""torch.nn.TransformerEncoder and what it is made of without gradients: eager drops padding, and gives zeros there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator.base import counters

LENGTHS = (6, 3, 1)


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    norm = options.pop("norm", None)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, norm=norm).eval()


def inputs(lengths: tuple[int, ...] = LENGTHS) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(len(lengths), 6, 8, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(6) >= torch.tensor(lengths)[:, None]


def check(model: nn.Module, x: torch.Tensor, padding: torch.Tensor, backend: str) -> torch.Tensor:
    stator.reset()
    compiled = stator.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), expected, rtol=1e-4, atol=1e-5)
    return expected


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("norm", [False, True])
def test_padding_is_zero_before_the_last_norm(norm: bool, backend: str) -> None:
    x, padding = inputs()
    expected = check(encoder(norm=nn.LayerNorm(8, bias=True) if norm else None), x, padding, backend)
    assert norm or not expected[padding].any()


@pytest.mark.parametrize("options", [{"activation": "gelu"}, {"norm_first": True}, {"dim_feedforward": 4}])
def test_layers_of_all_kinds(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True, **{"dim_feedforward": 16, **options})
    check(nn.TransformerEncoder(layer, 2).eval(), *inputs(), "eager")


def test_a_mask_that_is_not_left_aligned_drops_nothing() -> None:
    """Both masks are one graph: which is which is known only when it runs."""
    model = encoder()
    compiled = stator.compile(model, backend="eager", fullgraph=True)
    x, padding = inputs()
    gaps = padding.roll(1, 1)
    with torch.no_grad():
        for mask in (padding, gaps):
            counters.clear()
            expected = model(x, src_key_padding_mask=mask)
            torch.testing.assert_close(compiled(x, src_key_padding_mask=mask), expected, rtol=1e-4, atol=1e-5)
            assert expected[mask].any() == (mask is gaps)
    assert not counters.counts["graphs"]


def test_numbers_in_the_padding_reach_nothing() -> None:
    x, padding = inputs()
    x = x.masked_fill(padding[:, :, None], math.nan)
    assert check(encoder(), x, padding, "eager").isfinite().all()


def test_a_sequence_of_padding_alone() -> None:
    check(encoder(), *inputs((6, 0, 2)), "eager")


def test_a_mask_of_numbers() -> None:
    x, padding = inputs()
    check(encoder(), x, torch.zeros(padding.shape).masked_fill(padding, -math.inf), "eager")


@pytest.mark.parametrize("case", ["gradients", "training", "not nested"])
def test_where_eager_drops_no_padding(case: str) -> None:
    model = encoder(dropout=0.0)
    if case == "not nested":
        model.use_nested_tensor = False
    model.train(case == "training")
    x, padding = inputs()
    compiled = stator.compile(model, backend="eager", fullgraph=True)
    with torch.set_grad_enabled(case != "not nested"):
        expected = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), expected, rtol=1e-4, atol=1e-5)
    assert expected[padding].any()


def test_a_layer_with_a_hook_sees_the_nested_tensor() -> None:
    model = encoder()
    seen: list[bool] = []
    model.layers[0].register_forward_hook(lambda module, args, output: seen.append(output.is_nested))
    x, padding = inputs()
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        actual = stator.compile(model, backend="eager")(x, src_key_padding_mask=padding)
    torch.testing.assert_close(actual, expected)
    assert seen == [True, True]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_attention_gives_weights_or_none(needs: tuple[bool, bool], backend: str) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padding = inputs()

    def run(x: torch.Tensor) -> Any:
        out, weights = attention(
            x, x, x, key_padding_mask=padding, need_weights=needs[0], average_attn_weights=needs[1]
        )
        return out if weights is None else (out, weights * 2)

    with torch.no_grad():
        expected = run(x)
        torch.testing.assert_close(stator.compile(run, backend=backend, fullgraph=True)(x), expected)
