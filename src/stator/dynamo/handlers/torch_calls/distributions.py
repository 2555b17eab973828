"""torch.distributions: the lazy properties that its classes look up while they validate arguments."""

from __future__ import annotations

from typing import Any

from torch.distributions import utils

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import CaptureContext, Value

_OfClass: Any = utils._lazy_property_and_property


@calls(_OfClass)
def _lazy_property_of_class(context: CaptureContext, wrapped: Value) -> Value:
    """A lazy property read through the class is a new object, of which programs use only the type."""
    return context.known(_OfClass(context.real_of(wrapped, "the function of a lazy property")))
