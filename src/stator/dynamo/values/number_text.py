"""Text made of numbers that change between calls. Most such text is the message of an error that is not raised: only a
use of the text makes constants of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Recipe

from .constants import ConstantValue
from .symbolic_numbers import FromInput, FromSizes, SymbolicNumber

if TYPE_CHECKING:
    from .base import CaptureContext, Reconstructor


class NumberText(ConstantValue):
    """A string with the numbers of this call in it. Reading `value` relies on these numbers."""

    __slots__ = ("numbers",)

    def __init__(self, text: str, numbers: Sequence[SymbolicNumber]) -> None:
        super().__init__(text)
        self.numbers = tuple(numbers)

    @property
    def value(self) -> Any:
        for number in self.numbers:
            number.constant()
        return self._value

    def python_type(self, context: CaptureContext) -> type:
        return str

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.value)


def format_number(context: CaptureContext, value: SymbolicNumber, convert: Any, spec: str) -> NumberText | None:
    """`format(convert(value), spec)` of a number that has a value in this call; None for others."""
    origin = value.origin
    if type(origin) is FromSizes and origin.has_example:
        number = value.kind(origin.number.node.hint)
    elif type(origin) is FromInput and not origin.fixed and type(origin.example) in (int, float):
        number = origin.example
    else:
        return None
    return NumberText(context.run_real(lambda it, how: format(convert(it), how), (number, spec)), [value])


def joined(parts: Sequence[ConstantValue]) -> ConstantValue:
    """The text of these parts, one behind the other."""
    numbers = [number for part in parts if isinstance(part, NumberText) for number in part.numbers]
    text = "".join([part._value if isinstance(part, NumberText) else part.value for part in parts])
    return NumberText(text, numbers) if numbers else ConstantValue(text)
