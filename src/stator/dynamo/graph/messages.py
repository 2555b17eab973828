"""Output of captured code: prints, logs and warnings, replayed behind the graph in order and from the user's lines."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stator.dynamo.bytecode import Position
from stator.dynamo.ir.reconstruct_ir import CallRecipe, ConstantRecipe, Effect, Recipe

if TYPE_CHECKING:
    from stator.dynamo.values.base import Reconstructor, Value


@dataclass(eq=False, slots=True)
class Message:
    """One call whose result nobody needs: `function(*arguments, **keywords)`, made where the outermost frame stood.

    Arguments are recipes, or values whose recipes are made when the graph ends.
    """

    function: Callable[..., Any]
    arguments: list[Value | Recipe]
    keywords: dict[str, Value | Recipe]
    position: Position

    def effect(self, reconstructor: Reconstructor) -> Effect:
        def recipe(argument: Value | Recipe) -> Recipe:
            return argument if isinstance(argument, Recipe) else reconstructor.recipe(argument)

        keywords = {name: recipe(argument) for name, argument in self.keywords.items()}
        call = CallRecipe(ConstantRecipe(self.function), list(map(recipe, self.arguments)), keywords)
        return Effect(call, self.position)


# ---- functions that compiled code calls ----


def warn_at(message: Any, category: type, filename: str, line: int, namespace: dict[str, Any]) -> None:
    """Warn as warnings.warn() does from this line of a module with these globals."""
    registry = namespace.setdefault("__warningregistry__", {})
    module = namespace.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, line, module, registry)


def log_at(
    logger: logging.Logger, level: int, filename: str, line: int, function: str, message: Any, *arguments: Any
) -> None:
    """Log as the logger does for a call on this line of this function."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, filename, line, message, arguments, None, function))


def error_filters() -> tuple[Any, ...]:
    """The warning filters that turn warnings into exceptions."""
    return tuple(entry for entry in warnings.filters if entry[0] == "error")
