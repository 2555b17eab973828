"""Convolutions of images of one position, as those of squeeze and excitation, by kernels that are written by hand and
give oneDNN's bits: it prepares ten times as long as they take.

What `csrc/vec_single.h` says, to be called from a compiled program, where that is what the operator computes.
`agreeing` compares both for the very sizes: see comparison.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from stator.base import counters
from stator.base.errors import StatorError

from .comparison import SPECIAL, TINY, Tensors, numbers, settings, shifted, that_agree, tiny, with_special
from .header_kernels import header_kernels

Mask = tuple[bool, bool, bool]  # which gradients the operator is asked for: of the images, the weight, the bias
ALONE: Mask = (False, False, False)

_KERNELS = {  # for what is computed
    "forward": ("single_forward",),
    "biased": ("single_biased",),
    "data": ("single_data",),
    "weight": ("single_weight_chain", "single_weight_sums"),
    "bias": ("single_bias",),
}
_OVER_IMAGES = ("weight", "bias")  # sums, which threads may make in parts
_REST = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # arguments of the operators behind the tensors


@dataclass(frozen=True, slots=True)
class Sizes:
    """x [batch, channels, 1, 1], weight [results, channels, 1, 1]."""

    batch: int
    channels: int
    results: int

    def of(self, name: str) -> tuple[int, ...]:
        return {
            "x": (self.batch, self.channels, 1, 1),
            "weight": (self.results, self.channels, 1, 1),
            "bias": (self.results,),
            "grad": (self.batch, self.results, 1, 1),
        }[name]


_GIVEN = {
    "forward": ("x", "weight"),
    "biased": ("x", "weight", "bias"),
    "data": ("grad", "weight"),
    "weight": ("grad", "x"),
    "bias": ("grad",),
}
_RESULT = {"forward": "grad", "biased": "grad", "data": "x", "weight": "weight", "bias": "bias"}  # is as large as
_CHANNELS = {"x": (1, -1, 1, 1), "weight": (-1, 1, 1, 1), "bias": (-1,), "grad": (1, -1, 1, 1)}


@functools.cache
def _kernels() -> dict[str, Callable[..., None]]:
    counts = {function: len(_GIVEN[what]) + 2 for what, names in _KERNELS.items() for function in names}
    return header_kernels("vec_single.h", counts)  # of what is given, Counts, and the result


@dataclass(frozen=True, slots=True)
class Way:
    """In which order a kernel adds up: images in so many parts; or chains of products, to a zero or not."""

    function: str
    parts: int = 1
    zero: bool = True


def ways(what: str, sizes: Sizes) -> list[Way]:
    """How it may be computed, to be compared."""
    names = _KERNELS[what]
    if what not in _OVER_IMAGES:
        return [Way(name, zero=zero) for name in names for zero in (True, False)]
    parts = dict.fromkeys((1, min(torch.get_num_threads(), sizes.batch)))
    return [Way(name, number) for name in names for number in parts]


class Product:
    """`f(*given, out=...)`, of contiguous float32 tensors: x, weight and maybe bias; or the gradient of the result and
    what else the one that is computed is made of. Raises StatorError when the kernels cannot be built.

    With other settings than those it was compared for it is the operator.
    """

    __slots__ = ("asked", "counts", "kernel", "settings", "sizes", "way", "what")

    def __init__(self, way: Way, what: str, sizes: Sizes, asked: Mask) -> None:
        self.way = way
        self.kernel = _kernels()[way.function]
        self.counts = torch.tensor([sizes.batch, sizes.channels, sizes.results, way.parts, way.zero], device="cpu")
        self.what, self.sizes, self.asked = what, sizes, asked
        self.settings = settings()

    def __call__(self, *given: torch.Tensor, out: torch.Tensor) -> None:
        if self.settings == settings():
            self.kernel(*given, self.counts, out)
        else:
            out.copy_(_by_operator(self.what, self.sizes, self.asked, given))


def agreeing(what: str, sizes: Sizes, asked: Mask = ALONE) -> Product | None:
    """What computes the convolution, "forward" or "biased", or its gradient of "data", "weight" or "bias", with the
    bits of the operator when that is `asked` for several; None where nothing here does."""
    return _agreeing(what, sizes, asked, settings())


@functools.lru_cache(maxsize=1024)
def _agreeing(what: str, sizes: Sizes, asked: Mask, under: tuple[object, ...]) -> Product | None:
    try:
        found = [Product(way, what, sizes, asked) for way in ways(what, sizes)]
    except StatorError:
        return None
    with counters.timed("compare"):
        found = _that_agree(found, what, sizes, asked)
    return found[0] if found and settings() == under else None  # another thread may have changed them meanwhile


def _that_agree(left: list[Product], what: str, sizes: Sizes, asked: Mask) -> list[Product]:
    generator = torch.Generator("cpu").manual_seed(sizes.channels)

    def made(kind: str) -> Tensors:
        return [_of_kind(kind, name, numbers(sizes.of(name), generator), generator) for name in _GIVEN[what]]

    return that_agree(
        left, math.prod(sizes.of(_RESULT[what])), made, lambda given: _by_operator(what, sizes, asked, given)
    )


def _of_kind(kind: str, name: str, random: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if kind == SPECIAL:
        return shifted(with_special(random, _CHANNELS[name], generator))  # begins where no whole vector does
    if kind == TINY:
        return random.sign() * 0.0 if name == "bias" else tiny(random, _CHANNELS[name])
    return random


def _by_operator(what: str, sizes: Sizes, asked: Mask, given: Tensors) -> torch.Tensor:
    if what in ("forward", "biased"):
        bias = given[2] if what == "biased" else None
        return torch.ops.aten.convolution.default(given[0], given[1], bias, *_REST)
    known = dict(zip(_GIVEN[what], given, strict=True))
    x, weight = (
        known.get(name, torch.zeros(sizes.of(name), dtype=torch.float32, device="cpu")) for name in ("x", "weight")
    )
    bias_sizes = [sizes.results] if asked[2] else None
    results = torch.ops.aten.convolution_backward.default(known["grad"], x, weight, bias_sizes, *_REST, list(asked))
    return results[("data", "weight", "bias").index(what)]
