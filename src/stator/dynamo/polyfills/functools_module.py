"""`functools` in plain Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from ..calling import polyfill

_NOTHING: Any = object


@polyfill(functools.reduce)
def reduce(function: Callable[[Any, Any], Any], iterable: Iterable[Any], initial: Any = _NOTHING) -> Any:
    iterator = iter(iterable)
    if initial is _NOTHING:
        try:
            total = next(iterator)
        except StopIteration:
            raise TypeError("reduce() of empty iterable with no initial value") from None
    else:
        total = initial
    for item in iterator:
        total = function(total, item)
    return total
