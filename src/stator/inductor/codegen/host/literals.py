"""Prints Python values as expressions for a printed program, whose globals are torch, inf, nan and device."""

from __future__ import annotations

import math
from typing import Any

import torch

_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)


class NotLiteral(Exception):
    """The value has no literal form."""


def literal(value: Any) -> str:
    """An expression for None, numbers, strings, torch's enumerations, devices, and lists, tuples and dicts of them."""
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    if kind is complex:
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if kind is torch.device:
        return f"device({str(value)!r})"
    if isinstance(value, _TORCH_VALUES):
        return str(value) if str(value).startswith("torch.") else f"torch.{value}"
    if kind is tuple or isinstance(value, torch.Size):
        return sequence_text("(", [literal(item) for item in value], ")")
    if kind is list:
        return sequence_text("[", [literal(item) for item in value], "]")
    if kind is dict:
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    raise NotLiteral(f"{kind.__name__} cannot be written as text")


def sequence_text(opening: str, items: list[str], closing: str) -> str:
    comma = "," if opening == "(" and len(items) == 1 else ""
    return f"{opening}{', '.join(items)}{comma}{closing}"
