"""Functions that go through text as plain Python: `re.finditer`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stator.dynamo.interpreter.calling import fold, polyfill


def found_in(pattern: str | re.Pattern[str], string: str, flags: int | re.RegexFlag) -> list[re.Match[str]]:
    """All that `re.finditer` finds."""
    return list(re.finditer(pattern, string, flags))


fold(found_in)


@polyfill(re.finditer)
def finditer(pattern: str | re.Pattern[str], string: str, flags: int | re.RegexFlag = 0) -> Iterator[re.Match[str]]:
    matches = found_in(pattern, string, flags)  # which raises before the first item is asked for
    return iter_matches(matches)


def iter_matches(matches: list[re.Match[str]]) -> Iterator[re.Match[str]]:
    yield from matches
