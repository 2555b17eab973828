"""A boolean computed from tensor data that a guard computes again: the steps as data, and their execution.
input_facts.py finds such parts of a captured graph. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DataRef:
    """A tensor among the arguments of a step, by number: the inputs first, then the results of the steps."""

    number: int


@dataclass(frozen=True, slots=True)
class DataGuardStep:
    """One operator. `args` and `kwargs` hold DataRefs, also inside of tuples, lists and slices."""

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class DataFact:
    """Called with the inputs: the truth of the last step's result, or None if a step fails. Facts with equal steps are
    equal."""

    __slots__ = ("__name__", "_text", "steps")

    def __init__(self, steps: list[DataGuardStep]) -> None:
        self.steps = steps
        self._text = "; ".join(f"{step.name}{step.args}{step.kwargs}" for step in steps)
        self.__name__ = " of ".join(step.name for step in reversed(steps[-3:]))

    def __call__(self, *tensors: Any) -> bool | None:
        values = list(tensors)
        try:
            for step in self.steps:
                named = {name: _filled(value, values) for name, value in step.kwargs.items()}
                values.append(step.function(*[_filled(value, values) for value in step.args], **named))
            return bool(values[-1])
        except Exception:
            return None

    def __eq__(self, other: object) -> bool:
        return type(other) is DataFact and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def _filled(value: Any, values: list[Any]) -> Any:
    kind = type(value)
    if kind is DataRef:
        return values[value.number]
    if kind is tuple or kind is list:
        return kind([_filled(item, values) for item in value])
    if kind is slice:
        return slice(*[_filled(item, values) for item in (value.start, value.stop, value.step)])
    return value
