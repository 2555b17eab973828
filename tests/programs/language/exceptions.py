"""Exceptions that programs make and hand out have the causes, contexts and arguments that the programs gave them."""

from __future__ import annotations

from typing import Any

import torch

WHOLE = False


def with_cause(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.__cause__ = KeyError(2)
    return x + 1, error


def with_context(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.__context__ = KeyError(2)
    error.__context__.__cause__ = None
    return x + 1, error


def in_a_circle(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.__context__ = KeyError(2)
    error.__context__.__cause__ = error
    return x + 1, error


def with_other_arguments(x: torch.Tensor) -> Any:
    error = ValueError(1)
    error.args = (5, 6)
    return x + 1, error, str(error), repr(error)


def caused_by_a_class(x: torch.Tensor) -> Any:
    try:
        raise ValueError(1) from KeyError
    except ValueError as error:
        return x + 1, type(error.__cause__).__name__


def linked_while_handling(x: torch.Tensor) -> Any:
    try:
        try:
            raise RuntimeError("a")
        except RuntimeError as error:
            raise ValueError("b") from error
    except ValueError as error:
        return x + 1, repr(error.__cause__), repr(error.__context__), error.__suppress_context__
