"""Translates the error of an operation on fake tensors into the reason for a graph break."""

from __future__ import annotations

from typing import Any

from stator.base.errors import Unsupported, UsageError
from stator.dynamo.values.base import unsupported


def why_it_failed(error: Exception, target: Any) -> Unsupported:
    """The Unsupported error for an operation, or its name, that raised `error`."""
    if isinstance(error, UsageError):
        return unsupported("operator-rule", str(error))
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if _NO_DATA in str(error):
        return unsupported("data-dependent-value", f"{name} looks at the data of a tensor")
    if refuses_symbols(error):
        return unsupported("data-dependent-value", f"{name} has to know sizes known in the run only")
    return unsupported("torch-error", f"{name} failed on tensors without data: {type(error).__name__}: {error}")


def refuses_symbols(error: Exception) -> bool:
    """Whether the error is one of C++ code that takes no symbolic sizes."""
    return any(text in str(error) for text in _NEEDS_NUMBERS)


_NEEDS_NUMBERS = ("expected to contain only concrete integers", "on tensor with symbolic sizes/strides")
_NO_DATA = "its data is not allocated yet"  # message of C++ code that reads the data of a tensor
