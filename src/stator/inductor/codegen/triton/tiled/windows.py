"""Prints the sums of products whose rows are windows of images: the steps of a convolution along taps and channels.

A row of the tile is a position of the result, which keeps the address of its window. A step multiplies what one tap
reads of up to DEPTH channels; elements outside of an image are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stator.inductor.codegen.triton.statements import Statements
from stator.inductor.schedule.groups import Windows
from stator.inductor.sizes import product
from stator.shapes.expr import Expr, as_expr


@dataclass(frozen=True, slots=True)
class WindowSums:
    """text: prints a size. depth: channels of a step; channels: of a group."""

    windows: Windows
    text: Callable[[Any], str]
    depth: int
    channels: int

    def last_place(self, rows: Any) -> Expr:
        """A bound on the distance of the elements of so many windows from the first image."""
        images = as_expr(rows) // product(self.windows.positions)
        total = images * self.windows.apart + self.channels + self.depth
        for axis in range(len(self.windows.taps)):
            total = total + self._reach(axis) * self.windows.strides[axis]
        return total

    def _reach(self, axis: int) -> Any:
        """Behind the last element that windows have along an axis, from the first one's padding on."""
        windows = self.windows
        last = (windows.positions[axis] - 1) * windows.stride[axis] + (windows.taps[axis] - 1) * windows.dilation[axis]
        return last + 1

    def _axes_with_padding(self) -> list[int]:
        """The axes along which some window reaches out of its image."""
        windows = self.windows
        return [
            axis
            for axis in range(len(windows.taps))
            if windows.padding[axis] or not self._reach(axis) <= windows.images[axis]
        ]

    def place(self, code: Statements, rows: str) -> str:
        """Print the place of each row's window, and return the text of its distance from the first image."""
        windows, text = self.windows, self.text
        terms = [f"{rows} // {text(product(windows.positions))} * {text(windows.apart)}"]
        for axis, count in enumerate(windows.positions):
            behind = product(windows.positions[axis + 1 :])
            at = rows if behind == 1 else f"{rows} // {text(behind)}"
            first = "" if windows.padding[axis] == 0 else f" - {windows.padding[axis]}"
            code.line(f"place{axis} = {at} % {text(count)} * {windows.stride[axis]}{first}")
            terms.append(f"place{axis} * {text(windows.strides[axis])}")
        return " + ".join(terms)

    def loop(self, code: Statements, rights: int) -> None:
        """The steps: `left` points at the first elements of windows, `right0` and so on at those of kernels."""
        windows, channels = self.windows, self.channels
        blocks = -(-channels // self.depth)
        code.line(f"for step in range(0, {math.prod(windows.taps) * blocks}):")
        with code.indented():
            tap, channel = "step", ""
            if blocks > 1:
                code.line(f"tap = step // {blocks}")
                code.line(f"channel = step % {blocks} * DEPTH")
                tap, channel = "tap", " + channel"
            moves = self._taps(code, tap)
            masks = [f"(at{axis} >= 0) & (at{axis} < {self.text(windows.images[axis])})" for axis in moves.padded]
            left = right = ""
            if channels % self.depth:
                rest = f"{channels}{' - channel' if blocks > 1 else ''}"
                masks.append(f"(k[None, :] < {rest})")
                right = f", mask=k[:, None] < {rest}, other=0.0"
            if masks:
                left = f", mask={' & '.join(masks)}, other=0.0"
            code.line(f"a = tl.load(left{moves.distance}{channel}{left})")
            for at in range(rights):
                code.line(f"b{at} = tl.load(right{at} + {tap} * {channels}{channel}{right})")
            for at in range(rights):
                code.line(f"sum{at} = tl.dot(a, b{at}, sum{at})")

    def _taps(self, code: Statements, tap: str) -> _Moves:
        """Print the place of a tap along each axis."""
        windows, padded = self.windows, self._axes_with_padding()
        distance = ""
        for axis, count in enumerate(windows.taps):
            if count > 1:
                behind = math.prod(windows.taps[axis + 1 :])
                at = tap if behind == 1 else f"{tap} // {behind}"
                wraps = "" if axis == 0 else f" % {count}"
                gap = "" if windows.dilation[axis] == 1 else f" * {windows.dilation[axis]}"
                code.line(f"tap{axis} = {at}{wraps}{gap}")
                distance += f" + tap{axis} * {self.text(windows.strides[axis])}"
            if axis in padded:
                code.line(f"at{axis} = place{axis}{f' + tap{axis}' if count > 1 else ''}")
        return _Moves(distance, padded)


@dataclass(frozen=True, slots=True)
class _Moves:
    """distance: of a tap's element from the window's first one, as text behind an address."""

    distance: str
    padded: Sequence[int]
