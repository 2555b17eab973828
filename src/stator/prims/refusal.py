"""What a shape rule raises for arguments that eager refuses. It has no message: `graph/fake/refused_arguments.py` asks
eager for its error.
"""

from __future__ import annotations

from typing import Any


class Refused(RuntimeError):
    """Eager's operator raises for these sizes, dtypes or numbers."""


def refuse_if(condition: Any) -> None:
    """Raise Refused where the condition holds, for the given sizes if it is symbolic."""
    if condition:
        raise Refused("the operator does not take such arguments")
