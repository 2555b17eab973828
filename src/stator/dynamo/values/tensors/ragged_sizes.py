"""Sizes of jagged nested tensors that stand for the tensor's lengths: torch's nested ints."""

from __future__ import annotations

import operator
from typing import Any

import torch

from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Recipe
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, unsupported
from stator.dynamo.values.constants import ConstantValue


class RaggedSize(Value):
    """`owner.shape[dim]`. Nested ints are equal where the tensors share their lengths, which guards on inputs hold.

    number: the nested int of the fake tensor.
    """

    __slots__ = ("dim", "number", "owner")
    cls = torch.SymInt

    def __init__(self, owner: Any, dim: int) -> None:
        super().__init__()
        self.owner = owner
        self.dim = dim
        self.number = owner.fake.shape[dim]

    def describe(self, context: CaptureContext) -> str:
        return "the size of a nested tensor that stands for its lengths"

    def truth(self, context: CaptureContext) -> bool:
        raise unsupported("tensor-layout", f"a branch on {self.describe(context)}")

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return CallRecipe(
            ConstantRecipe(torch.Tensor.size), [reconstructor.recipe(self.owner), ConstantRecipe(self.dim)]
        )


def lower_ragged_size(recorder: Any, value: RaggedSize) -> tuple[Any, Any]:
    """The node and the number that operators take."""
    owner, _ = recorder.lower(value.owner)
    made = recorder.graph.call_method("size", (owner, value.dim))
    made.meta["place"] = recorder.context.place()
    made.meta["example_value"] = value.number
    return made, value.number


def compare_ragged(context: CaptureContext, function: Any, left: Value, right: Value) -> Value:
    """Compares two such sizes, or one with an int."""
    numbers = [
        one.number if isinstance(one, RaggedSize) else one.value if isinstance(one, ConstantValue) else None
        for one in (left, right)
    ]
    both = all(isinstance(one, RaggedSize) for one in (left, right))
    decided = both and function in (operator.eq, operator.ne)
    if not decided and not any(type(number) is int for number in numbers):
        raise unsupported("tensor-layout", f"comparing {left.describe(context)} and {right.describe(context)}")
    try:
        return ConstantValue(bool(function(*numbers)))
    except ValueError as error:  # torch cannot tell
        raise unsupported("tensor-layout", f"comparing {left.describe(context)}: {error}") from None
