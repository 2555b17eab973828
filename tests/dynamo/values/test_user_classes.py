"""Classes of the program: patterns, hashes, texts of dataclasses, subclasses of tuple, abstract ones; and what counts
and iterates by calling."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

import stator


def _check(function: Callable[..., Any], *args: Any) -> Any:
    """Results besides tensors; the function is one graph."""
    x = torch.randn(2)
    tensor, *rest = function(x, *args)
    found, *others = stator.compile(function, backend="eager", fullgraph=True)(x, *args)
    assert torch.equal(found, tensor) and others == rest
    return others


def test_a_sequence_pattern_on_an_object_whose_class_was_never_looked_into() -> None:
    made = type("Made", (), {})  # its type flags change when an attribute is looked up for the first time

    def function(x: torch.Tensor, value: Any) -> Any:
        match value:
            case [first, *_]:
                return x + first, "sequence"
            case _:
                return x + 1, hasattr(value, "missing")

    _check(function, made())


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: Any = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass
class Node:
    name: str
    next: Any = None


def test_texts_of_dataclasses() -> None:
    def function(x: torch.Tensor) -> Any:
        ring = Node("ring")
        ring.next = ring
        return x + 1, repr(Node("a", Node("b"))), f"{Frozen(3)}", repr(ring)

    x = torch.ones(2)
    compiled = stator.compile(function, backend="eager")(x)  # the graph breaks: such a repr looks at id()
    assert compiled[1:] == function(x)[1:] and torch.equal(compiled[0], x + 1)


class Tagged(tuple[Any, ...]):
    tag: str

    def __new__(cls, *items: Any, tag: str = "") -> Tagged:
        made = super().__new__(cls, items)
        made.tag = tag
        return made


def test_a_tuple_whose_class_makes_it_of_other_arguments() -> None:
    def function(x: torch.Tensor) -> Any:
        made = Tagged(1, 2, tag="t")
        stator.graph_break()
        return x + len(made), made

    _, made = stator.compile(function, backend="eager")(torch.ones(2))
    assert type(made) is Tagged and tuple(made) == (1, 2) and made.tag == "t"


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self) -> None: ...


def test_an_abstract_class_cannot_be_made() -> None:
    def function(x: torch.Tensor) -> Any:
        try:
            Abstract()  # type: ignore[abstract]
        except TypeError as error:
            return x + 1, str(error)

    _check(function)


def test_the_legacy_constructor_takes_a_size_as_a_shape() -> None:
    def function(x: torch.Tensor) -> Any:
        return x.new([1, 2]), x.new(x.size()).shape, x.new(2, 3).shape, x.new(x.shape).dtype

    _check(function)


def test_types_of_python_and_legacy_tensor_types_as_dtypes() -> None:
    def function(x: torch.Tensor) -> Any:
        made = x.to(float), x.type(torch.DoubleTensor), torch.zeros(2, dtype=complex), x.type(torch.LongTensor)
        return x + 1, [one.dtype for one in made], (x + made[0]).dtype

    _check(function)


class AsksItsSuper:
    def names(self) -> tuple[str, str]:
        return super().__class__.__name__, self.__class__.__name__


def test_the_class_of_super_is_super() -> None:
    made = AsksItsSuper()
    found = stator.compile(lambda x: (x + 1, made.names()), backend="eager", fullgraph=True)(torch.ones(1))
    assert found[1] == made.names() == ("super", "AsksItsSuper")


Item = TypeVar("Item")


class Box(Generic[Item]):
    def __init__(self, value: Item) -> None:
        self.value = value


@dataclasses.dataclass(frozen=True)
class FrozenBox(Generic[Item]):
    value: Item


def test_instances_of_a_generic_class_with_an_argument() -> None:
    def function(x: torch.Tensor) -> Any:
        made = Box[int](3)
        return x + made.value, made, FrozenBox[Any](x).value

    found = stator.compile(function, backend="eager", fullgraph=True)(torch.ones(1))
    expected = function(torch.ones(1))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[2], expected[2])
    assert type(found[1]) is Box and vars(found[1]) == vars(expected[1]) == {"value": 3, "__orig_class__": Box[int]}
