"""The recompile limit is one code object's and instance's: many instances of a class each have their own, however they
reach the code, and one that is compiled too often takes nothing from the others."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

X = torch.ones(2)
EAGER, COMPILED = 1000, 0


class Plain:
    """`kind` is text, which is relied on as it is."""

    def __init__(self, n: int) -> None:
        self.kind = f"{n}"

    def run(self, x: Any) -> Any:
        return x * int(self.kind) + (COMPILED if stator.is_compiling() else EAGER)

    def runs_in_two(self, x: Any) -> Any:
        y = self.run(x)
        stator.graph_break()
        return y + self.run(x)

    @staticmethod
    def of(other: Any, x: Any) -> Any:
        return x * int(other.kind) + (COMPILED if stator.is_compiling() else EAGER)


class Layer(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.kind = f"{n}"

    def forward(self, x: Any) -> Any:
        return Plain.run(self, x)  # type: ignore[arg-type]

    run = forward


class Trainer:
    def step(self, model: Any, x: Any) -> Any:
        return model.run(x)

    def step_of_a_layer(self, x: Any, *, model: Any) -> Any:
        return model(x)


def called_with(one: Any, x: Any) -> Any:
    return one.run(x)


def called_with_it_last(x: Any, *, one: Any) -> Any:
    return one.run(x)


def behind_a_break(x: Any, one: Any) -> Any:
    stator.graph_break()
    return one.run(x)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def compiled(function: Any) -> Any:
    return stator.compile(function, backend="eager")


def by_method(kind: Any) -> Callable[[Any], Any]:
    cls = type("Own", (kind,), {"run": compiled(kind.run)})
    return lambda n: cls(n).run


def by_class(kind: Any) -> Callable[[Any], Any]:
    cls = compiled(type("Called", (kind,), {"__call__": kind.run}))
    return lambda n: cls(n)


def by_argument(kind: Any, function: Any, name: str | None = None) -> Callable[[Any], Any]:
    called = compiled(function)
    if name:
        return lambda n: functools.partial(called, **{name: kind(n)})
    return lambda n: functools.partial(called, kind(n))


def by_partial_of_a_method(kind: Any) -> Callable[[Any], Any]:
    called = compiled(functools.partial(kind.run))
    return lambda n: functools.partial(called, kind(n))


WAYS: dict[str, Callable[[], Callable[[int], Callable[[Any], Any]]]] = {
    "method": lambda: by_method(Plain),
    "method of a module": lambda: by_method(Layer),
    "class": lambda: by_class(Plain),
    "argument": lambda: by_argument(Plain, called_with),
    "module as argument": lambda: by_argument(Layer, called_with),
    "keyword argument": lambda: by_argument(Plain, called_with_it_last, "one"),
    "static method": lambda: by_argument(Layer, Plain.of),
    "function of the class": lambda: by_argument(Plain, Plain.run),
    "behind a break": lambda: by_argument(Plain, behind_a_break, "one"),
    "method with a break": lambda: by_argument(Plain, Plain.runs_in_two),
    "wrapper": lambda: by_argument(Plain, wrapped(Plain.run)),
    "wrapper, by keyword": lambda: by_argument(Plain, wrapped(called_with_it_last), "one"),
    "two wrappers": lambda: by_argument(Layer, wrapped(wrapped(Plain.run))),
    "partial": lambda: by_partial_of_a_method(Plain),
    "argument of a method": lambda: by_argument(Layer, Trainer().step),
    "keyword argument of a method": lambda: by_argument(Layer, Trainer().step_of_a_layer, "model"),
    "compiled bound methods": lambda: lambda n: compiled(Plain(n).run),
    "compiled modules": lambda: lambda n: compiled(Layer(n)),
}


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    stator.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("way", list(WAYS))
def test_twenty_instances_are_all_compiled(way: str) -> None:
    make = WAYS[way]()
    calls = [make(n) for n in range(20)]
    twice = 2 if "with a break" in way else 1
    for _ in range(2):
        assert [call(X)[0].item() for call in calls] == [n * twice + COMPILED for n in range(20)]


@pytest.mark.parametrize("way", ["method", "argument", "wrapper", "static method", "wrapper, by keyword"])
def test_one_that_changes_too_often_takes_nothing_from_those_that_come(way: str) -> None:
    """Also where nothing else was compiled before."""
    make = WAYS[way]()
    call = make(0)
    one = call.__self__ if hasattr(call, "__self__") else (*call.args, *call.keywords.values())[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(20):
            one.kind = str(n)
            assert call(X)[0].item() == n + (COMPILED if n < 8 else EAGER)
    assert len(caught) == 1 and "recompile_limit" in str(caught[0].message)
    for n in range(30, 40):
        assert make(n)(X)[0].item() == n
    one.kind = "3"
    assert call(X)[0].item() == 3  # what was compiled for it still runs
    one.kind = "50"
    assert call(X)[0].item() == 50 + EAGER


def test_one_that_was_given_up_is_not_looked_at_again() -> None:
    make = WAYS["method"]()
    call = make(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(10):
            call.__self__.kind = str(n)
            call(X)
    cache = type(call.__self__).run._cache  # type: ignore[attr-defined]
    versions = cache.versions
    before = dict(counters.counts)
    call.__self__.kind = "100"
    for _ in range(3):
        call(X)
    assert cache.versions == versions and counters.counts == before


def test_instances_that_come_and_go_are_all_compiled() -> None:
    make = WAYS["method"]()
    for n in range(100):
        call = make(n)
        assert [call(X)[0].item() for _ in range(3)] == [n] * 3
    cache = type(call.__self__).run._cache  # type: ignore[attr-defined]
    del call
    gc.collect()
    assert len(cache.versions) < 80  # what was compiled for those that are gone does not pile up


def test_a_new_object_for_each_call_is_not_compiled_forever() -> None:
    called = WAYS["argument"]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = [called(n)(X)[0].item() - n for n in range(100)]
    assert told[:64] == [COMPILED] * 64 and told[-1] == EAGER
    assert len(caught) == 1 and "another object" in str(caught[0].message)


def test_functions_of_numbers_share_one_limit() -> None:
    def function(kind: str, x: Any) -> Any:
        return x * int(kind) + (COMPILED if stator.is_compiling() else EAGER)

    called = compiled(function)
    with pytest.warns(RuntimeWarning, match="recompile_limit"):
        told = [called(str(n), X)[0].item() - n for n in range(12)]
    assert told == [COMPILED] * 8 + [EAGER] * 4


class Scale:
    def scaled(self, x: torch.Tensor, text: str) -> torch.Tensor:
        return x * len(text)


def broken_first(value: Any) -> Any:
    stator.graph_break()
    return value


def with_a_method_on_the_stack(scale: Scale, x: torch.Tensor) -> torch.Tensor:
    for i in range(100):
        x = scale.scaled(torch.tanh(x), broken_first(str(i) * i))
    return x


def with_a_function_on_the_stack(scale: Scale, x: torch.Tensor) -> torch.Tensor:
    for i in range(100):
        x = (lambda x, text: scale.scaled(x, text))(torch.tanh(x), broken_first(str(i) * i))
    return x


@pytest.mark.parametrize("function", [with_a_method_on_the_stack, with_a_function_on_the_stack])
def test_what_waits_on_the_stack_to_be_called_may_be_made_anew_each_time(function: Callable[..., Any]) -> None:
    expected = function(Scale(), X)
    counters.counts.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = stator.compile(function, backend="eager")(Scale(), X)
    torch.testing.assert_close(got, expected)
    # eight for each of two places in the loop with what it called, for the loop by itself, and for each function
    assert counters.counts["dynamo.recompiles"] <= 40


def with_a_tensor_s_method_on_the_stack(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x).expand(broken_first(3), *x.shape) + 1


def test_a_tensor_s_method_on_the_stack_is_captured_for_every_tensor() -> None:
    function = stator.compile(with_a_tensor_s_method_on_the_stack)
    function(X)
    function(X)
    counters.counts.clear()
    for _ in range(5):
        torch.testing.assert_close(function(X), with_a_tensor_s_method_on_the_stack(X))
    assert not counters.counts["dynamo.compiled_frames"]
