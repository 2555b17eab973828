"""isinstance and issubclass with classes whose metaclass decides by looking at the object."""

from __future__ import annotations

import sys
import typing
from typing import Any

import pytest
import torch

import stator


class ByValue(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return getattr(instance, "value", 0) == cls.wanted

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass.__name__.startswith("H")


class Three(metaclass=ByValue):
    wanted = 3


class Holder:
    def __init__(self, value: int) -> None:
        self.value = value


def legacy_storage(x: torch.Tensor, one: Any) -> Any:
    return isinstance(one, torch.FloatStorage), isinstance(one, (int, torch.DoubleStorage)), x + 1


def storage_of_input(x: torch.Tensor, one: Any) -> Any:
    kinds = torch.FloatStorage, torch.DoubleStorage, torch.TypedStorage, torch.UntypedStorage
    return [isinstance(x.storage(), kind) for kind in kinds], x + 1


def by_value(x: torch.Tensor, one: Any) -> Any:
    return isinstance(one, Three), isinstance(one, (Three, int)), issubclass(type(one), Three), x + 1


STORAGE = torch.ones(3).untyped_storage()
OBJECTS = [
    torch.storage.TypedStorage(wrap_storage=STORAGE, dtype=torch.float32, _internal=True),
    torch.storage.TypedStorage(wrap_storage=STORAGE, dtype=torch.int32, _internal=True),
    STORAGE,
    Holder(3),
    Holder(4),
]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("program", [legacy_storage, storage_of_input, by_value])
def test_the_answers_are_those_of_eager(program: Any) -> None:
    compiled = stator.compile(program, backend="eager")
    for one in OBJECTS:
        for x in (torch.zeros(2), torch.zeros(2, dtype=torch.float64)):
            assert repr(compiled(x, one)) == repr(program(x, one))


class ByRank(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dim() in RANKS


class Ranked(metaclass=ByRank):
    pass


RANKS = [1]


def test_a_metaclass_looks_at_tensors() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.sum(0)
        return (
            isinstance(x, Ranked),
            isinstance(y, Ranked),
            isinstance(y.numel(), Ranked),
            isinstance(y, (int, Ranked)),
            y,
        )

    compiled, x = stator.compile(program, backend="eager", fullgraph=True), torch.ones(2, 3)
    for ranks in ([1], [2], [1, 2]):
        RANKS[:] = ranks
        assert repr(compiled(x)) == repr(program(x))


def versions(x: torch.Tensor) -> Any:
    new = [sys.version_info >= (3, 99), sys.version_info < (3, 99, 0), sys.version_info[:2] >= (3, 9)]
    return new, sys.flags > (1,), sys.flags > (1,), sys.int_info > (1,), sys.int_info != (1,), x + 1


def test_struct_sequences_that_cannot_be_made_are_compared_again_and_again() -> None:
    x = torch.zeros(2)
    assert repr(stator.compile(versions, backend="eager", fullgraph=True)(x)) == repr(versions(x))


@typing.runtime_checkable
class Sized(typing.Protocol):
    shape: Any

    def keys(self) -> Any: ...


@pytest.mark.filterwarnings("error")
def test_a_tensor_that_does_not_follow_a_protocol_with_data() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, isinstance(x, Sized)

    assert stator.compile(program, backend="eager")(torch.ones(2))[1] is False
