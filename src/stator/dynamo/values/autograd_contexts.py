"""The `ctx` of a custom autograd.Function while its forward and backward are captured."""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx

from stator.dynamo.ir.reconstruct_ir import Recipe

from .base import CaptureContext, Raised, Reconstructor, Value, cannot_rebuild, unsupported
from .containers.sequences import TupleValue
from .objects import MISSING, ObjectValue

_OF_NODE = frozenset(name for name in dir(torch._C._FunctionBase) if not hasattr(object, name))


class AutogradContextValue(ObjectValue):
    """Capture follows the methods of torch's FunctionCtx, which store their arguments as attributes."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(FunctionCtx)

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        try:
            return super().get_attr(context, name)
        except Raised:
            if name in _OF_NODE:
                raise unsupported("attribute", f"attribute {name!r} of the context of a custom function") from None
            raise

    def listed(self, context: CaptureContext, name: str) -> list[Value]:
        """The tensors that a method of the context stored under `name`; none if the program did not call it."""
        found = (self.attributes or {}).get(name, MISSING)
        if found is MISSING:
            return []
        if not isinstance(found, TupleValue):
            raise unsupported("custom-function", f"the context's {name!r} was replaced by {found.describe(context)}")
        return [context.realized(item) for item in found.items]

    def materializes_gradients(self, context: CaptureContext) -> bool:
        found = (self.attributes or {}).get("materialize_grads", MISSING)
        return found is MISSING or context.truth(found)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("the context of a custom autograd.Function")
