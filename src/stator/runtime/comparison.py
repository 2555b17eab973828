"""Whether a kernel has the bits of an operator under the settings of now: numbers to compare them on.

Libraries pick their implementations, and with them the order of additions, by processor, sizes, threads and version, so
that nobody can say in general. On random numbers of the very shape another order has other bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Tensors = Sequence[torch.Tensor]
Kernel = TypeVar("Kernel", bound=Callable[..., None])


def settings() -> tuple[Any, ...]:
    """What else the implementation of an operator may depend on."""
    return (
        torch.get_num_threads(),
        torch._C._get_mkldnn_enabled(),
        torch._C._get_mkldnn_deterministic(),
        torch._C._get_nnpack_enabled(),
        torch._C._get_fp32_precision_getter("mkldnn", "conv"),
        torch._C._get_fp32_precision_getter("mkldnn", "matmul"),
    )


_ENOUGH = 512

_RANDOM, SPECIAL, TINY = _KINDS = ("random", "special", "tiny")  # of numbers to compare on


def _rounds(count: int) -> int:
    """How often to compare so many results: another order of additions gives other bits in one of some results only."""
    return -(-_ENOUGH // max(count, 1))


_DISTINCT = 65537  # random numbers, over and over: a prime, so that they lie differently in every image and channel


def numbers(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    count = math.prod(size)
    some = torch.randn(min(count, _DISTINCT), generator=generator, dtype=torch.float32, device="cpu")
    return some.repeat(count // len(some) + 1)[:count].view(size)


_SPECIAL = (0.0, -0.0, float("inf"), float("nan"), 1e-30, -1e-30)


def with_special(tensor: torch.Tensor, of_channel: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """In every other channel zeros of either sign, infinities, NaN or tiny numbers, of one kind each."""
    channels = tensor.shape[of_channel.index(-1)]
    kinds = torch.randint(len(_SPECIAL), (channels,), generator=generator, device="cpu")
    values = torch.tensor(_SPECIAL, dtype=torch.float32, device="cpu")[kinds]
    here = numbers(tuple(tensor.shape), generator) < (-1 if tensor.numel() < 50 * channels else -2.5)
    chosen = torch.arange(channels, device="cpu").bitwise_and(1).bool().view(of_channel)
    return torch.where(here & chosen, values.view(of_channel), tensor)


def tiny(tensor: torch.Tensor, of_channel: tuple[int, ...], channels: int = -1) -> torch.Tensor:
    """So small in the first channels, by default in all, that products of two are zeros or nearly so, of either sign:
    then it shows what a sum begins with. Such products take a processor a hundred times as long as others."""
    at = torch.arange(tensor.shape[of_channel.index(-1)], device="cpu").view(of_channel)
    return torch.where((at < channels) | (channels < 0), tensor * 1e-22, tensor)


def shifted(tensor: torch.Tensor) -> torch.Tensor:
    memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return memory[1:].view(tensor.shape).copy_(tensor)


def _same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """NaN is NaN, with any payload."""
    one, other = actual.view(torch.int32), expected.view(torch.int32)
    if not expected.is_contiguous() or torch.equal(one, other):
        return expected.is_contiguous()
    return bool(((one == other) | (actual.isnan() & expected.isnan())).all())


def that_agree(
    kernels: list[Kernel], count: int, made: Callable[[str], Tensors], operator: Callable[[Tensors], torch.Tensor]
) -> list[Kernel]:
    """Those of the kernels, `f(*given, out=...)`, whose `count` results have the operator's bits on what is `made` of
    each kind of numbers."""
    for kind in _KINDS * _rounds(count):
        given = made(kind)
        expected = operator(given)
        kernels = [one for one in kernels if _same_bits(_computed(one, given, expected), expected)]
    return kernels


def _computed(kernel: Callable[..., None], given: Tensors, like: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(like, 7.0, memory_format=torch.contiguous_format)
    kernel(*given, out=out)
    return out
