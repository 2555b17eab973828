"""Sampling at computed positions with interpolation: grid_sampler and bicubic upsampling, by gathers and arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.decompositions.decomposition_decorator import cast, decomposes, iota

from .resampling import scale_of, scales_of

aten = torch.ops.aten
BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
CUBIC = -0.75  # the free parameter of cubic convolution (Keys, 1981)


def cubic_weights(fraction: Any) -> list[Any]:
    """Return the weights of the four neighbours of a position `fraction` of a step behind the second."""

    def near(x: Any) -> Any:  # ((a + 2) x - (a + 3)) x x + 1
        inner = aten.sub.Tensor(aten.mul.Tensor(x, CUBIC + 2), CUBIC + 3)
        return aten.add.Tensor(aten.mul.Tensor(aten.mul.Tensor(inner, x), x), 1.0)

    def far(x: Any) -> Any:  # ((a x - 5 a) x + 8 a) x - 4 a
        inner = aten.sub.Tensor(aten.mul.Tensor(x, CUBIC), 5 * CUBIC)
        inner = aten.add.Tensor(aten.mul.Tensor(inner, x), 8 * CUBIC)
        return aten.sub.Tensor(aten.mul.Tensor(inner, x), 4 * CUBIC)

    rest = aten.rsub.Scalar(fraction, 1.0)
    return [far(aten.add.Tensor(fraction, 1.0)), near(fraction), near(rest), far(aten.add.Tensor(rest, 1.0))]


@decomposes("upsample_bicubic2d")
def upsample_bicubic2d(self: Any, output_size: Sequence[Any], align_corners: bool, *scales: Any, **named: Any) -> Any:
    """Cubic convolution dimension by dimension, the innermost first; the border is repeated."""
    if not self.dtype.is_floating_point or 0 in tuple(self.shape):
        return NotImplemented
    given = scales_of(output_size, scales, named)
    result = self
    for axis in (1, 0):
        size, target = self.shape[axis + 2], output_size[axis]
        position = cast(iota(target, self), self.dtype)
        if align_corners:
            position = aten.mul.Tensor(position, (size - 1) / (target - 1) if target > 1 else 0.0)
        else:
            scaled = aten.mul.Tensor(aten.add.Tensor(position, 0.5), scale_of(given[axis], size, target))
            position = aten.sub.Tensor(scaled, 0.5)
        floor = aten.floor.default(position)
        weights = cubic_weights(aten.sub.Tensor(position, floor))
        first = cast(floor, torch.int64)
        total = None
        for offset, weight in enumerate(weights):
            place = aten.clamp.default(aten.add.Tensor(first, offset - 1), 0, size - 1)
            part = aten.index.Tensor(result, [*[None] * (axis + 2), place])
            part = aten.mul.Tensor(part, aten.view.default(weight, [-1, *[1] * (1 - axis)]))
            total = part if total is None else aten.add.Tensor(total, part)
        result = total
    return result


def unnormalised(coordinate: Any, size: Any, align_corners: bool) -> Any:
    """Map [-1, 1] to elements: the ends are the centres of the outermost elements, or their outer edges."""
    if align_corners:
        return aten.mul.Tensor(aten.add.Tensor(coordinate, 1.0), (size - 1) / 2)
    return aten.div.Tensor(aten.sub.Tensor(aten.mul.Tensor(aten.add.Tensor(coordinate, 1.0), size), 1.0), 2.0)


def pad_coordinate(coordinate: Any, size: Any, padding_mode: int, align_corners: bool) -> Any:
    if padding_mode == ZEROS:
        return coordinate
    if padding_mode == REFLECTION:
        low, span = (0, size - 1) if align_corners else (-0.5, size)
        coordinate = reflected_between(coordinate, low, span)
    return clipped(coordinate, size)


def clipped(coordinate: Any, size: Any) -> Any:
    """Clip to [0, size - 1]; NaN becomes 0, by eager's order of comparisons."""
    positive = aten.where.ScalarOther(aten.gt.Scalar(coordinate, 0.0), coordinate, 0.0)
    return aten.clamp_max.default(positive, size - 1)


def reflected_between(coordinate: Any, low: float, span: Any) -> Any:
    """Fold back and forth between low and low + span."""
    if span == 0:
        return aten.zeros_like.default(coordinate)
    distance = aten.abs.default(aten.sub.Tensor(coordinate, low))
    rest = aten.fmod.Scalar(distance, span)
    flips = aten.floor.default(aten.div.Tensor(distance, span))
    even = aten.eq.Scalar(aten.fmod.Scalar(flips, 2.0), 0.0)
    return aten.where.self(even, aten.add.Tensor(rest, low), aten.rsub.Scalar(rest, low + span))


def elements_at(input: Any, places: Sequence[Any]) -> Any:
    """Return the elements at integral positions, one tensor of (batch, *result) per dimension; 0 outside."""
    rank = len(places)
    batch = aten.view.default(iota(input.shape[0], input), [-1, *[1] * rank])
    inside = None
    safe = []
    for axis, place in enumerate(places):
        size = input.shape[axis + 2]
        fits = aten.logical_and.default(aten.ge.Scalar(place, 0), aten.lt.Scalar(place, size))
        inside = fits if inside is None else aten.logical_and.default(inside, fits)
        safe.append(cast(aten.where.ScalarOther(fits, place, 0), torch.int64))
    channels = aten.permute.default(input, [0, *range(2, rank + 2), 1])
    read = aten.index.Tensor(channels, [batch, *safe])
    read = aten.permute.default(read, [0, rank + 1, *range(1, rank + 1)])
    return aten.where.ScalarOther(aten.unsqueeze.default(inside, 1), read, 0.0)


@decomposes("grid_sampler_2d grid_sampler_3d", wide=False)
def grid_sampler(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    rank = len(input.shape) - 2
    # Half floats: eager rounds the positions to them, which decides the elements that are read.
    if input.dtype not in (torch.float32, torch.float64) or 0 in (*input.shape, *grid.shape):
        return NotImplemented
    # The grid's last dimension counts x first.
    raw = [
        unnormalised(aten.select.int(grid, -1, rank - 1 - a), input.shape[a + 2], align_corners) for a in range(rank)
    ]
    if interpolation_mode == BICUBIC:
        return bicubic_sample(input, raw, padding_mode, align_corners)
    where = [pad_coordinate(raw[a], input.shape[a + 2], padding_mode, align_corners) for a in range(rank)]
    if interpolation_mode == NEAREST:
        return elements_at(input, [aten.round.default(place) for place in where])
    floors = [aten.floor.default(place) for place in where]
    total = None
    for corner in itertools.product((0, 1), repeat=rank):
        weight = None
        places = []
        for axis, side in enumerate(corner):
            places.append(aten.add.Tensor(floors[axis], float(side)) if side else floors[axis])
            ahead = aten.sub.Tensor(where[axis], floors[axis])
            part = ahead if side else aten.rsub.Scalar(ahead, 1.0)
            weight = part if weight is None else aten.mul.Tensor(weight, part)
        value = aten.mul.Tensor(elements_at(input, places), aten.unsqueeze.default(weight, 1))
        total = value if total is None else aten.add.Tensor(total, value)
    return total


def bicubic_sample(input: Any, raw: Sequence[Any], padding_mode: int, align_corners: bool) -> Any:
    floors = [aten.floor.default(place) for place in raw]
    weights = [cubic_weights(aten.sub.Tensor(raw[axis], floors[axis])) for axis in range(2)]
    total = None
    for row, column in itertools.product(range(4), repeat=2):
        places = [
            pad_coordinate(
                aten.add.Tensor(floors[axis], float(offset - 1)), input.shape[axis + 2], padding_mode, align_corners
            )
            for axis, offset in enumerate((row, column))
        ]
        weight = aten.unsqueeze.default(aten.mul.Tensor(weights[0][row], weights[1][column]), 1)
        value = aten.mul.Tensor(elements_at(input, places), weight)
        total = value if total is None else aten.add.Tensor(total, value)
    return total
