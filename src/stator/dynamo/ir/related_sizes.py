"""Sizes and ints that likely change where other sizes have changed: they become symbols before they differ themselves.

Each such guess saves a version of its own for a size that changes later, such as the length of a cache behind the first
longer prompt. A wrong guess costs a symbol that stays one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import LocalSource, SizeSource, Source, is_member

from .input_sizes import InputSizes

_SEVERAL = 2


def related_sizes(sizes: InputSizes, guards: Sequence[Guard]) -> set[Source]:
    """The sources of constants of a capture with these guards that are to be symbols."""
    if sizes.dynamic is not None or sizes.fixed:
        return set()
    found = set(_equal_to_new(sizes, guards))
    if any(type(source) is SizeSource for source in sizes.changed):
        found.update(_of_arguments(sizes.lengths, guards))
    return found - set(sizes.changed) - set(sizes.constants)


def _equal_to_new(sizes: InputSizes, guards: Sequence[Guard]) -> Iterator[Source]:
    """The sizes that have not changed, but are equal to a size of a tensor that earlier versions did not meet, while
    the program relies on one value of that size: that of a mask, say, as long as a new cache."""
    new = [symbol for symbol, source in sizes.sources.items() if _is_new(sizes, source)]
    pinned = {sizes.environment.simplify(symbol).constant for symbol in new}
    for guard in guards:
        if guard.kind is not GuardKind.TENSOR or is_member(guard.source):
            continue
        for dim, size in enumerate(guard.expected.shape):
            if type(size) is int and size >= _SEVERAL and size in pinned:
                yield SizeSource(guard.source, dim)


def _is_new(sizes: InputSizes, source: Source) -> bool:
    return type(source) is SizeSource and source not in sizes.changed and source.base not in sizes.met


def _of_arguments(lengths: Iterable[Source], guards: Sequence[Guard]) -> Iterator[Source]:
    """The numbers that belong to arguments of the frame. Those of classes, of modules, and of the instance whose method
    the frame is rarely change."""
    classes = {guard.source: guard.expected for guard in guards if guard.kind is GuardKind.TYPE}
    for length in lengths:
        base: Any = length
        while hasattr(base, "base") and not issubclass(classes.get(base, object), nn.Module):
            base = base.base
        if type(base) is LocalSource and base != LocalSource("self"):
            yield length
