"""What a class is given after one of its instances was compiled is seen by the compiled instance."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

X = torch.arange(3.0)


def make() -> tuple[type, type, torch.nn.Module, torch.nn.Module]:
    """Two classes, and two modules of the first that hold one of the second."""

    class Inner(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.offset = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.offset

    return Outer, Inner, Outer(), Outer()


def attribute(name: str, value: Any) -> Callable[[Any, str, Any], Any]:
    """A `__getattr__` or `__getattribute__` that says this of one attribute."""

    def look(self: Any, wanted: str) -> Any:
        return value if wanted == name else torch.nn.Module.__getattr__(self, wanted)

    return look  # type: ignore[return-value]


def attribute_anyway(name: str, value: Any) -> Callable[[Any, str], Any]:
    def look(self: Any, wanted: str) -> Any:
        return value if wanted == name else torch.nn.Module.__getattribute__(self, wanted)

    return look


CHANGES: dict[str, Callable[[Any, Any], None]] = {
    "call": lambda outer, inner: setattr(outer, "__call__", lambda self, x: ("called", x)),
    "call that goes on": lambda outer, inner: setattr(outer, "__call__", lambda self, x: self.forward(x) * 2),
    "call of a part": lambda outer, inner: setattr(inner, "__call__", lambda self, x: x * 7),
    "forward": lambda outer, inner: setattr(outer, "forward", lambda self, x: x * 7),
    "forward of a part": lambda outer, inner: setattr(inner, "forward", lambda self, x: x * 7),
    "what forward is called by": lambda outer, inner: setattr(outer, "_call_impl", lambda self, x: x * 13),
    "what a part's forward is called by": lambda outer, inner: setattr(inner, "_call_impl", lambda self, x: x * 13),
    "getattr": lambda outer, inner: setattr(outer, "__getattr__", attribute("inner", torch.relu)),
    "getattr of a part": lambda outer, inner: setattr(inner, "__getattr__", attribute("weight", X)),
    "getattribute": lambda outer, inner: setattr(outer, "__getattribute__", attribute_anyway("offset", 5)),
    "property": lambda outer, inner: setattr(outer, "offset", property(lambda self: 11)),
    "bases": lambda outer, inner: setattr(
        outer, "__bases__", (type("Other", (torch.nn.Module,), {"__call__": lambda self, x: x - 1}),)
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_compiled_module_follows_its_class(name: str) -> None:
    outer, inner, one, other = make()
    compiled = stator.compile(one, backend="eager")
    compiled(X)
    CHANGES[name](outer, inner)
    for _ in range(2):
        assert repr(compiled(X)) == repr(other(X))


def test_a_part_whose_class_calls_it_otherwise_from_the_start() -> None:
    _, inner, one, other = make()
    inner._call_impl = lambda self, x: x * 13  # type: ignore[attr-defined]
    assert repr(stator.compile(one, backend="eager")(X)) == repr(other(X))


def test_a_part_that_calls_itself_otherwise() -> None:
    _, _, one, other = make()
    compiled = stator.compile(one, backend="eager")
    compiled(X)
    for module in (one, other):
        module.inner._call_impl = lambda x: x * 13  # type: ignore[union-attr, assignment]
    assert repr(compiled(X)) == repr(other(X))


def test_a_call_that_is_replaced_for_a_while() -> None:
    _, _, one, other = make()
    compiled = stator.compile(one, backend="eager")
    first = repr(compiled(X))
    before = torch.nn.Module.__call__
    try:
        torch.nn.Module.__call__ = lambda self, *args: before(self, *args) * 2  # type: ignore[method-assign]
        assert repr(compiled(X)) == repr(other(X))
    finally:
        torch.nn.Module.__call__ = before  # type: ignore[method-assign]
    frames = counters.counts["dynamo.compiled_frames"]
    assert repr(compiled(X)) == first
    assert counters.counts["dynamo.compiled_frames"] == frames


def test_attributes_that_all_modules_look_up_otherwise_for_a_while() -> None:
    _, _, one, other = make()
    compiled = stator.compile(one, backend="eager")
    first = repr(compiled(X))
    before = torch.nn.Module.__getattr__
    try:
        torch.nn.Module.__getattr__ = (  # type: ignore[method-assign]
            lambda self, name: X if name == "weight" else before(self, name)  # type: ignore[assignment]
        )
        assert repr(compiled(X)) == repr(other(X)) != first
    finally:
        torch.nn.Module.__getattr__ = before  # type: ignore[method-assign]
    assert repr(compiled(X)) == first


def test_an_object_whose_class_is_called_otherwise() -> None:
    class Adds:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    adds = Adds()
    compiled = stator.compile(adds, backend="eager")
    assert torch.equal(compiled(X), X + 1)
    frames = counters.counts["dynamo.compiled_frames"]
    for number in range(20):
        Adds.__call__ = lambda self, x, number=number: x + number  # type: ignore[method-assign, assignment, misc]
        assert torch.equal(compiled(X), X + number)
        assert torch.equal(compiled(X), X + number)
    assert frames < counters.counts["dynamo.compiled_frames"] < frames + 20


def _set_call(function: Any) -> None:
    """Give a function another call than that of its code, as C extensions may (from CPython 3.12 on)."""
    pytest.importorskip("_testcapi")
    import _testcapi

    if not hasattr(_testcapi, "function_setvectorcall"):
        pytest.skip("this CPython has no PyFunction_SetVectorcall")
    _testcapi.function_setvectorcall(function)


def test_a_function_whose_call_c_code_replaces_between_two_calls():
    def inner(x: Any) -> Any:
        return x + 1

    def program(x: Any) -> Any:
        found = inner(x)
        return found if isinstance(found, str) else found * 2

    compiled = stator.compile(program, backend="eager")
    torch.testing.assert_close(compiled(X), (X + 1) * 2)
    _set_call(inner)
    assert program(X) == "overridden"
    assert compiled(X) == "overridden"


def test_a_function_whose_call_c_code_replaces_inside_of_the_program():
    def inner(x: Any) -> Any:
        return x + 1

    def program(x: Any) -> Any:
        y = inner(x)
        _set_call(inner)
        return y * 2, inner(x)

    found, text = stator.compile(program, backend="eager")(X)
    torch.testing.assert_close(found, (X + 1) * 2)
    assert text == "overridden"
