"""Text made of numbers that change between calls. Most such text is the message of an error that is not raised: only a
use of the text makes constants of its numbers.

Also text that shows a tensor, such as the message of a check that may never fail. If the program uses such text, or it
leaves the graph, the graph ends ahead of the step that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, NewTuple, Recipe, call_recipe

from .base import CaptureContext, Reconstructor, Value, cannot_rebuild, unsupported
from .constants import ConstantValue
from .symbolic_numbers import NUMBERS, SymbolicNumber


class NumberText(ConstantValue):
    """A string with the numbers of this call in it. Reading `value` relies on these numbers; text that only leaves the
    frame is made of the numbers of each call.

    parts: constant text, and (number, conversion, format specification).
    """

    __slots__ = ("parts",)

    def __init__(self, text: str, parts: Sequence[_Part]) -> None:
        super().__init__(text)
        self.parts = tuple(parts)

    @property
    def value(self) -> Any:
        for part in self.parts:
            if not isinstance(part, str):
                part[0].constant()
        return self._value

    def python_type(self, context: CaptureContext) -> type:
        return str

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        made: list[Recipe] = []
        for part in self.parts:
            if isinstance(part, str):
                made.append(ConstantRecipe(part))
                continue
            number, convert, spec = part
            converted = call_recipe(convert, reconstructor.recipe(number)) if convert else reconstructor.recipe(number)
            made.append(call_recipe(format, converted, ConstantRecipe(spec)))
        return call_recipe("".join, NewTuple(made)) if len(made) > 1 else made[0]


_Part = str | tuple[SymbolicNumber, Any, str]


def format_number(context: CaptureContext, value: SymbolicNumber, convert: Any, spec: str) -> NumberText | None:
    """`format(convert(value), spec)` of a number that has a value in this call; None for others. `convert`: None for
    the number itself."""
    if value.is_fixed or not value.is_known or value.kind not in NUMBERS:
        return None
    number = value.example
    shown = number if convert is None else convert(number)
    return NumberText(context.run_real(format, (shown, spec)), [(value, convert, spec)])


def joined(parts: Sequence[ConstantValue]) -> ConstantValue:
    """The text of these parts, one behind the other."""
    text = "".join([part._value if isinstance(part, NumberText) else part.value for part in parts])
    if not any(isinstance(part, NumberText) for part in parts):
        return ConstantValue(text)
    return NumberText(text, [one for part in parts for one in _parts_of(part)])


def _parts_of(text: ConstantValue) -> tuple[_Part, ...]:
    return text.parts if isinstance(text, NumberText) else (text.value,)


_REASON = "a tensor in a string"


class PendingTextValue(Value):
    """A str that capture does not make. made_at: the step of the outermost frame that makes it."""

    __slots__ = ("made_at",)
    cls = str

    def __init__(self, made_at: int) -> None:
        super().__init__()
        self.made_at = made_at

    def describe(self, context: CaptureContext) -> str:
        return _REASON

    def key(self, context: CaptureContext) -> Any:
        raise unsupported("format", _REASON)

    def truth(self, context: CaptureContext) -> bool:
        raise unsupported("format", _REASON)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild(_REASON, self.made_at)
