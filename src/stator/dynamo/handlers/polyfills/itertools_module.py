"""`itertools`, and `iter` of a function, as generators. As in C, each function makes the iterators of its arguments
when it is called."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stator.dynamo.interpreter.calling import fold, polyfill, standing_for


@polyfill(itertools.chain)
def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    return _chained(iter(iterables))


@polyfill(itertools.chain.from_iterable)
def chain_from_iterable(iterables: Iterable[Iterable[Any]], /) -> Iterator[Any]:
    return _chained(iter(iterables))


def _chained(iterables: Iterator[Iterable[Any]]) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


@polyfill(itertools.product)
def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[tuple[Any, ...]]:
    repeat = operator.index(repeat)
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    return _product([tuple(iterable) for iterable in iterables] * repeat)


def _product(pools: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [()]
    for pool in pools:
        rows = [(*row, item) for row in rows for item in pool]
    yield from rows


@polyfill(itertools.accumulate)
def accumulate(
    iterable: Iterable[Any], func: Callable[[Any, Any], Any] | None = None, *, initial: Any = None
) -> Iterator[Any]:
    return _accumulated(iter(iterable), func, initial)


def _accumulated(iterator: Iterator[Any], func: Callable[[Any, Any], Any] | None, total: Any) -> Iterator[Any]:
    if total is None:
        try:
            total = next(iterator)
        except StopIteration:
            return
    yield total
    for item in iterator:
        total = total + item if func is None else func(total, item)
        yield total


@polyfill(itertools.islice)
def islice(iterable: Iterable[Any], /, *bounds: int | None) -> Iterator[Any]:
    if not bounds:
        raise TypeError("islice expected at least 2 arguments, got 1")
    if len(bounds) > 3:
        raise TypeError(f"islice expected at most 4 arguments, got {len(bounds) + 1}")
    part = slice(*bounds)
    start, stop, step = part.start or 0, part.stop, 1 if part.step is None else part.step
    if stop is not None and (not hasattr(type(stop), "__index__") or stop == -1):
        raise ValueError("Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if not hasattr(type(start), "__index__") or start < 0 or (stop is not None and stop < 0):
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if not hasattr(type(step), "__index__") or step < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return _sliced(iter(iterable), start, stop, step)


def _sliced(iterator: Iterator[Any], wanted: int, stop: int | None, step: int) -> Iterator[Any]:
    at = 0
    while True:
        try:
            while at < wanted:
                next(iterator)
                at += 1
            if stop is not None and at >= stop:
                return
            item = next(iterator)
        except StopIteration as stop:
            if stop.args or type(stop) is not StopIteration:  # carries a value, or is of a subclass
                raise
            return
        at += 1
        wanted += step
        if stop is not None and wanted > stop:
            wanted = stop
        yield item


@polyfill(itertools.count)
def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    for number in (start, step):
        if not isinstance(number, complex) and not any(hasattr(type(number), name) for name in _OF_NUMBERS):
            raise TypeError("a number is required")
    return _counted(start, step)


_OF_NUMBERS = ("__index__", "__float__", "__int__")


def _counted(start: Any, step: Any) -> Iterator[Any]:
    while True:
        yield start
        start = start + step


@polyfill(itertools.cycle)
def cycle(iterable: Iterable[Any], /) -> Iterator[Any]:
    return _cycled(iter(iterable))


def _cycled(iterator: Iterator[Any]) -> Iterator[Any]:
    saved = []
    for item in iterator:
        yield item
        saved.append(item)
    while saved:
        yield from saved


_WITHOUT_END = object()


@polyfill(itertools.repeat)
def repeat(object: Any, times: int = _WITHOUT_END) -> Iterator[Any]:  # type: ignore[assignment]
    return _repeated(object) if times is _WITHOUT_END else _repeated_times(object, operator.index(times))


def _repeated(object: Any) -> Iterator[Any]:
    while True:
        yield object


def _repeated_times(object: Any, times: int) -> Iterator[Any]:
    for _ in range(times):
        yield object


@polyfill(itertools.zip_longest)
def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[tuple[Any, ...]]:
    return _zipped_longest([iter(iterable) for iterable in iterables], fillvalue)


def _zipped_longest(iterators: list[Iterator[Any]], fillvalue: Any) -> Iterator[tuple[Any, ...]]:
    ended = [False] * len(iterators)
    while not all(ended):
        row = []
        for at, iterator in enumerate(iterators):
            item = fillvalue
            if not ended[at]:
                try:
                    item = next(iterator)
                except StopIteration:
                    ended[at] = True
                    if all(ended):
                        return
            row.append(item)
        yield tuple(row)


def chosen_positions(kind: Any, size: int, r: int | None) -> tuple[tuple[int, ...], ...]:
    """Positions in a pool of `size` items. Runs during capture, errors included."""
    return tuple(kind(range(size), r))


fold(chosen_positions)


@polyfill(itertools.combinations)
def combinations(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    return _chosen(pool, chosen_positions(itertools.combinations, len(pool), r))


@polyfill(itertools.combinations_with_replacement)
def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    return _chosen(pool, chosen_positions(itertools.combinations_with_replacement, len(pool), r))


@polyfill(itertools.permutations)
def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    return _chosen(pool, chosen_positions(itertools.permutations, len(pool), r))


def _chosen(pool: tuple[Any, ...], rows: tuple[tuple[int, ...], ...]) -> Iterator[tuple[Any, ...]]:
    for positions in rows:
        yield tuple([pool[position] for position in positions])


@polyfill(itertools.pairwise)
def pairwise(iterable: Iterable[Any], /) -> Iterator[tuple[Any, Any]]:
    return _pairs(iter(iterable))


def _pairs(iterator: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    first = True
    previous = None
    for item in iterator:
        if not first:
            yield previous, item
        first, previous = False, item


@polyfill(itertools.tee)
def tee(iterable: Iterable[Any], n: int = 2, /) -> tuple[Iterator[Any], ...]:
    n = operator.index(n)
    if n < 0:
        raise ValueError("n must be >= 0")
    source, taken = iter(iterable), []  # type: ignore[var-annotated]
    if type(source) is itertools._tee:  # type: ignore[attr-defined]
        copy.copy(source)  # ends the graph, because tee() copies such an iterator and gives the iterator itself first
    return tuple([standing_for(itertools._tee, _shared(source, taken)) for _ in range(n)])  # type: ignore[attr-defined]


def _shared(source: Iterator[Any], taken: list[Any]) -> Iterator[Any]:
    at = 0
    while True:
        if at == len(taken):
            try:
                item = next(source)
            except StopIteration:
                return
            taken.append(item)
        yield taken[at]
        at += 1


@polyfill(itertools.groupby)
def groupby(iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> Iterator[tuple[Any, Iterator[Any]]]:
    return _groups(iter(iterable), key)


def _groups(source: Iterator[Any], key: Callable[[Any], Any] | None) -> Iterator[tuple[Any, Iterator[Any]]]:
    turn, started, waiting = 0, False, False  # the group's number; is there a key; is its item still to be yielded
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
        while mine == turn and (waiting or step()) and (wanted is now or wanted == now):
            waiting = False
            yield item

    target, first = None, True
    while True:
        turn += 1  # ends the group before, which shares the source
        while not started or (not first and (target is now or target == now)):
            if not step():
                return
        target, first = now, False
        yield now, standing_for(itertools._grouper, members(turn, target))  # type: ignore[attr-defined]


_CALLING = type(iter(int, 1))
try:
    iter(None, None)  # type: ignore[call-overload]
except TypeError as error:
    _NOT_CALLABLE = str(error)  # versions of CPython say it in other words


def called_until(function: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    """`iter(function, sentinel)`."""
    if not callable(function):
        raise TypeError(_NOT_CALLABLE)
    return standing_for(_CALLING, _called_until(function, sentinel))


def _called_until(function: Callable[[], Any], sentinel: Any) -> Iterator[Any]:
    while True:
        try:
            item = function()
        except StopIteration:
            return
        if sentinel is item or sentinel == item:
            return
        yield item
