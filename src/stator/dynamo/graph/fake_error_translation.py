"""Why an operation could not be run on fake tensors: the error that makes the graph break, from what was raised."""

from __future__ import annotations

from typing import Any

from stator.base.errors import Unsupported, UsageError
from stator.dynamo.values.base import unsupported


def why_it_failed(error: Exception, target: Any) -> Unsupported:
    """For an operation, by its name or itself, what to raise in place of what running it raised."""
    if isinstance(error, UsageError):
        return unsupported("operator-rule", str(error))
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    if _NO_DATA in str(error):
        return unsupported("data-dependent-value", f"{name} looks at the data of a tensor")
    if _NEEDS_NUMBERS in str(error):
        return unsupported("data-dependent-value", f"{name} has to know sizes known in the run only")
    return unsupported("torch-error", f"{name} failed on tensors without data: {type(error).__name__}: {error}")


_NEEDS_NUMBERS = "expected to contain only concrete integers"  # what C++ says that is not written for symbolic sizes
_NO_DATA = "its data is not allocated yet"  # what C++ that reads numbers says of a tensor without data
