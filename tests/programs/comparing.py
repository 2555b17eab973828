"""Runs a program of a tensor and a log, and writes down everything it did, to be compared with ==."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Callable
from typing import Any

import torch


def plain(value: Any) -> Any:
    """The value with tensors written out, so that == compares everything exactly."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.requires_grad, value.tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(plain, value))
    return value


def outcome(function: Callable[..., Any], x: torch.Tensor, collected: bool = False) -> Any:
    """Result or exception, log, output, what became of the input, and the grad mode it left.

    `collected`: the log is read when cycles that the program left have been collected, and what they held has been
    closed.
    """
    log: list[Any] = []
    x = x.clone()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            result = function(x, log)
        except Exception as error:
            result = (type(error), str(error))
    mode = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    if collected:
        gc.collect()
    return plain((result, log, x)), output.getvalue(), mode
