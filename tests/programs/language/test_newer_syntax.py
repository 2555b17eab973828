"""Syntax that CPython 3.11 lacks, around breaks: type parameters, `type` statements, quotes in f-strings. The programs
are text, so that 3.11 can read this file."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from tests.differential import check

import stator

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is new in 3.12")


@stator.disable
def unseen(value: Any = None) -> Any:
    return value


PROGRAMS = {
    "generic function": """
def program(x):
    def first[T](one: T, *others: T) -> T:
        return one
    unseen()
    return first(x + 1, 2), [str(one) for one in first.__type_params__], str(first.__annotations__["one"])
""",
    "generic class": """
def program(x):
    class Box[T: int, *Ts, **P]:
        counted = [number for number in range(2)]
        def __init__(self, held: T):
            self.held = held
        def get[U](self, other: U) -> tuple[T, U]:
            return self.held, other
    box = Box(x + 1)
    unseen()
    return box.get(2), str(Box.__type_params__), Box.counted
""",
    "closure of a generic function": """
def program(x):
    y = x * 2
    def outer[T](one: T):
        def inner() -> T:
            return one + y
        return inner
    inner = outer(1)
    unseen()
    y = y + 1
    return inner()
""",
    "type statement": """
def program(x):
    type Pair[T] = tuple[T, T]
    type Tree = dict[str, Tree]
    unseen()
    return str(Pair.__value__), Pair.__name__, Tree.__name__, x + 1
""",
    "f-string in an f-string": """
def program(x):
    sizes = {"x": x.shape}
    text = f"{sizes["x"]}{f"{f"{1 + 1}"}"}{'\\n'.join(["p", "q"])}{unseen("z")!r:>{unseen(6)}}"
    unseen()
    return text, x + 1
""",
    "comprehension that shares a name with a cell": """
def program(x):
    held = x
    def get():
        return held
    one = [held for held in range(3)]
    functions = [(lambda: held) for held in range(2)]
    unseen()
    other = [(lambda: (held, get()))() for held in range(unseen(2))]
    return one, [function() for function in functions], other, held
""",
    "variables seen in a comprehension": """
def program(x):
    one = 1
    seen = [sorted(locals()) for two in range(2)]
    unseen()
    return seen, ["two" in locals() for two in range(2)], "two" in locals(), x + one
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str) -> None:
    scope: dict[str, Any] = {"unseen": unseen, "__name__": __name__}
    exec(PROGRAMS[name], scope)
    check(scope["program"], torch.arange(3.0))
