"""The number in a tensor where the program compares it, or asks for its truth, only to raise if it is a wrong one; and
the check in the graph. Where that is the case is found out in `handlers/torch_calls/data_assertions.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import Value
from stator.prims.operators.checks import check as in_graph

from .tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext
    from stator.dynamo.interpreter.reconstruction import Reconstructor


_NAME = "a check of the data of a tensor"


def check(context: CaptureContext, condition: TensorValue, kind: str = "RuntimeError") -> None:
    """Let the graph fail where the number is zero. The frame must be able to begin anew then. `kind`: whether the
    program fails there too, as in most cases, or goes another way (`prims.checks.ASSUMPTION`)."""
    recorder = context.recorder
    recorder.noticed = _NAME
    recorder.keep_repeatable()
    node = recorder.graph.call_function(in_graph, (recorder.node_of(condition), kind, _NAME))
    node.meta["place"] = context.place()
    node.meta["example_value"] = None
    recorder.op_count += 1


class CheckedNumberValue(Value):
    """What `.item()` gave: `tensor` holds a copy of it, of no dimension, as bool, int64 or float64."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorValue) -> None:
        super().__init__()
        self.tensor = tensor

    def python_type(self, context: CaptureContext) -> type:
        dtype = self.tensor.fake.dtype
        return bool if dtype is torch.bool else float if dtype.is_floating_point else int

    def describe(self, context: CaptureContext) -> str:
        return f"the number in {self.tensor.describe(context)}"

    def truth(self, context: CaptureContext) -> bool:
        return self.tensor.truth(context)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return CallRecipe(ConstantRecipe(torch.Tensor.item), [reconstructor.recipe(self.tensor)])
