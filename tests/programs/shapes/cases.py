"""Random tensor programs over named sizes, as strategies of hypothesis.

A program is the text of `def program(x, y, z, index, n)`: x has shape (a, b), y (b, c), z one of its own, index is
int64 of shape (a,), n an int. The text uses the sizes as numbers. Sizes are tracked as expressions, so that most
programs run for most values of a, b, c and n; where eager raises, the compiled program has to raise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from tests.programs.shapes import drawn_numbers, layouts, values
from tests.programs.shapes.writer import Draw, Skip, Writer

import stator

Sizes = tuple[int, int, int, int]  # a, b, c, n
_SHAPES_OF_Z = (
    ("a", "b"),
    ("a", "c"),
    ("b",),
    ("a", "b", "c"),
    ("c", "b", "a"),
    ("a", "1"),
    ("a", "4", "b"),
    ("a", "a"),
)
_STEPS = (*values.step, *layouts.step, *drawn_numbers.step)
_SMALL_SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 13, 17)
_LAYOUTS = ("dense", "dense", "reversed", "every second")


@dataclass(frozen=True)
class Case:
    """A program, and what its calls get."""

    source: str
    shape_of_z: tuple[str, ...]
    layouts: tuple[str, str, str]
    with_gradients: tuple[bool, bool, bool]
    calls: tuple[Sizes, ...]

    def function(self) -> Any:
        scope = {"torch": torch, "F": F, "math": math, "stator": stator, "__name__": "random_shapes"}
        exec(compile(self.source, "<program>", "exec"), scope)
        return scope["program"]

    def arguments(self, call: Sizes) -> tuple[Any, ...]:
        """On the default device; the numbers are those of the CPU's generator."""
        a, b, c, n = call
        device, generator = torch.get_default_device(), torch.Generator().manual_seed(17)
        sizes = {"a": a, "b": b, "c": c, "1": 1, "4": 4}
        shapes = ((a, b), (b, c), tuple(sizes[name] for name in self.shape_of_z))
        tensors = [
            _laid_out(torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(device), layout)
            for shape, layout in zip(shapes, self.layouts, strict=True)
        ]
        for tensor, needs in zip(tensors, self.with_gradients, strict=True):
            tensor.requires_grad_(needs)
        return *tensors, torch.randint(0, 2, (a,), generator=generator, device="cpu").to(device), n


def _laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "reversed":
        order = tuple(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    if layout == "every second":
        return torch.stack((tensor, tensor), -1)[..., 0].detach()
    return tensor


@st.composite
def cases(draw: Draw, most_steps: int = 10) -> Case:
    shape_of_z = draw(st.sampled_from(_SHAPES_OF_Z))
    with_gradients = draw(st.tuples(*[st.booleans()] * 3))
    w = Writer(draw, shape_of_z, with_gradients)
    for _ in range(draw(st.integers(1, most_steps))):
        try:
            draw(st.sampled_from(_STEPS))(w)
        except Skip:
            continue
    made_values = [one.name for one in w.values if one.name.startswith("v")] or ["x"]
    results = draw(st.lists(st.sampled_from(made_values), min_size=1, max_size=3))
    results.append(made_values[-1])
    numbers = draw(st.lists(st.sampled_from([*w.numbers, "a * b", "c + 1", "x.shape"]), max_size=2))
    body = [*w.lines, f"return {', '.join([*results, *numbers])},"]
    source = "def program(x, y, z, index, n):\n" + "".join(f"    {line}\n" for line in body)
    size = st.sampled_from(_SMALL_SIZES)
    calls = draw(st.lists(st.tuples(size, size, size, size), min_size=3, max_size=4, unique=True))
    layouts = draw(st.tuples(*[st.sampled_from(_LAYOUTS)] * 3))
    return Case(source, shape_of_z, layouts, with_gradients, tuple(calls))
