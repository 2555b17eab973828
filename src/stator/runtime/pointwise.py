"""Convolutions with kernels of one row and column (pointwise), by kernels written by hand that give oneDNN's bits in
eager's layout: of the time that oneDNN takes, a large part is bringing images and weights into its own layouts.

What `csrc/vec_pointwise.h` says, to be called from a compiled program, where that is what the operator computes.
`agreeing` compares both for the very sizes: see comparison.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from stator.base import counters
from stator.base.errors import StatorError

from .comparison import SPECIAL, TINY, Tensors, numbers, settings, shifted, that_agree, tiny, with_special
from .depthwise import Shape, by_operator
from .header_kernels import header_kernels

_KERNELS = {"forward": "pointwise_forward", "data": "pointwise_data_gradient"}
_POINTERS = 4  # see vec_pointwise.h
_CHAINS = (256, 80, 128, 512)  # products that oneDNN adds up before sums are, by processor and sizes: or all of them
_MOST_PRODUCTS = 64_000_000  # from where on oneDNN's kernels make up for what it does beside
_SPATIAL_BATCH = 16  # from which on ATen takes oneDNN in one thread, too, and not a product of matrices


@functools.cache
def _kernels() -> dict[str, Callable[..., None]]:
    return header_kernels("vec_pointwise.h", dict.fromkeys(_KERNELS.values(), _POINTERS))


@dataclass(frozen=True, slots=True)
class Way:
    """How many products a chain has, and whether sums of chains begin with zero."""

    chain: int
    zero: bool


def ways(what: str, shape: Shape) -> list[Way]:
    """How it may be computed, to be compared."""
    products = shape.channels if what == "forward" else shape.produced
    chains = dict.fromkeys([products, *(chain for chain in _CHAINS if chain < products)])
    return [Way(chain, zero) for chain in chains for zero in (True, False)]


class Pointwise:
    """`f(one, other, out=...)`, of contiguous float32 tensors. Raises StatorError when the kernels cannot be built.

    With other settings than those it was compared for it is the operator.
    """

    __slots__ = ("kernel", "settings", "shape", "sizes", "way", "what")

    def __init__(self, way: Way, what: str, shape: Shape) -> None:
        self.way, self.what, self.shape, self.settings = way, what, shape, settings()
        self.kernel = _kernels()[_KERNELS[what]]
        sides = (shape.batch, shape.channels, *shape.image, *shape.padding, *shape.out, shape.produced)
        self.sizes = torch.tensor([*sides, *shape.stride, way.chain, way.zero], dtype=torch.int64, device="cpu")

    def __call__(self, one: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> None:
        if self.settings == settings():
            self.kernel(one, other, self.sizes, out)
        else:
            out.copy_(by_operator(self.what, self.shape, one, other))


def agreeing(what: str, shape: Shape) -> Pointwise | None:
    """What computes the "forward" or the gradient of the "data" with the operator's bits; None where nothing here does,
    or not as fast."""
    fits = what in _KERNELS and shape.kernel == (1, 1) and shape.padding == (0, 0) and min(shape.out) > 0
    return _agreeing(what, shape, settings()) if fits and _is_worthwhile(shape) else None


def _is_worthwhile(shape: Shape) -> bool:
    if max(shape.stride) == 1 and torch.get_num_threads() == 1 and shape.batch < _SPATIAL_BATCH:
        return False
    return shape.batch * math.prod(shape.out) * shape.channels * shape.produced <= _MOST_PRODUCTS


@functools.lru_cache(maxsize=1024)
def _agreeing(what: str, shape: Shape, under: tuple[Any, ...]) -> Pointwise | None:
    try:
        found = [Pointwise(way, what, shape) for way in ways(what, shape)]
    except StatorError:
        return None
    with counters.timed("compare"):
        found = _that_agree(found, what, shape)
    return found[0] if found and settings() == under else None  # another thread may have changed them meanwhile


def _that_agree(left: list[Pointwise], what: str, shape: Shape) -> list[Pointwise]:
    generator = torch.Generator("cpu").manual_seed(shape.channels)
    count = shape.batch * (
        shape.produced * math.prod(shape.out) if what == "forward" else shape.channels * math.prod(shape.image)
    )
    return that_agree(
        left, count, lambda kind: _given(what, shape, generator, kind), lambda given: by_operator(what, shape, *given)
    )


_TINY = 16  # results, and positions in a row: products so small take a processor a hundred times as long as others


def _given(what: str, shape: Shape, generator: torch.Generator, kind: str) -> Tensors:
    """The kernel's two arguments: images and the weight."""
    size = (shape.batch, shape.channels, *shape.image)
    if what == "data":
        size = (shape.batch, shape.produced, *shape.out)
    images, weight = numbers(size, generator), numbers(shape.weight, generator)
    if kind == SPECIAL:  # begin where no whole vector does
        images, weight = (
            shifted(with_special(part, of_channel, generator))
            for part, of_channel in ((images, (1, -1, 1, 1)), (weight, (-1, 1, 1, 1)))
        )
    if kind == TINY:
        images = tiny(images, (1, 1, 1, -1), _TINY)
        weight = tiny(weight, (-1, 1, 1, 1) if what == "forward" else (1, -1, 1, 1), _TINY)
    return images, weight
