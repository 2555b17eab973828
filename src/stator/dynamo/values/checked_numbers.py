"""The number in a tensor where the program compares it, or asks for its truth, only to raise if it is a wrong one.

Where that is the case is found out in `calls/checks.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..recipe import CallRecipe, Constant, Recipe
from .base import Value
from .tensors import TensorValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


class CheckedNumberValue(Value):
    """What `.item()` gave: `tensor` holds a copy of it, of no dimension, as bool, int64 or float64."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorValue) -> None:
        super().__init__()
        self.tensor = tensor

    def python_type(self, tracer: Tracer) -> type:
        dtype = self.tensor.fake.dtype
        return bool if dtype is torch.bool else float if dtype.is_floating_point else int

    def describe(self, tracer: Tracer) -> str:
        return f"the number in {self.tensor.describe(tracer)}"

    def truth(self, tracer: Tracer) -> bool:
        return self.tensor.truth(tracer)

    def recipe(self, exits: ExitBuilder) -> Recipe:
        return CallRecipe(Constant(torch.Tensor.item), [exits.recipe(self.tensor)])
