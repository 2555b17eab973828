"""Compares compiled expressions of Python with eager's: values, their types, and errors."""

from __future__ import annotations

from typing import Any

import torch

import stator


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [type(value), *map(shown, value)]
    return repr(value)


def outcome(program: Any) -> Any:
    try:
        return shown(program(torch.arange(3.0)))
    except stator.Unsupported:
        raise
    except Exception as error:
        return type(error), str(error)


def check_expression(text: str, names: dict[str, Any]) -> None:
    """Compile the expression as a part of one graph, and compare two calls. x: a tensor of three numbers."""
    program = eval(f"lambda x: (x * 2, {text})", names)
    compiled = stator.compile(program, backend="eager", fullgraph=True)
    assert outcome(compiled) == outcome(compiled) == outcome(program)
