"""Sizes and ints that likely change where other sizes have changed: they become symbols before they differ themselves.

Each such guess saves a version of its own for a size that changes later, such as the length of a cache behind the first
longer prompt. A wrong guess costs a symbol that stays one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import LocalSource, SizeSource, Source, StrideSource, is_member
from stator.dynamo.guards.tensor_guards import extents_of
from stator.shapes.environment import SMALLEST_SIZE

from .input_sizes import InputSizes

_SEVERAL = 2

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""The sizes and strides of a tensor."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """An attribute of an existing object that the frame changed: an int at `source`; or a tensor, with the layouts that
    the frame found and left. `source`: None if the frame made the first tensor, too. `once`: a truth or None
    on which the frame relies, and which it replaces in an object that it gives a tensor: no second call with this
    object is like the first."""

    source: Source | None
    old: Layout | None = None
    new: Layout | None = None
    once: bool = False


def related_sizes(sizes: InputSizes, guards: Sequence[Guard], changes: Iterable[StateChange]) -> set[Source]:
    """The sources of constants of a capture with these guards, which made these changes, that are to be symbols."""
    if sizes.dynamic is False or sizes.fixed:
        return set()
    changes = list(changes)
    found = {source for change in changes if not change.once for source in _of_state(change)}
    if sizes.dynamic is None:
        found.update(_of_tensors(sizes, guards, changes))
    return found - set(sizes.changed) - set(sizes.constants)


def _of_tensors(sizes: InputSizes, guards: Sequence[Guard], changes: Sequence[StateChange]) -> set[Source]:
    found = set(_equal_to_new(sizes, guards))
    for change in changes if not sizes.met else ():
        if change.new is not None:
            found.update(_of_growth(change.new[0], guards))
    first = [change.source for change in changes if change.once and change.source is not None]
    if not sizes.met and any(_of_arguments(first, guards)):
        found.update(_of_all(guards))
    if any(type(source) is SizeSource for source in sizes.changed):
        found.update(_of_arguments(sizes.lengths, guards))
    return found


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


def _of_state(change: StateChange) -> Iterator[Source]:
    """The number, or the sizes and strides, that the next call finds changed."""
    if change.source is None:
        return
    if change.old is None or change.new is None:
        yield change.source
        return
    (shape, stride), (new_shape, new_stride) = change.old, change.new
    if len(shape) == len(new_shape):
        yield from (SizeSource(change.source, dim) for dim, size in enumerate(shape) if size != new_shape[dim])
        follows = extents_of(new_shape, new_stride)
        for dim, number in enumerate(new_stride):
            if number != stride[dim] and follows[dim] is None and stride[dim] >= _SEVERAL:
                yield StrideSource(change.source, dim)


def _of_growth(shape: Sequence[int], guards: Sequence[Guard]) -> Iterator[Source]:
    """The sizes that a growing tensor likely got from an argument: the program that keeps such a tensor calls the frame
    with other lengths."""
    for guard in guards:
        if guard.kind is GuardKind.TENSOR and not is_member(guard.source):
            for dim, size in enumerate(guard.expected.shape):
                if type(size) is int and size in shape:
                    yield SizeSource(guard.source, dim)


def _of_all(guards: Sequence[Guard]) -> Iterator[Source]:
    """The sizes of all arguments. A frame that prepares the state of an argument, such as an empty cache, is called
    once for each such object, and the next object comes with other sizes."""
    for guard in guards:
        if guard.kind is GuardKind.TENSOR and not is_member(guard.source):
            for dim, size in enumerate(guard.expected.shape):
                if type(size) is int and size >= SMALLEST_SIZE:
                    yield SizeSource(guard.source, dim)


def _is_new(sizes: InputSizes, source: Source) -> bool:
    return type(source) is SizeSource and source not in sizes.changed and source.base not in sizes.met


def _of_arguments(sources: Iterable[Source], guards: Sequence[Guard]) -> Iterator[Source]:
    """The sources that belong to arguments of the frame. Those of classes, of modules, and of the instance whose method
    the frame is rarely change."""
    classes = {guard.source: guard.expected for guard in guards if guard.kind is GuardKind.TYPE}
    for source in sources:
        base: Any = source
        while hasattr(base, "base") and not issubclass(classes.get(base, object), nn.Module):
            base = base.base
        if type(base) is LocalSource and base != LocalSource("self"):
            yield source
