"""`itertools` as generators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..calling import polyfill


@polyfill(itertools.chain)
def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


@polyfill(itertools.chain.from_iterable)
def chain_from_iterable(iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


@polyfill(itertools.product)
def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [()]
    for pool in [tuple(iterable) for iterable in iterables] * repeat:
        rows = [(*row, item) for row in rows for item in pool]
    yield from rows


@polyfill(itertools.accumulate)
def accumulate(
    iterable: Iterable[Any], func: Callable[[Any, Any], Any] | None = None, *, initial: Any = None
) -> Iterator[Any]:
    iterator = iter(iterable)
    total = initial
    if initial is None:
        try:
            total = next(iterator)
        except StopIteration:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


@polyfill(itertools.islice)
def islice(iterable: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    part = slice(*bounds)
    start, stop, step = part.start or 0, part.stop, 1 if part.step is None else part.step
    if start < 0 or (stop is not None and stop < 0) or step < 1:
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    iterator = iter(iterable)
    at, wanted = 0, start
    while stop is None or at < stop:
        try:
            item = next(iterator)
        except StopIteration:
            return
        if at == wanted:
            yield item
            wanted += step
        at += 1


@polyfill(itertools.count)
def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


@polyfill(itertools.cycle)
def cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    saved = []
    for item in iterable:
        yield item
        saved.append(item)
    while saved:
        yield from saved


@polyfill(itertools.repeat)
def repeat(item: Any, times: int | None = None) -> Iterator[Any]:
    if times is None:
        while True:
            yield item
    for _ in range(times):
        yield item


@polyfill(itertools.zip_longest)
def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[tuple[Any, ...]]:
    pools = [list(iterable) for iterable in iterables]
    longest = max([len(pool) for pool in pools]) if pools else 0
    for at in range(longest):
        yield tuple([pool[at] if at < len(pool) else fillvalue for pool in pools])


def _chosen(pool: tuple[Any, ...], positions: Iterable[int]) -> tuple[Any, ...]:
    return tuple([pool[position] for position in positions])


@polyfill(itertools.combinations)
def combinations(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    for positions in permutations(range(len(pool)), r):
        if list(positions) == sorted(positions):
            yield _chosen(pool, positions)


@polyfill(itertools.combinations_with_replacement)
def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    for positions in product(range(len(pool)), repeat=r):
        if list(positions) == sorted(positions):
            yield _chosen(pool, positions)


@polyfill(itertools.permutations)
def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    length = len(pool) if r is None else r
    for positions in product(range(len(pool)), repeat=length):
        if len(set(positions)) == length:
            yield _chosen(pool, positions)


@polyfill(itertools.starmap)
def starmap(function: Callable[..., Any], iterable: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for args in iterable:
        yield function(*args)


@polyfill(itertools.pairwise)
def pairwise(iterable: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    first = True
    previous = None
    for item in iterable:
        if not first:
            yield previous, item
        first, previous = False, item


@polyfill(itertools.takewhile)
def takewhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not predicate(item):
            return
        yield item


@polyfill(itertools.dropwhile)
def dropwhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    dropping = True
    for item in iterable:
        if dropping and predicate(item):
            continue
        dropping = False
        yield item


@polyfill(itertools.filterfalse)
def filterfalse(predicate: Callable[[Any], Any] | None, iterable: Iterable[Any]) -> Iterator[Any]:
    for item in iterable:
        if not (item if predicate is None else predicate(item)):
            yield item


@polyfill(itertools.compress)
def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    for item, selected in zip(data, selectors):  # noqa: B905 - the shorter one ends it
        if selected:
            yield item


@polyfill(itertools.groupby)
def groupby(iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, Iterator[Any]]]:
    source = iter(iterable)
    turn, started, waiting = 0, False, False  # number of the group; is there a key; was its item not given yet
    item: Any = None
    now: Any = None

    def step() -> bool:
        nonlocal started, waiting, item, now
        for taken in source:
            now = taken if key is None else key(taken)
            item, started, waiting = taken, True, True
            return True
        return False

    def members(mine: int, wanted: Any) -> Iterator[Any]:
        nonlocal waiting
        while mine == turn and (waiting or step()) and wanted == now:
            waiting = False
            yield item

    target, first = None, True
    while True:
        turn += 1  # the groups share the source: the one before is at its end from here on
        while not started or (not first and target == now):
            if not step():
                return
        target, first = now, False
        yield now, members(turn, target)


@polyfill(itertools.tee)
def tee(iterable: Iterable[Any], n: int = 2) -> tuple[Iterator[Any], ...]:
    items = list(iterable)
    return tuple([iter(list(items)) for _ in range(n)])
