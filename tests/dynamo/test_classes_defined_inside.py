"""Classes defined in captured code stay in the graph, and are made anew in each call where they leave it."""

import abc
import builtins
import dataclasses
import enum
import typing
from typing import Any

import pytest
import torch

import stator

X = torch.arange(3.0)


def plain(x: torch.Tensor) -> Any:
    x = x + 1

    class Scaled:
        factor = 3

        def scale(self, y: torch.Tensor) -> torch.Tensor:
            return y * self.factor

    scaled = Scaled()
    y = scaled.scale(x)
    scaled.note = 5  # type: ignore[attr-defined]
    return y + scaled.note, scaled.__class__.__name__  # type: ignore[attr-defined]


def by_type(x: torch.Tensor) -> Any:
    x = x + 1
    made = type("Made", (), {"twice": lambda self, y: y * 2})
    return made().twice(x) + 1  # type: ignore[attr-defined]


def data(x: torch.Tensor) -> Any:
    x = x * 2

    @dataclasses.dataclass
    class Pair:
        one: torch.Tensor
        other: int = 3

    pair = Pair(x)
    return pair.one * pair.other, dataclasses.replace(pair, other=4).other


def named(x: torch.Tensor) -> Any:
    x = x * 2

    class Pair(typing.NamedTuple):
        one: torch.Tensor
        other: int

    pair = Pair(x + 1, 2)
    one, other = pair
    return one * other + pair.other


def module(x: torch.Tensor) -> Any:
    scale = 3
    x = x * 2

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, y: torch.Tensor) -> torch.Tensor:
            return y * self.scale

    return Scaled()(x) + 1


def enumeration(x: torch.Tensor) -> Any:
    x = x * 2

    class Size(enum.Enum):
        SMALL = 1
        LARGE = 2

    return x + Size.LARGE.value + len(Size)


def in_nested_functions(x: torch.Tensor) -> Any:
    def make(offset: int) -> Any:
        class Adds:
            def __call__(self, y: torch.Tensor) -> torch.Tensor:
                return y + offset

        return Adds()

    return make(1)(x) * make(2)(x)


def in_a_loop(x: torch.Tensor) -> Any:
    found = []
    for turn in range(3):

        class Turn:
            number = turn

        found.append(Turn().number)
        x = x * 2 + Turn.number
    return x, found


def abstract(x: torch.Tensor) -> Any:
    x = x * 2

    class Base(abc.ABC):
        @abc.abstractmethod
        def run(self, y: torch.Tensor) -> torch.Tensor: ...

    class Derived(Base):
        def run(self, y: torch.Tensor) -> torch.Tensor:
            return y + 1

    derived = Derived()
    return derived.run(x) * 2, isinstance(derived, Base)


def with_a_metaclass(x: torch.Tensor) -> Any:
    class Tagged(type):
        def __new__(cls, name: str, bases: Any, namespace: dict[str, Any]) -> Any:
            return super().__new__(cls, name, bases, {**namespace, "tag": name})

    class Made(metaclass=Tagged):
        pass

    return x + len(Made.tag), Made.tag  # type: ignore[attr-defined]


def an_exception(x: torch.Tensor) -> Any:
    x = x * 2

    class Own(ValueError):
        pass

    try:
        raise Own("text")
    except ValueError as error:
        return x + 1, str(error), type(error).__name__


def tensors_in_the_body(x: torch.Tensor) -> Any:
    y = x * 2

    class Holds:
        one = y + 1
        total = one.sum()

    return Holds.one * Holds.total


def a_body_that_raises(x: torch.Tensor) -> Any:
    x = x * 2
    try:

        class Broken:
            raise ValueError("in the body")

    except ValueError as error:
        return x * 2, str(error)
    return Broken


def an_autograd_function(x: torch.Tensor) -> Any:
    x = x * 2

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return y * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    return Doubles.apply(x) + 1


def of_built_in_classes(x: torch.Tensor) -> Any:
    class Box(list[Any]):
        def total(self) -> Any:
            return sum(self)

    class Table(dict[str, Any]):
        pass

    box, table = Box([x, x * 2]), Table(one=x)
    box.append(x)
    table["other"] = x + 1
    return box.total(), len(box), table["one"] + table["other"]


PROGRAMS = [
    plain,
    by_type,
    data,
    named,
    module,
    enumeration,
    in_nested_functions,
    in_a_loop,
    abstract,
    with_a_metaclass,
    an_exception,
    tensors_in_the_body,
    a_body_that_raises,
    an_autograd_function,
    of_built_in_classes,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_eager_s(program: Any) -> None:
    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        assert repr(compiled(X)) == repr(program(X))


@pytest.mark.parametrize("program", [plain, by_type, named, module, an_exception, an_autograd_function])
def test_there_is_one_graph(program: Any) -> None:
    explanation = stator.explain(program)(X)
    assert not explanation.break_reasons
    assert explanation.graph_count == 1


def test_hooks_of_the_bases_run_once_for_each_call() -> None:
    made: list[Any] = []

    class Base:
        def __init_subclass__(cls, **named: Any) -> None:
            made.append((cls.__name__, named))

    def program(x: torch.Tensor) -> torch.Tensor:
        class Derived(Base, tag=1):
            def run(self, y: torch.Tensor) -> torch.Tensor:
                return y - 1

        return Derived().run(x)

    compiled = stator.compile(program, backend="eager")
    assert torch.equal(compiled(X), X - 1)
    assert torch.equal(compiled(X), X - 1)
    assert made == [("Derived", {"tag": 1})] * 2


def test_another_way_to_build_classes_is_used() -> None:
    def program(x: torch.Tensor) -> Any:
        class Named:
            pass

        return x + 1, Named.__name__

    compiled = stator.compile(program, backend="eager")
    before = builtins.__build_class__
    assert compiled(X)[1] == "Named"
    try:
        builtins.__build_class__ = lambda body, name, *bases, **named: before(body, "Other", *bases, **named)
        assert compiled(X)[1] == "Other"
    finally:
        builtins.__build_class__ = before
    assert compiled(X)[1] == "Named"


def test_a_comprehension_in_a_body_reads_what_is_around_the_class() -> None:
    def program(x: torch.Tensor) -> Any:
        y = 1

        class Made:
            y = 2
            own = [y + 1 for y in range(2)]
            around = [(i, y) for i in range(2)]
            called = [(lambda: y)() for _ in range(2)]

        return x + y, Made.y, Made.own, Made.around, Made.called

    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        assert repr(compiled(X)) == repr(program(X))
