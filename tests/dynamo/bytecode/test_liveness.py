"""Which variables may still be read."""

from __future__ import annotations

from typing import Any

from stator.dynamo.bytecode import decode, live_locals


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
