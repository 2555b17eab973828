"""Functions that draw random numbers of NumPy's in a way that nothing can be drawn ahead for, and cannot reach tensors:
masks for training, samples of positions. They run as they are: following them would leave many small graphs, or none.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, NoneType
from typing import Any

from .numpy_boundary import ARRAY, numpy

# what takes arrays, shuffles in place or gives Python's numbers
_DRAWING = frozenset({"choice", "randint", "permutation", "permuted", "shuffle", "integers", "multivariate_normal"})
_PLAIN = frozenset({int, float, bool, str, NoneType, range, ARRAY})
_TORCH = "torch"


def draws_apart(code: CodeType, namespace: Mapping[str, Any], arguments: Iterable[type]) -> bool:
    """Whether the code names one of these functions of numpy.random, with these globals, and has nothing at hand but
    NumPy, numbers, text and arrays. `arguments`: types of the values it is called with."""
    if _DRAWING.isdisjoint(code.co_names) or "random" not in code.co_names or numpy is None or code.co_freevars:
        return False
    asked = {name for part in _parts(code) for name in _global_names(part)}
    held = [namespace[name] for name in asked if name in namespace]
    alone = all(one is numpy or type(one) in _PLAIN for one in held) and _TORCH not in code.co_names
    return alone and any(one is numpy for one in held) and _PLAIN.issuperset(arguments)


def types_of(values: Iterable[Any]) -> Iterator[type]:
    """The types of values, and of what tuples among them hold."""
    for value in values:
        if type(value) is tuple:
            yield from types_of(value)
        else:
            yield type(value)


def _parts(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _parts(constant)


def _global_names(code: CodeType) -> Iterator[str]:
    return (one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
