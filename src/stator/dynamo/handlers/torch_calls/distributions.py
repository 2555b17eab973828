"""torch.distributions: what its classes make of their own attributes while arguments are validated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributions import utils

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_OfClass: Any = utils._lazy_property_and_property


@calls(_OfClass)
def _lazy_property_of_class(context: CaptureContext, wrapped: Value) -> Value:
    """A lazy property, asked for through the class: an object that is made to be looked at, and only its kind is."""
    return context.known(_OfClass(context.real_of(wrapped, "the function of a lazy property")))
