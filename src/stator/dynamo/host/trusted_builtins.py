"""Whether the built-in functions are those that the compiler was written for: it is Python, too, and a program may put
others in their place. It runs as it is meanwhile. Never here: what captured code makes of changed built-ins.
"""

from __future__ import annotations

import builtins

# what programs do replace, and no part of the compiler relies on
_FREE = (
    "print",
    "input",
    "open",
    "__import__",
    "breakpoint",
    "help",
    "_",
    "copyright",
    "credits",
    "license",
    "exit",
    "quit",
)
_ITEMS = tuple((name, value) for name, value in builtins.__dict__.items() if callable(value) and name not in _FREE)


def builtins_are_unchanged() -> bool:
    """Uses no built-in function itself."""
    now = builtins.__dict__
    for name, value in _ITEMS:  # noqa: SIM110
        if now.get(name) is not value:
            return False
    return True
