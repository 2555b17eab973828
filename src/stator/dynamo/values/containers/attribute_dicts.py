"""Dictionaries that hold the attributes of objects, and that captured code may also meet as values of their own.
Neither view sees writes through the other, so such programs end the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.base.errors import Unsupported
from stator.dynamo.values.base import unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def meet_attributes(context: CaptureContext, real: dict[str, Any]) -> None:
    """Note the first read of an object's attributes. Raises Unsupported if the dictionary itself was changed."""
    if id(real) in context.changed_dicts:
        raise _two_views()
    context.instance_dicts[id(real)] = False


def write_attributes(context: CaptureContext, real: dict[str, Any]) -> None:
    """Note a write to an attribute. Raises Unsupported if capture has met the dictionary itself."""
    if id(real) in context.wrapped:
        raise _two_views()
    context.instance_dicts[id(real)] = True


def meet_dict(context: CaptureContext, real: Any, *, writes: bool) -> None:
    """Note that capture meets a dictionary, or writes to it. Raises Unsupported if attribute accesses conflict."""
    written = context.instance_dicts.get(id(real))
    if written or (writes and written is not None):
        raise _two_views()


def _two_views() -> Unsupported:
    return unsupported("attribute-write", "attributes that are written both by name and in the object's dictionary")
