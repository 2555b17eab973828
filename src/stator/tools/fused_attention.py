"""The fused kernels that eager runs for `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` without gradients: the
modules choose them as in eager, and on CPUs their memory is that of the operators inside of ATen's C++ functions.

Never here: the values, which nothing needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

aten = torch.ops.aten
_CHOOSING: tuple[Any, ...] = (nn.MultiheadAttention.forward, nn.TransformerEncoderLayer.forward)


class _Torch:
    """torch, for code that asks whether functions of torch are watched: watching a program does not count."""

    def __init__(self) -> None:
        self.overrides = SimpleNamespace(has_torch_function=_has_own_functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _has_own_functions(tensors: Iterable[torch.Tensor]) -> bool:
    plain = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return any(type(one).__torch_function__ not in plain for one in tensors)


def choose_as_eager(modules: Iterable[nn.Module]) -> None:
    """Until their attributes are put back, let these modules run the kernels that they run when nobody watches."""
    for module in modules:
        forward: Any = type(module).forward
        if forward in _CHOOSING:
            names = {**forward.__globals__, "torch": _Torch()}
            plain = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
            plain.__kwdefaults__ = forward.__kwdefaults__
            module.__dict__["forward"] = MethodType(plain, module)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    if query.device.type != "cpu" or not (query is key is value) or query.numel() == 0:
        return NotImplemented
    batch, length, _ = query.shape
    together = aten.mm(query.view(batch * length, width), qkv_weight.t())
    parts = together.new_empty(3, batch * heads, length, width // heads)
    del together
    scores = aten.bmm(parts[0], parts[1].transpose(1, 2))  # the softmax without a mask is in place
    if mask is not None:
        truths = mask if mask.dtype is torch.bool else mask.to(torch.bool)
        scores = torch.empty_like(scores)
        del truths
    if not need_weights:
        del scores
    context = parts[0].view(batch, heads, length, -1).permute(0, 2, 1, 3).clone(memory_format=torch.contiguous_format)
    result = aten.addmm(bias, context.view(batch * length, width), weight.t()).view(batch, length, width)
    del context
    if not need_weights:
        return result, None
    scores = scores.view(batch, heads, length, length)
    return result, scores.sum(1) if average_attn_weights else scores


def _encoder_layer(
    src: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    if src.device.type != "cpu":
        return NotImplemented
    if src.numel() == 0:
        return src.clone()

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return aten.native_layer_norm(x, [width], weight, bias, eps)[0]  # type: ignore[no-any-return]

    x = norm(src, weight_1, bias_1) if norm_first else src
    x, _ = _attention(x, x, x, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
    x = x if norm_first else norm(x, weight_1, bias_1)
    attended = x
    x = norm(x, weight_2, bias_2) if norm_first else x
    hidden = aten.addmm(up_bias, x.view(-1, width), up.t())
    x = aten.addmm(down_bias, hidden, down.t()).view(src.shape)
    del hidden, attended
    return x if norm_first else norm(x, weight_2, bias_2)


# by operator, a function that allocates and frees as the kernel does; NotImplemented where the kernel is another one
ALLOCATIONS: Mapping[OpOverload, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
