"""Dictionaries that hold the attributes of objects, which captured code may meet by themselves, too, beside the object:
what is written in one way is not read in the other, so that the graph ends there. No values live here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stator.base.errors import Unsupported
from stator.dynamo.values.base import unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def meet_attributes(context: CaptureContext, real: dict[str, Any]) -> None:
    """The attributes of an object are looked at, for the first time. Raises Unsupported."""
    if id(real) in context.changed_dicts:
        raise _in_two_ways()
    context.instance_dicts[id(real)] = False


def write_attributes(context: CaptureContext, real: dict[str, Any]) -> None:
    """They are written to. Raises Unsupported where the dictionary was met by itself."""
    if id(real) in context.wrapped:
        raise _in_two_ways()
    context.instance_dicts[id(real)] = True


def meet_dict(context: CaptureContext, real: Any, *, writes: bool) -> None:
    """A dictionary is met by itself, or written to. Raises Unsupported where that matters, as it is an object's."""
    written = context.instance_dicts.get(id(real))
    if written or (writes and written is not None):
        raise _in_two_ways()


def _in_two_ways() -> Unsupported:
    return unsupported("attribute-write", "attributes that are written by name, and in the object's dictionary itself")
