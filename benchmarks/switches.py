"""Options of `stator.compile` as words of a command line."""

from __future__ import annotations

from collections.abc import Iterable

OFF = "no-"


def switched(words: Iterable[str]) -> dict[str, bool]:
    """`exact_rounding` switches that option on, `no-exact_rounding` off; what is not named stays as it is."""
    return {word.removeprefix(OFF): not word.startswith(OFF) for word in words}
