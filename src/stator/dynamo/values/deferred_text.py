"""Text made of numbers that change between calls. Most such text is the message of an error that is not raised: only a
use of the text makes constants of its numbers.

Also text that shows a tensor, such as the message of a check that may never fail. If the program uses such text, or it
leaves the graph, the graph ends ahead of the step that made it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, NewTuple, Recipe, call_recipe

from .base import CaptureContext, NotConstant, Reconstructor, Value, cannot_rebuild, unsupported
from .constants import ConstantValue
from .containers.sequences import ListValue, SequenceValue, TupleValue
from .symbolic_numbers import NUMBERS, SymbolicNumber, example_of


class NumberText(ConstantValue):
    """A string with the numbers of this call in it. Reading `value` relies on these numbers; text that only leaves the
    frame is made of the numbers of each call.

    parts: constant text, and calls of functions of text.
    """

    __slots__ = ("parts",)

    def __init__(self, text: str, parts: Sequence[_Part]) -> None:
        super().__init__(text)
        self.parts = tuple(parts)

    @property
    def value(self) -> Any:
        for part in self.parts:
            if not isinstance(part, str):
                for number in part.numbers:
                    number.constant()
        return self._value

    def python_type(self, context: CaptureContext) -> type:
        return str

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        made: list[Recipe] = [
            ConstantRecipe(part)
            if isinstance(part, str)
            else call_recipe(part.function, *map(reconstructor.recipe, part.args))
            for part in self.parts
        ]
        return call_recipe("".join, NewTuple(made)) if len(made) > 1 else made[0]


@dataclass(frozen=True, slots=True)
class _Call:
    """`function(*args)`, which shows numbers that change between calls."""

    function: Callable[..., str]
    args: list[Value]
    numbers: list[SymbolicNumber]


_Part = str | _Call
_OF_TEXT = (str, repr, ascii, format, str.format, str.join, operator.mod, operator.add)
_OPERATORS = (operator.mod, operator.add)
_SHOWN = (str, int, float, bool, type(None), torch.dtype, torch.device)  # their text follows from their values
_SEQUENCES = (tuple, list, torch.Size)


def number_text(context: CaptureContext, function: Any, args: Sequence[Value]) -> NumberText | None:
    """The text that a function makes of constants, and of numbers that have values in this call. None for other
    functions and arguments, and if no such number is among them."""
    if not any(function is one for one in _OF_TEXT):
        return None
    if function in _OPERATORS and not (args and args[0].python_type(context) is str):
        return None
    numbers: list[SymbolicNumber] = []
    try:
        kept = [_kept(context, arg, numbers) for arg in args]
    except NotConstant:
        return None
    if not numbers:
        return None
    text = context.run_real(function, tuple(map(_example, kept)))
    return NumberText(text, [_Call(function, kept, numbers)])


def _kept(context: CaptureContext, value: Value, numbers: list[SymbolicNumber]) -> Value:
    """The argument as the call of the function sees it: lists may change later. Adds its numbers."""
    if isinstance(value, NumberText):
        numbers += [number for part in value.parts if isinstance(part, _Call) for number in part.numbers]
        return value
    if type(value) is SymbolicNumber:
        if value.is_fixed:
            return ConstantValue(value.constant())
        if not value.is_known or value.kind not in NUMBERS:
            raise NotConstant
        numbers.append(value)
        return value
    if isinstance(value, ConstantValue) and type(value.value) in _SHOWN:
        return value
    if isinstance(value, SequenceValue) and value.cls in _SEQUENCES:
        items = [_kept(context, item, numbers) for item in context.iterate(value)]
        return ListValue(items) if value.cls is list else TupleValue(items, cls=value.cls)
    raise NotConstant


def _example(value: Any) -> Any:
    if isinstance(value, NumberText):
        return value._value
    if isinstance(value, SequenceValue):
        return value.cls(map(_example, value.items))
    return example_of(value)


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
