"""The number in a tensor where the program compares it, or asks for its truth, only to raise if it is a wrong one; and
the check in the graph. Where that is the case is found out in `calls/checks.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stator.prims.checks import check as in_graph

from ..recipe import CallRecipe, Constant, Recipe
from .base import Value
from .tensors import TensorValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..tracer import Tracer


_NAME = "a check of the data of a tensor"


def check(tracer: Tracer, condition: TensorValue, kind: str = "RuntimeError") -> None:
    """Let the graph fail where the number is zero. The frame must be able to begin anew then. `kind`: whether the
    program fails there too, as in most cases, or goes another way (`prims.checks.ASSUMPTION`)."""
    recorder = tracer.recorder
    recorder.noticed = _NAME
    recorder.keep_repeatable()
    node = recorder.graph.call_function(in_graph, (recorder.node_of(condition), kind, _NAME))
    node.meta["place"] = tracer.place()
    node.meta["example_value"] = None
    recorder.op_count += 1


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
