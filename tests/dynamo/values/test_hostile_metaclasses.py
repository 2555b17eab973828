"""Classes whose metaclass answers for them in Python, or refuses to: what eager does not ask of a class, capture does
not either, nor more often; what eager asks, it asks in each call. Results and exceptions are eager's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

LOG: list[str] = []
X = torch.arange(3.0)


def raising(name: str) -> Callable[..., Any]:
    def method(cls: Any, *_: Any) -> Any:
        LOG.append(name)
        raise LookupError(name)

    return method


def answering(name: str, answer: Any) -> Callable[..., Any]:
    def method(cls: Any, *_: Any) -> Any:
        LOG.append(name)
        return answer

    return method


def asked_for(cls: Any, name: str) -> Any:
    LOG.append(f"attribute {name}")
    return type.__getattribute__(cls, name)


METHODS: dict[str, Any] = {
    "__hash__": answering("hash", 3),
    "__eq__": raising("eq"),
    "__getattribute__": asked_for,
    "__repr__": raising("repr"),
    "__len__": answering("len", 0),
    "__bool__": answering("bool", False),
    "__instancecheck__": answering("instance?", False),
    "__subclasscheck__": answering("subclass?", False),
    **{
        name: property(raising(name))
        for name in ("__name__", "__module__", "__mro__", "__doc__", "__dict__", "__bases__", "__flags__")
    },
    "__class__": property(answering("class", int)),
}
METACLASSES = {name: type("Meta", (type,), {name: method}) for name, method in METHODS.items()}
METACLASSES["all"] = type("Meta", (type,), METHODS)


def make(meta: Any) -> Any:
    def __init__(self: Any, v: int = 1) -> None:
        self.v = v

    return meta("A", (), {"k": 3, "__init__": __init__, "m": lambda self, x: x + self.v})


def method(A: Any, a: Any, x: Any) -> Any:
    return a.m(x) + 1


def instance_made_inside(A: Any, a: Any, x: Any) -> Any:
    return A(4).m(x)


def behind_a_break(A: Any, a: Any, x: Any) -> Any:
    stator.graph_break()
    return a.m(x)


def attribute_set(A: Any, a: Any, x: Any) -> Any:
    a.w = x * 2
    stator.graph_break()
    return x + a.v + a.w + (type(a) is A)


def attribute_of_the_class(A: Any, a: Any, x: Any) -> Any:
    return x + A.k


def truth_of_the_class(A: Any, a: Any, x: Any) -> Any:
    return x + (3 if A else 4)


def kept_in_a_list(A: Any, a: Any, x: Any) -> Any:
    return len([A, a]) * x


def key_of_a_dictionary(A: Any, a: Any, x: Any) -> Any:
    return {A: x * 2}[A]


def is_instance(A: Any, a: Any, x: Any) -> Any:
    return x + isinstance(a, A) + 2 * isinstance(3, A) + 4 * isinstance(a, int)


def compared(A: Any, a: Any, x: Any) -> Any:
    return x + (A == 3)


def named(A: Any, a: Any, x: Any) -> Any:
    return x + len(A.__name__)


def missing(A: Any, a: Any, x: Any) -> Any:
    return x + a.missing


def raised(A: Any, a: Any, x: Any) -> Any:
    raise ValueError(a)


PROGRAMS = [
    method,
    instance_made_inside,
    behind_a_break,
    attribute_set,
    attribute_of_the_class,
    truth_of_the_class,
    kept_in_a_list,
    key_of_a_dictionary,
    is_instance,
    compared,
    named,
    missing,
    raised,
]


def outcome(program: Callable[..., Any], cls: Any) -> tuple[Any, list[str]]:
    a = cls()
    LOG.clear()
    try:
        result = program(cls, a, X)
        shown = [part.tolist() if isinstance(part, torch.Tensor) else part for part in (result, *a.__dict__.values())]
    except Exception as error:
        shown = [type(error), len(error.args)]
    return shown, list(LOG)


@pytest.mark.parametrize("name", list(METACLASSES))
def test_a_metaclass_is_asked_what_eager_asks(name: str) -> None:
    cls = make(METACLASSES[name])
    for program in PROGRAMS:
        expected = outcome(program, cls)
        compiled = stator.compile(program, backend="eager")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [outcome(compiled, cls) for _ in range(3)] == [expected] * 3, program.__name__
