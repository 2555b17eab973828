"""re.Match objects that were there before: each call of the program makes another one, so what one has found is relied
on, not which one it is.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, Source

from .base import Value
from .constants import ConstantMethod, ConstantValue
from .objects import ObjectValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_METHODS = frozenset({"group", "groups", "groupdict", "span", "start", "end", "expand"})
_FACTS = ("string", "regs", "pos", "endpos", "lastindex", "lastgroup", "re")
_DECIDE = ("string", "regs")  # together with the pattern: what the methods say


class MatchValue(ObjectValue):
    __slots__ = ("relied_on",)

    def __init__(self, obj: re.Match[Any], source: Source) -> None:
        super().__init__(re.Match, obj, source)
        self.relied_on = False

    def _rely(self, context: CaptureContext) -> re.Match[Any]:
        assert self.source is not None
        if not self.relied_on:
            self.relied_on = True
            context.guard(AttrSource(self.source, "re"), GuardKind.IS, self.obj.re)
            for name in _DECIDE:
                context.guard(AttrSource(self.source, name), GuardKind.EQUALS, getattr(self.obj, name))
        return self.obj  # type: ignore[no-any-return]

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        if name in _METHODS:
            return ConstantMethod(self.obj, name, getattr(self._rely(context), name))
        if name in _FACTS:
            return context.wrap(getattr(self.obj, name), AttrSource(self.source, name))  # type: ignore[arg-type]
        return super().get_attr(context, name)

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        at = context.constant_of(key, "a group of a match")
        return ConstantValue(context.run_real(operator.getitem, (self._rely(context), at)))
