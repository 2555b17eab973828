"""The statistics of a batch normalisation as ATen computes them, bit by bit, by a kernel written by hand.

What `csrc/vec_statistics.h` says, to be called from a compiled program. Nothing here normalises.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import build, launch

_SYMBOL = "batch_statistics_kernel"
_POINTERS = 13  # see vec_statistics.h
_RESULTS = 6


@dataclass(frozen=True, slots=True)
class _Text:
    symbol: str = _SYMBOL
    source: str = (
        '#include "vec_statistics.h"\n'
        f'extern "C" void {_SYMBOL}(void *const *pointers) {{ batch_statistics(pointers); }}\n'
    )


def is_as_aten() -> bool:
    """Does ATen multiply and add in one rounding, as the kernel does? It has other code for processors without."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


class BatchStatistics:
    """`f(x, running_mean, running_var, weight, bias)`, contiguous float32 tensors, of which x is a batch of images with
    `size` numbers for each channel: mean, inverse standard deviation, new running mean and variance; and a factor and
    an offset, with which fma(x, factor, offset) is the normalised x. All of them one number for each channel.

    Raises StatorError when the kernel cannot be built.
    """

    __slots__ = ("kernel", "numbers", "sizes", "template")
    fresh_results = True  # they share no memory with what is given: a plan may free it

    def __init__(self, batch: int, channels: int, size: int, momentum: float, eps: float) -> None:
        address = build.build_kernels([_Text()])[_SYMBOL]
        self.kernel = launch.make_kernel(address, _POINTERS, _SYMBOL)
        self.sizes = torch.tensor([batch, channels, size], device="cpu")
        self.numbers = torch.tensor([momentum, eps], dtype=torch.float64, device="cpu")
        self.template = torch.empty(channels, dtype=torch.float32, device="cpu")

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        results = [torch.empty_like(self.template) for _ in range(_RESULTS)]
        self.kernel(*tensors, self.sizes, self.numbers, *results)
        return results
