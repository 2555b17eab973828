"""Text, bytes, dates and files in memory between operations on tensors: in the graph, or a break at that operation."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import io
import json
import string
import struct
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

TEMPLATE = string.Template("$a is ${b}")
START = datetime.datetime(2020, 1, 1)
CONFIGURATION: dict[str, Any] = {"layers": [1, 2.5, None, True], "name": "é", "nested": {"1": [], "2": {}}}


class Annotated:
    size: int
    name: str


def dumped(x: torch.Tensor) -> Any:
    x = x * 2
    text = json.dumps({"a": [1, -0.0, float("inf"), None, True, "é"], 3: (x.shape[0],), None: {}})
    return x + len(text), text


def dumped_with_options(x: torch.Tensor) -> Any:
    x = x * 2
    text = json.dumps(CONFIGURATION, indent=2, sort_keys=True, ensure_ascii=False, separators=(",", ": "))
    return x + len(text), text


def loaded(x: torch.Tensor) -> Any:
    x = x * 2
    data = json.loads('{"a": [1, 2.5, "b"], "a2": {"c": null}, "d": 12345678901234567890}')
    data["a"].append(3)
    return x + data["a"][0], data


def packed(x: torch.Tensor) -> Any:
    x = x * 2
    data = struct.pack("<ifq", 3, 2.5, -1)
    return x + len(data), data, struct.unpack("<ifq", data), struct.calcsize("id")


def numbers_by_base(x: torch.Tensor) -> Any:
    x = x * 2
    read = functools.partial(int, base=16)("ff"), int("101", base=2)
    try:
        int(3, base=2)
    except TypeError as error:
        return x + read[0], read, str(error)


def hints_of_a_function(x: torch.Tensor) -> Any:
    x = x * 2
    hints = typing.get_type_hints(packed)
    return x + len(hints), hints


def hints_of_a_class(x: torch.Tensor) -> Any:
    x = x * 2
    hints = typing.get_type_hints(Annotated)
    return x + len(hints), hints


def redirected(x: torch.Tensor) -> Any:
    x = x * 2
    file = io.StringIO()
    with contextlib.redirect_stdout(file):
        print("first")
        x = x + 1
        print("second", x.shape)
        x = x * 3
        with contextlib.redirect_stderr(file):
            print("third", file=sys.stderr)
            x = x + 1
    print("outside")
    return x * 2, file.getvalue()


def written(x: torch.Tensor) -> Any:
    x = x * 2
    file, raw = io.StringIO(), io.BytesIO(b"abc")
    file.write("text")
    x = x + 1
    return x * raw.read(2)[0], file.getvalue(), raw.tell()


def substituted(x: torch.Tensor) -> Any:
    x = x * 2
    text = TEMPLATE.substitute(a=1, b="z") + string.Template("$c").safe_substitute()
    return x + len(text), text


def dated(x: torch.Tensor) -> Any:
    x = x * 2
    later = START + datetime.timedelta(days=3)
    return x + later.day, later, later.isoformat(), (later - START).days


def in_decimals(x: torch.Tensor) -> Any:
    x = x * 2
    with decimal.localcontext() as context:
        context.prec = 3
        third = decimal.Decimal(1) / decimal.Decimal(3)
    again = decimal.Decimal(1) / decimal.Decimal(3)
    return x + float(third), third, again


# how many graphs there are at most: alone, in a nested call, in a loop of three turns
FUNCTIONS: list[tuple[Callable[..., Any], tuple[int, int, int]]] = [
    (dumped, (9, 9, 9)),
    (dumped_with_options, (9, 9, 9)),
    (loaded, (9, 9, 9)),
    (packed, (9, 9, 9)),
    (numbers_by_base, (1, 1, 1)),
    (hints_of_a_function, (2, 3, 4)),
    (hints_of_a_class, (2, 3, 4)),
    (redirected, (4, 5, 6)),
    (written, (3, 4, 5)),
    (substituted, (2, 3, 4)),
    (dated, (2, 3, 4)),
    (in_decimals, (2, 2, 3)),
]


def alone(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def nested(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(x: torch.Tensor) -> Any:
        return function(x)

    def outer(x: torch.Tensor) -> Any:
        found = inner(x.sin())
        return found[0].cos(), found[1:]

    return outer


def looped(function: Callable[..., Any]) -> Callable[..., Any]:
    def outer(x: torch.Tensor) -> Any:
        found = []
        for _ in range(3):
            y, *rest = function(x.sin())
            x = y.cos()
            found.append(rest)
        return x, found

    return outer


def told(function: Callable[..., Any], x: torch.Tensor, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    capsys.readouterr()
    return repr(function(x)), capsys.readouterr()


@pytest.mark.parametrize("way", range(3), ids=["alone", "nested", "looped"])
@pytest.mark.parametrize(("function", "most"), FUNCTIONS, ids=lambda it: getattr(it, "__name__", ""))
def test_results_messages_and_graphs(
    function: Callable[..., Any], most: tuple[int, ...], way: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stator.reset()
    whole, x = (alone, nested, looped)[way](function), torch.tensor([0.5, -1.0])
    compiled = stator.compile(whole, backend="eager")
    expected = told(whole, x, capsys)
    assert [told(compiled, x, capsys) for _ in range(3)] == [expected] * 3
    assert len(stator.explain(whole)(x).graphs) <= most[way]


CALLS: list[Callable[[], Any]] = [
    lambda: struct.pack("<i", "a"),
    lambda: struct.unpack("<i", b"a"),
    lambda: typing.get_type_hints(),  # type: ignore[call-arg]
    lambda: typing.get_type_hints(dumped, include_extras=True),
    lambda: typing.get_type_hints(3),
]


@pytest.mark.parametrize("at", range(len(CALLS)))
def test_calls_with_other_arguments(at: int) -> None:
    call = CALLS[at]

    def function(x: torch.Tensor) -> Any:
        x = x + 1
        try:
            found = call()
        except (TypeError, struct.error) as error:
            found = repr(error)
        return x * 2, found

    compiled, x = stator.compile(function, backend="eager"), torch.ones(2)
    assert [repr(compiled(x)) for _ in range(2)] == [repr(function(x))] * 2


def test_the_precision_of_decimals_is_read_in_each_call() -> None:
    def function(x: torch.Tensor) -> Any:
        x = x * 2
        third = decimal.Decimal(1) / decimal.Decimal(3)
        return x + 1, third

    compiled, x = stator.compile(function, backend="eager"), torch.ones(2)
    for precision in (5, 9):
        with decimal.localcontext() as context:
            context.prec = precision
            assert repr(compiled(x)) == repr(function(x))


PREFIXES = ("a_", "b_")


def test_tuples_from_outside_are_arguments_of_methods_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor, name: str) -> torch.Tensor:
        return x + 1 if name.startswith(PREFIXES) else x - 1

    compiled, x = stator.compile(program, backend="eager", fullgraph=True), torch.ones(2)
    assert torch.equal(compiled(x, "a_b"), x + 1)
    monkeypatch.setitem(globals(), "PREFIXES", ("c_",))
    assert torch.equal(compiled(x, "a_b"), x - 1)
