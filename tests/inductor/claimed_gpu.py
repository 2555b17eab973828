"""Schedules of programs whose tensors claim to be on a GPU. Needs none: sizes decide, and nothing runs.

Programs are traced on the CPU, where ATen has no attention for GPUs: `attention_of_a_gpu` stands in for its choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from stator import pipeline
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import Extern, Lowered
from stator.inductor.codegen import triton
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.schedule import schedule
from stator.inductor.schedule.attention import fuse_attention
from stator.inductor.schedule.groups import AttentionGroup, Group, Schedule
from stator.inductor.schedule.softmax_pattern import softmax_of
from stator.inductor.schedule.verifier import verify_schedule
from stator.prims.record import TensorMeta

GPU = torch.device("cuda", 0)
aten = torch.ops.aten
_on_cpu = F.scaled_dot_product_attention


def attention_of_a_gpu(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """What ATen makes of the call on an H100: cuDNN's kernel for half floats, the memory-efficient one for float32, and
    products with a softmax for others."""
    halves, rest = query.dtype in (torch.float16, torch.bfloat16), (dropout_p, is_causal)
    if query.dtype not in (torch.float16, torch.bfloat16, torch.float32) or query.shape[-1] % 4:
        return _on_cpu(query, key, value, attn_mask, *rest, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        key, value = [one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value)]
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    sides = query, key, value, attn_mask, torch.is_grad_enabled(), *rest
    if halves:
        return aten._scaled_dot_product_cudnn_attention(*sides, False, scale=scale)[0]
    return aten._scaled_dot_product_efficient_attention(*sides, scale=scale)[0]


def scheduled_on_gpu(function: Callable[..., Any], fakes: Sequence[Any]) -> tuple[Schedule, Lowered]:
    """The steps of a program without gradients. fakes: fake tensors on the CPU."""
    lowered = lowered_on_gpu(function, fakes)
    choose = partial(triton.choose_attention, lowered=lowered)
    found, lowered = fuse_attention(schedule(lowered), lowered, choose)
    verify_schedule(found, lowered)
    return found, lowered


def lowered_on_gpu(function: Callable[..., Any], fakes: Sequence[Any]) -> Lowered:
    with torch.no_grad():
        gm = trace(function, fakes, keep=can_lower).graph
    _move(gm)
    pipeline._rewrite(gm, exact_random=False)
    graph, sizes = with_expressions(gm)
    return lower(run_passes(graph, False), False, sizes)


def attention_kernels(found: Schedule) -> list[str]:
    """What computes the attention of a program: a launch, one with loops that join, ATen or separate kernels."""
    kernels: list[str] = []
    for step in found.steps:
        if isinstance(step, AttentionGroup):
            assert step.attention.tile is not None
            kernels.append("launch" if step.attention.tile.parts == 1 else "launch and join")
        elif isinstance(step, Extern) and "attention" in step.name:
            kernels.append(step.name)
        elif isinstance(step, Group) and softmax_of(step) is not None:
            kernels.append("separate kernels")
    return kernels


def _move(gm: fx.GraphModule) -> None:
    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _moved(node.meta["val"])
        if node.kwargs.get("device") is not None:
            node.update_kwarg("device", GPU)


def _moved(value: Any) -> Any:
    if isinstance(value, TensorMeta):
        return replace(value, device=GPU)
    return type(value)(map(_moved, value)) if type(value) in (tuple, list) else value
