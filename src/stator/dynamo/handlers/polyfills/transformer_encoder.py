"""torch.nn.TransformerEncoder on padded sequences without gradients. Eager drops the padding, computes on a nested
tensor and fills up with zeros; under compilation torch's code does not, and leaves other numbers at the padded places.

Here the padding stays, and becomes zero wherever eager drops it, in one graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stator.dynamo.interpreter.calling import calls, polyfill
from stator.dynamo.values.base import CaptureContext, Value, unsupported

_DEVICES = ("cpu", "cuda", "xpu")


@polyfill(nn.TransformerEncoder.forward)
def encode(
    self: nn.TransformerEncoder,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """TransformerEncoder.forward, src (batch, sequence, features), src_key_padding_mask (batch, sequence)."""
    if mask is not None or src_key_padding_mask is None or is_causal or not _drops_padding(self, src):
        return as_it_is(self, src, mask, src_key_padding_mask, is_causal)
    if not all(_is_plain(layer) for layer in self.layers):
        return with_nested_tensors(self)
    padding = nn.functional._canonical_mask(
        mask=src_key_padding_mask,
        mask_name="src_key_padding_mask",
        other_type=None,
        other_name="mask",
        target_type=src.dtype,
    )
    kept = padding.logical_not()  # type: ignore[union-attr]
    gaps = (kept[:, 1:] & ~kept[:, :-1]).any()  # eager drops nothing if the kept part has a gap
    dropped = ~(kept | gaps).unsqueeze(-1)
    output = src.masked_fill(dropped, 0)  # NaNs there would reach the other places
    for layer in self.layers:
        output = layer(output, src_key_padding_mask=padding)
    output = output.masked_fill(dropped, 0)
    return output if self.norm is None else self.norm(output)


def _drops_padding(self: nn.TransformerEncoder, src: torch.Tensor) -> bool:
    """Whether eager computes on a nested tensor if the mask is left-aligned. (Without `mask_check`, torch's code does
    so under compilation, too.)"""
    first = self.layers[0]
    if not torch.backends.mha.get_fastpath_enabled() or not getattr(self, "use_nested_tensor", False):
        return False
    if not getattr(self, "mask_check", True) or first.training or src.dim() != 3 or src.is_nested:
        return False
    if torch.is_autocast_enabled() or src.device.type not in _DEVICES:
        return False
    return not torch.is_grad_enabled() or not any(one.requires_grad for one in (src, *_weights(first)))


def _weights(layer: Any) -> list[torch.Tensor]:
    attention = layer.self_attn
    modules = (attention.out_proj, layer.norm1, layer.norm2, layer.linear1, layer.linear2)
    return [
        attention.in_proj_weight,
        attention.in_proj_bias,
        *[one.weight for one in modules],
        *[one.bias for one in modules],
    ]


def _is_plain(layer: Any) -> bool:
    """Whether no code of the program sees the layer's nested tensor."""
    hooked = any(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in layer.modules())
    return type(layer) is nn.TransformerEncoderLayer and not layer.training and not hooked


def as_it_is(*arguments: Any) -> Any:
    """TransformerEncoder.forward where no padding is dropped."""
    return nn.TransformerEncoder.forward(*arguments)


def with_nested_tensors(encoder: nn.TransformerEncoder) -> Any:
    """Capture breaks at a call of this function."""
    raise NotImplementedError(encoder)


@calls(as_it_is)
def _as_it_is(context: CaptureContext, *arguments: Value) -> Value:
    return context.inline(context.known(nn.TransformerEncoder.forward), list(arguments), {})  # type: ignore[arg-type]


@calls(with_nested_tensors)
def _with_nested_tensors(context: CaptureContext, encoder: Value) -> Value:
    raise unsupported(
        "tensor-layout",
        "nn.TransformerEncoder makes a nested tensor of its padded input, for layers that are no plain "
        "nn.TransformerEncoderLayer or have hooks",
        "make the encoder with enable_nested_tensor=False",
    )
