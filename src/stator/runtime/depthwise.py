"""Convolutions of single channels (depthwise), or in groups of eight, by kernels that are written by hand and give
oneDNN's bits in eager's layout.

What `csrc/vec_depthwise.h` and `vec_grouped.h` say, to be called from a compiled program, where that
is what the operator computes: oneDNN picks its implementations by processor, sizes, threads and version, so that nobody
can say in general. `agreeing` compares both on random numbers of the very shape, on which the order of additions
depends: another has other bits.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from stator.base import counters
from stator.base.errors import StatorError

from . import build, launch
from .comparison import SPECIAL, TINY, numbers, settings, shifted, that_agree, tiny, with_special

_LARGEST_KERNEL = 7  # rows and columns: kernels are compiled for each
_LARGEST_STRIDE = 2
_WIDTHS = (1, 8)  # of groups: lanes are the channels of a group


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a batch of images and of what one kernel for each of their channels does with it."""

    batch: int
    channels: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    width: int = 1  # channels in a group
    results: int = 0  # channels of the result; 0 where they are as many

    @property
    def produced(self) -> int:
        return self.results or self.channels

    @property
    def weight(self) -> tuple[int, ...]:
        return self.produced, self.width, *self.kernel

    @property
    def out(self) -> tuple[int, int]:
        rows, columns = (
            (size + 2 * pad - kernel) // step + 1
            for size, pad, kernel, step in zip(self.image, self.padding, self.kernel, self.stride, strict=True)
        )
        return rows, columns

    @property
    def tail(self) -> tuple[Any, ...]:
        """Arguments of the operators behind the tensors."""
        return list(self.stride), list(self.padding), [1, 1], False, [0, 0], self.channels // self.width


@dataclass(frozen=True, slots=True)
class _Text:
    function: str
    shape: Shape

    @property
    def numbers(self) -> list[str]:
        width = (self.shape.width,) if "grouped" in self.function else ()
        return [str(number) for number in (*width, *self.shape.kernel, *self.shape.stride)]

    @property
    def symbol(self) -> str:
        return "_".join((self.function, *self.numbers))

    @property
    def source(self) -> str:
        header = f"vec_{self.function.partition('_')[0]}.h"
        call = f"{self.function}<{', '.join(self.numbers)}>(pointers)"
        return f'#include "{header}"\nextern "C" void {self.symbol}(void *const *pointers) {{ {call}; }}\n'


class Depthwise:
    """`f(one, other, out=...)`, of contiguous float32 tensors. Raises StatorError when the kernel cannot be built.

    With other settings than those it was compared for it is the operator.
    """

    __slots__ = ("kernel", "name", "settings", "shape", "sizes", "what")

    def __init__(self, function: str, what: str, shape: Shape, compared_for: tuple[Any, ...]) -> None:
        text = _Text(function, shape)
        address = build.build_kernels([text])[text.symbol]
        self.name = function
        self.kernel = launch.make_kernel(address, 4, text.symbol)
        sizes = (shape.batch, shape.channels, *shape.image, *shape.padding, *shape.out, shape.produced)
        self.sizes = torch.tensor(sizes, dtype=torch.int64, device="cpu")
        self.what, self.shape, self.settings = what, shape, compared_for

    def __call__(self, one: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> None:
        if self.settings == settings():
            self.kernel(one, other, self.sizes, out)
        else:
            out.copy_(by_operator(self.what, self.shape, one, other))


# for what is computed: kernels that may do as oneDNN does
_OF_CHANNELS = {
    "forward": ("depthwise_forward",),
    "data": ("depthwise_data_gradient",),
    "weight": ("depthwise_weight_gradient_dots", "depthwise_weight_gradient_chain"),
}
_OF_GROUPS = {
    "forward": ("grouped_forward",),
    "data": ("grouped_data_gradient",),
    "weight": ("grouped_weight_gradient",),
}


def candidates(what: str, shape: Shape) -> tuple[str, ...]:
    """Names of kernels, to be compared."""
    return (_OF_GROUPS if shape.width > 1 else _OF_CHANNELS)[what]


def agreeing(what: str, shape: Shape) -> Depthwise | None:
    """What computes the "forward", the gradient of the "data" or of the "weight" with the operator's bits; None where
    nothing here does, or not as fast."""
    fits = max(shape.kernel) <= _LARGEST_KERNEL and max(shape.stride) <= _LARGEST_STRIDE and min(shape.out) > 0
    if not fits or not _is_worthwhile(what, shape) or not candidates(what, shape):
        return None
    return _agreeing(what, shape, settings())


def _is_worthwhile(what: str, shape: Shape) -> bool:
    """Lanes are positions in kernels for single channels, and channels in oneDNN's layout: that is the better for small
    images and large kernels, by more than what it costs to bring images there."""
    taps = math.prod(shape.kernel)
    if shape.width not in _WIDTHS or shape.width == shape.channels or taps == 1:
        return False
    return what == "weight" or taps <= 9 or (taps <= 25 and shape.image[1] >= 56)


@functools.lru_cache(maxsize=1024)
def _agreeing(what: str, shape: Shape, under: tuple[Any, ...]) -> Depthwise | None:
    try:
        found = [Depthwise(function, what, shape, under) for function in candidates(what, shape)]
    except StatorError:
        return None
    with counters.timed("compare"):
        first = _first_agreeing(found, what, shape)
    return first if settings() == under else None  # another thread may have changed them meanwhile


def _first_agreeing(left: list[Depthwise], what: str, shape: Shape) -> Depthwise | None:
    generator = torch.Generator("cpu").manual_seed(shape.channels)
    images = shape.batch * shape.channels * math.prod(shape.image)
    compared = {"forward": shape.batch * shape.produced * math.prod(shape.out), "data": images}
    found = that_agree(
        left,
        compared.get(what, math.prod(shape.weight)),
        lambda kind: _given(what, shape, generator, kind),
        lambda given: by_operator(what, shape, *given),
    )
    return found[0] if found else None


_TINY_CHANNELS = 16  # of single ones or groups


def _given(what: str, shape: Shape, generator: torch.Generator, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's two arguments."""

    def made(size: tuple[int, ...], of_channel: tuple[int, ...]) -> torch.Tensor:
        random = numbers(size, generator)
        if kind == SPECIAL:
            return shifted(with_special(random, of_channel, generator))  # begins where no whole vector does
        if kind == TINY:
            return tiny(random, of_channel, _TINY_CHANNELS)
        return random

    x = made((shape.batch, shape.channels, *shape.image), (1, -1, 1, 1))
    weight = made(shape.weight, (-1, 1, 1, 1))
    grad = made((shape.batch, shape.produced, *shape.out), (1, -1, 1, 1))
    return {"forward": (x, weight), "data": (grad, weight), "weight": (grad, x)}[what]


def by_operator(what: str, shape: Shape, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if what == "forward":
        return torch.ops.aten.convolution.default(one, other, None, *shape.tail)
    x = _without_numbers((shape.batch, shape.channels, *shape.image)) if what == "data" else other
    weight = other if what == "data" else _without_numbers(shape.weight)
    mask = [what == "data", what == "weight", False]
    results = torch.ops.aten.convolution_backward.default(one, x, weight, None, *shape.tail, mask)
    return results[0 if what == "data" else 1]


def _without_numbers(size: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float32, device="cpu")
