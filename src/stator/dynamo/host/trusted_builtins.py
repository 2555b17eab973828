"""Checks that the built-in functions are the original ones. The compiler itself is Python and relies on them; while a
program replaces them, the program runs eagerly. The capture of replaced built-ins is not decided here."""

from __future__ import annotations

import builtins

# replaceable functions, on which no part of the compiler relies
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
