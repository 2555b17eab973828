"""Python numbers, sizes of tensors, parameters and buffers that differ between the calls of a frame, by source. Failed
guards reveal them. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

from stator.base.errors import UserPlace
from stator.dynamo.guards.data_guards import DataFact
from stator.dynamo.guards.guard import FreeSize, Guard, GuardKind
from stator.dynamo.guards.guard_tree import build_guard_tree
from stator.dynamo.guards.source import (
    CallSource,
    ConstantSource,
    SizeSource,
    Source,
    StrideSource,
    is_buffer,
    length_source,
)
from stator.dynamo.ir.resume import closure_of
from stator.shapes.conditions import only_value

OFTEN = 2  # changes of contents after which no guard relies on them


def contents(tensor: Any) -> tuple[int, ...]:
    """The numbers in a tensor, flat, for comparison by a guard on its contents."""
    return tuple(tensor.flatten().tolist())


def contents_source(source: Source) -> Source:
    return CallSource(contents, (source,))


def contents_change(changing: Mapping[Source, int], source: Source) -> bool:
    """Whether the program is to read the numbers in a tensor anew. Those of inputs change like sizes; those of buffers
    are settings more often."""
    return changing.get(contents_source(source), 0) >= (OFTEN if is_buffer(source) else 1)


def number_at(tensor: Any, *place: int) -> int:
    """One number in a tensor, for comparison by a guard on it alone."""
    return tensor[place].item()  # type: ignore[no-any-return]


def number_source(source: Source, place: tuple[int, ...]) -> Source:
    return CallSource(number_at, (source, *[ConstantSource(str(at), at) for at in place]))


def memory_offset(tensor: Any) -> int:
    return tensor.storage_offset()  # type: ignore[no-any-return]


def is_memory_offset(source: Source) -> bool:
    return type(source) is CallSource and source.function is memory_offset


def is_on_contents(source: Source) -> bool:
    """Whether a source is what a tensor's contents tell."""
    return type(source) is CallSource and (source.function is contents or type(source.function) is DataFact)


def changed_numbers(
    guards: Sequence[Guard], failure: tuple[Any, ...], function: FunctionType, values: tuple[object, ...]
) -> dict[Source, Any]:
    """The sources at which a version with failed guards relied on another number of equal type, or on another length
    of a container, and what it relied on; empty if the version was made for other objects. `failure` is the result of
    GuardTree.explain."""
    if failure[0] < 0 or guards[failure[0]].kind in _OF_OTHER_OBJECTS:
        return {}
    relied_on = [*guards, *(equation for guard in guards for equation in _equations(guard))]
    return {
        length_source(guard.source) if guard.kind is GuardKind.LENGTH else _place(guard.source): guard.expected
        for guard in relied_on
        if _is_on_number(guard) and _fails(guard, function, values)
    }


def places_of_changed_contents(
    guards: Sequence[Guard], function: FunctionType, values: tuple[object, ...]
) -> set[UserPlace]:
    """The lines that relied on other contents of tensors."""
    relying = [guard for guard in guards if guard.kind is GuardKind.EQUALS and is_on_contents(guard.source)]
    return {guard.place for guard in relying if guard.place is not None and _fails(guard, function, values)}


def changed_members(
    guards: Sequence[Guard], failure: tuple[Any, ...], function: FunctionType, values: tuple[object, ...]
) -> set[Source]:
    """The sources at which a version relied on other parameters and buffers, if such a guard failed."""
    if failure[0] >= 0 and not guards[failure[0]].movable:
        return set()
    return {guard.source for guard in guards if guard.movable and _holds_another(guard, function, values)}


# tells the dimensions at which sizes, and strides, of a tensor differ from those of a guard; entry.py registers it
compare_layouts: list[Callable[[Any, object], tuple[list[int], list[int]]]] = []


def changed_sizes(
    guards: Sequence[Guard], failure: tuple[Any, ...], function: FunctionType, values: tuple[object, ...], own: bool
) -> set[Source]:
    """The sources of sizes and strides that differ from those that a version with failed guards relied on, and of its
    symbols; empty if the version was made for other objects. Parameters and buffers count as objects, but for buffers
    of the version's own module (`own`), such as a buffer to which each call appends."""
    failed = guards[failure[0]] if failure[0] >= 0 else None
    if failed is None or (failed.kind in (GuardKind.IS, GuardKind.CODE) and not (own and is_buffer(failed.source))):
        return set()
    fixed = {source for source in members(guards) if not (own and is_buffer(source))}
    found: set[Source] = set()
    for guard in guards:
        if guard.kind is not GuardKind.TENSOR or guard.source in fixed:
            continue
        shape = guard.expected.shape
        found.update(SizeSource(guard.source, dim) for dim, size in enumerate(shape) if isinstance(size, FreeSize))
        why = _tree([guard], function).explain(values, function)
        if why is not None and len(why) > 1:
            sizes, strides = compare_layouts[0](guard.expected, why[1])
            found.update(SizeSource(guard.source, dim) for dim in sizes)
            found.update(StrideSource(guard.source, dim) for dim in strides)
    return found


def tensors(guards: Sequence[Guard]) -> set[Source]:
    """The sources of all tensors that a version relied on."""
    return {guard.source for guard in guards if guard.kind is GuardKind.TENSOR}


def members(guards: Sequence[Guard]) -> set[Source]:
    """The sources of all parameters and buffers that a version relied on."""
    return {guard.source for guard in guards if guard.movable}


def _tree(guards: Sequence[Guard], function: FunctionType) -> Any:
    return build_guard_tree(guards, function, closure=closure_of(function.__code__))


def _holds_another(guard: Guard, function: FunctionType, values: tuple[object, ...]) -> bool:
    expected = guard.expected.held()
    return expected is None or not _tree([replace(guard, expected=expected)], function).check(values, function)


_OF_OTHER_OBJECTS = (GuardKind.IS, GuardKind.TYPE, GuardKind.CODE)


def _equations(guard: Guard) -> Iterator[Guard]:
    """Guards on ints of the program that are symbols, of which the facts of a version leave one value."""
    if guard.kind is not GuardKind.SIZES:
        return
    sources = dict(zip(guard.expected.symbols, guard.expected.sources, strict=True))
    for fact in guard.expected.facts:
        symbols = fact.condition.symbols
        source = sources.get(next(iter(symbols))) if len(symbols) == 1 else None
        if source is None or isinstance(source, SizeSource | StrideSource):
            continue
        number = only_value(fact.condition)
        if number is not None:
            yield Guard(source, GuardKind.EQUALS, number)


def _is_on_number(guard: Guard) -> bool:
    if guard.kind is GuardKind.LENGTH:
        return True
    if guard.kind is not GuardKind.EQUALS:
        return False
    if is_on_contents(guard.source):
        return True
    if type(guard.expected) not in (int, float):
        return False
    source = _place(guard.source)
    return type(source) is not CallSource or source.function in (memory_offset, number_at)


def _place(source: Source) -> Source:
    """The source of the number that a guard compares: NumPy numbers are converted first."""
    converted = type(source) is CallSource and source.function in (int, float) and len(source.args) == 1
    return source.args[0] if converted else source  # type: ignore[attr-defined]


def _fails(guard: Guard, function: FunctionType, values: tuple[object, ...]) -> bool:
    failure = _tree([guard], function).explain(values, function)
    wanted = (list, tuple) if guard.kind is GuardKind.LENGTH else (type(guard.expected),)
    return failure is not None and len(failure) > 1 and type(failure[1]) in wanted
