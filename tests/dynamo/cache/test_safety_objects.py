"""Objects that answer every question with an exception: what eager does not ask of them, compiled code does not either,
and results are eager's. And deep structures and recursions end as they do in eager."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

LOG: list[str] = []


def refuses(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        LOG.append(name)
        raise ValueError(name)

    return method


QUESTIONS = (
    "__eq__",
    "__ne__",
    "__lt__",
    "__hash__",
    "__bool__",
    "__len__",
    "__iter__",
    "__contains__",
    "__repr__",
    "__str__",
    "__getitem__",
    "__call__",
    "__index__",
    "__int__",
    "__float__",
    "__dir__",
    "__format__",
    "__reduce_ex__",
    "__add__",
    "__radd__",
    "__mul__",
    "__rmul__",
    "__enter__",
    "__copy__",
    "__deepcopy__",
)
Hostile = type("Hostile", (), {"v": 1.0, **{name: refuses(name) for name in QUESTIONS}})


class Answering(Hostile):  # type: ignore[valid-type,misc]
    def __getattr__(self, name: str) -> Any:
        LOG.append(f"__getattr__ {name}")
        raise AttributeError(name)


class Pretending(Hostile):  # type: ignore[valid-type,misc]
    @property
    def __class__(self) -> type:  # type: ignore[override]
        return torch.Tensor


class OfMeta(type):
    def __eq__(cls, other: object) -> bool:
        LOG.append("metaclass ==")
        raise ValueError

    def __hash__(cls) -> int:
        return 5

    def __bool__(cls) -> bool:
        LOG.append("metaclass bool")
        raise ValueError

    def __getattr__(cls, name: str) -> Any:
        LOG.append(f"metaclass {name}")
        raise AttributeError(name)


class WithMeta(metaclass=OfMeta):
    v = 1.0


Text = type("Text", (str,), {"__eq__": refuses("text =="), "__hash__": str.__hash__, "v": 1.0})
Items = type(
    "Items", (list,), {name: refuses(name) for name in ("__len__", "__iter__", "__getitem__", "__eq__")} | {"v": 2.0}
)
Table = type(
    "Table",
    (dict,),
    {name: refuses(name) for name in ("__len__", "__iter__", "keys", "items", "__contains__")} | {"v": 2.0},
)

OBJECTS: dict[str, Callable[[], Any]] = {
    "hostile": Hostile,
    "getattr": Answering,
    "class": Pretending,
    "metaclass": WithMeta,
    "text": lambda: Text("a"),
    "list": lambda: Items([1, 2]),
    "dict": lambda: Table(a=1),
}


def unused(x: Any, h: Any) -> Any:
    return x * 2


def attribute(x: Any, h: Any) -> Any:
    return x * h.v


def returned(x: Any, h: Any) -> Any:
    return x * 2, h


def compared_with_none(x: Any, h: Any) -> Any:
    return x * (2 if h is None else 3)


def in_a_list(x: Any, h: Any) -> Any:
    items = [h, x]
    return items[1] * 2, items


def behind_a_break(x: Any, h: Any) -> Any:
    stator.graph_break()
    return x * 2, h


def in_a_dict(x: Any, h: Any) -> Any:
    table = {"a": h}
    return x * len(table), table


def of_type(x: Any, h: Any) -> Any:
    return x if type(h) is int else x + 1


def as_default(x: Any, h: Any) -> Any:
    def inner(h: Any = h) -> Any:
        return h

    return x * 2, inner()


class Box:
    """Holds one."""


def in_a_new_object(x: Any, h: Any) -> Any:
    box = Box()
    box.h, box.n = h, 2
    return x * box.n, box.h


def asked_for_truth(x: Any, h: Any) -> Any:
    try:
        return x * bool(h)
    except ValueError:
        return x + 5


def compared(x: Any, h: Any) -> Any:
    try:
        return x * (h == 3)
    except ValueError:
        return x + 5


def asked_for_what_it_lacks(x: Any, h: Any) -> Any:
    return x * getattr(h, "nope", 4)


PROGRAMS = [
    unused,
    attribute,
    returned,
    compared_with_none,
    in_a_list,
    behind_a_break,
    in_a_dict,
    of_type,
    as_default,
    in_a_new_object,
    asked_for_truth,
    compared,
    asked_for_what_it_lacks,
]


def outcome(function: Callable[..., Any], h: Any) -> tuple[Any, list[str]]:
    LOG.clear()
    result = function(torch.ones(2), h)
    return result, list(LOG)


def same(one: Any, other: Any) -> bool:
    """Equal tensors, and otherwise the very same objects; asks nothing of them."""
    if type(one) is torch.Tensor:
        return type(other) is torch.Tensor and torch.equal(one, other)
    if type(one) is tuple or type(one) is list:
        return type(other) is type(one) and len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return type(other) is dict and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return one is other


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", list(OBJECTS))
def test_nothing_is_asked_that_eager_does_not_ask(kind: str, program: Callable[..., Any]) -> None:
    h = OBJECTS[kind]()
    expected, asked = outcome(program, h)
    compiled = stator.compile(program, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found, asked_now = outcome(compiled, h)
    assert same(found, expected) and asked_now == asked
    for _ in range(2):  # guards, and what was compiled
        found, asked_now = outcome(compiled, h)
        assert same(found, expected) and asked_now == asked
    compiled(torch.ones(3), h)  # a guard fails and is explained


# ---- depth ----


def test_recursion_ends_as_in_eager() -> None:
    def plain(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 0 else plain(x + 1, n - 1)

    @stator.compile(backend="eager")
    def compiled(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 0 else compiled(x + 1, n - 1)

    @stator.compile(backend="eager")
    def breaking(x: torch.Tensor, n: int) -> torch.Tensor:
        stator.graph_break()
        return x if n == 0 else breaking(x + 1, n - 1)

    x = torch.zeros(1)
    for n in (10, 200):
        assert compiled(x, n).item() == breaking(x, n).item() == plain(x, n).item() == n
    for function in (plain, compiled, breaking):
        with pytest.raises(RecursionError):
            function(x, 100_000)
    assert compiled(x, 5).item() == breaking(x, 5).item() == 5


def test_a_long_chain_of_objects() -> None:
    class Node:
        def __init__(self, following: Any) -> None:
            self.following, self.v = following, 1.0

    def walk(x: torch.Tensor, node: Any) -> torch.Tensor:
        while node is not None:
            x = x + node.v
            node = node.following
        return x

    chain = None
    for _ in range(40):
        chain = Node(chain)
    assert stator.compile(walk, backend="eager")(torch.zeros(1), chain).item() == 40


def test_deeply_nested_containers() -> None:
    nested: Any = ()
    for _ in range(sys.getrecursionlimit() * 2):
        nested = (nested,)
    compiled = stator.compile(lambda x, t: x + len(t), backend="eager")
    for _ in range(2):
        assert compiled(torch.zeros(1), nested).item() == 1
