"""Built-in functions that go through an iterable use each item before they make the next, and compare by identity
before `==`. Programs run as they are and twice through stator.compile."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import config


class Noted:
    def __init__(self, log: list[Any], number: int) -> None:
        self.log, self.number = log, number

    def __gt__(self, other: Noted) -> bool:
        self.log.append((self.number, ">", other.number))
        return self.number > other.number

    def __lt__(self, other: Noted) -> bool:
        self.log.append((self.number, "<", other.number))
        return self.number < other.number

    def __eq__(self, other: object) -> bool:
        self.log.append((self.number, "=="))
        return isinstance(other, Noted) and self.number == other.number

    __hash__ = None  # type: ignore[assignment]

    def __radd__(self, other: int) -> int:
        self.log.append((other, "+", self.number))
        return other + self.number


def made(log: list[Any], *numbers: int) -> Iterator[Noted]:
    for number in numbers:
        log.append(number)
        yield Noted(log, number)


def by_key(log: list[Any]) -> Any:
    return max(made(log, 1, 3, 2), key=lambda one: log.append("key") or -one.number).number


def refused(log: list[Any]) -> Any:
    def items() -> Iterator[Any]:
        for item in (1, "a", 2):
            log.append(item)
            yield item

    try:
        return sum(items())
    except TypeError as error:
        return str(error)


def of_strings(log: list[Any]) -> Any:
    try:
        return sum((str(one.number) for one in made(log, 1, 2)), "")
    except TypeError as error:
        return str(error)


def of_nan(log: list[Any]) -> Any:
    one, other = float("nan"), float("nan")
    return [len(list(group)) for _, group in itertools.groupby([one, one, other, other, one])]


PROGRAMS: dict[str, Callable[[list[Any]], Any]] = {
    "largest": lambda log: max(made(log, 1, 3, 2)).number,
    "smallest": lambda log: min(made(log, 2, 1, 3)).number,
    "largest by a key": by_key,
    "of none": lambda log: (max(made(log), default="none"), min([], default=7)),
    "sum": lambda log: sum(made(log, 1, 2, 3), 5),
    "sum behind numbers": lambda log: sum([0.1, 0.2, 0.3, 1e100, 1.0, -1e100, *made(log, 1), 0.5]),
    "sum of what cannot be added": refused,
    "sum of strings": of_strings,
    "groups of equal objects": lambda log: [len(list(group)) for _, group in itertools.groupby(made(log, 1, 1, 2))],
    "groups of one object": of_nan,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_items_are_used_in_the_order_of_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", True)

    def program(x: torch.Tensor) -> Any:
        log: list[Any] = []
        return PROGRAMS[name](log), log, x + 1

    expected = program(torch.ones(2))
    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        assert repr(compiled(torch.ones(2))) == repr(expected)


def test_module_lists_are_walked_backwards() -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3)])

    def program(x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(layers):
            x = layer(x)
        return x

    x = torch.randn(2, 3)
    assert torch.equal(stator.compile(program, backend="eager", fullgraph=True)(x), program(x))


def test_containers_are_made_by_their_generic_aliases() -> None:
    def program(x: torch.Tensor) -> Any:
        made = dict[str, torch.Tensor](a=x)
        made["b"] = x + len(list[int]((1, 2)))
        return made, tuple[int, ...]([3]), set[int]()

    x = torch.randn(2)
    actual, expected = stator.compile(program, backend="eager", fullgraph=True)(x), program(x)
    assert torch.equal(actual[0]["b"], expected[0]["b"]) and actual[1:] == expected[1:]


def with_defaults(function: Callable[..., Any]) -> Callable[..., Any]:
    """Binds each call to a signature that it made once, as models with recorded outputs do."""
    signature = inspect.signature(function)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs) + bound.arguments["times"]

    return wrapper


def test_calls_are_bound_to_a_signature_made_before() -> None:
    def scaled(x: torch.Tensor, times: int = 3, *, shift: int = 2) -> torch.Tensor:
        return x * times + shift

    def cubed(x: torch.Tensor, times: int = 4) -> torch.Tensor:
        return x**3 * times

    compiled, x = stator.compile(lambda x, f: f(x), backend="eager", fullgraph=True), torch.randn(2)
    for function in map(with_defaults, (scaled, cubed, scaled)):
        assert torch.equal(compiled(x, function), function(x))


def shared(x: torch.Tensor) -> Any:
    source = iter([1, 2, 3])
    behind = itertools.chain(source, [9])
    return behind, next(source), x + 1


def appended_to(x: torch.Tensor) -> Any:
    items: list[Any] = [x]
    sums = itertools.accumulate(items, lambda a, b: a + b * x, initial=1)
    items.append(x + 1)
    return sums, x + 2


LEAVING: dict[str, Callable[[torch.Tensor], Any]] = {
    "accumulate": lambda x: (itertools.accumulate([x, x + 1]), x * 2),
    "several": lambda x: (itertools.islice(itertools.count(2), 3), itertools.zip_longest([x], [1, 2]), x + 1),
    "shared": shared,
    "appended to": appended_to,
}


@pytest.mark.parametrize("name", LEAVING)
def test_iterators_leave_the_graph_before_their_first_item(name: str) -> None:
    def items(result: Any) -> list[Any]:
        return [(type(one), list(one)) if isinstance(one, Iterator) else one for one in result]

    compiled, x = stator.compile(LEAVING[name], backend="eager", fullgraph=True), torch.ones(())
    for _ in range(2):
        assert items(compiled(x)) == items(LEAVING[name](x))
