"""Which variables may still be read."""

from __future__ import annotations

from typing import Any

from stator.dynamo.bytecode import always_bound, decode, live_locals


def loop(items: list[Any], scale: int, unused: int) -> Any:
    total = 0
    for item in items:
        late = item * scale
        total = total + late
    try:
        result = total / scale
    except ZeroDivisionError:
        result = items
    return result


def live_at_line(offset: int) -> frozenset[str]:
    instructions = decode(loop.__code__)
    line = loop.__code__.co_firstlineno + offset
    return live_locals(instructions, next(i.index for i in instructions if i.line == line))


def test_what_a_loop_reads_again_is_live_in_it() -> None:
    assert live_at_line(3) == {"items", "scale", "item", "total"}
    assert live_at_line(4) == {"items", "scale", "total", "late"}


def test_what_only_a_handler_reads_is_live_in_its_region() -> None:
    assert live_at_line(6) == {"items", "scale", "total"}


def test_what_is_assigned_first_is_not_live() -> None:
    assert live_at_line(1) == {"items", "scale"}
    assert live_at_line(9) == {"result"}


def bound_at(function: Any, line: int, *parameters: str) -> frozenset[str]:
    """What is bound on every path to the first instruction of a line, counted from the function's first."""
    instructions = decode(function.__code__)
    at = next(i.index for i in instructions if i.line == function.__code__.co_firstlineno + line)
    return always_bound(instructions, at, frozenset(parameters))


def paths(a: Any, b: Any) -> Any:
    c = a
    if b:
        d = c
        del a
    else:
        d = e = b  # noqa: F841
    print(d)
    try:
        f = int(c)
    except ValueError:
        f = g = 0  # noqa: F841
    for h in range(f):
        i = h  # noqa: F841
    return f


def test_what_is_bound_on_every_path() -> None:
    assert bound_at(paths, 1, "a", "b") == {"a", "b"}
    assert bound_at(paths, 4, "a", "b") == {"a", "b", "c", "d"}
    assert bound_at(paths, 7, "a", "b") == {"b", "c", "d"}
    assert bound_at(paths, 12, "a", "b") == {"b", "c", "d", "f"}
    assert bound_at(paths, 14, "a", "b") == {"b", "c", "d", "f"}
