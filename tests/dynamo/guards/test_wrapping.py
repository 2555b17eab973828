"""Constants from outside: what is relied on is a plain value, whatever class it has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import stator
from stator.base import counters


class Text(str):
    """It adds no behaviour."""


class Bytes(bytes):
    pass


class Complex(complex):
    pass


class Integer(int):
    pass


class Float(float):
    pass


class Reversed(bytes):
    def __len__(self) -> int:
        return 7


def by_value(x: Any, value: Any) -> Any:
    return (x + 1, type(value)) if value == WANTED["value"] else (x - 1, type(value))


WANTED: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NotImplemented, Ellipsis),
        (Bytes(b"ab"), Bytes(b"ac")),
        (Complex(1, 2), Complex(1, 3)),
        (Text("ab"), Text("ac")),
        (Integer(3), Integer(4)),
        (Float(3.5), Float(4.5)),
        (torch.finfo(torch.float32), torch.finfo(torch.float16)),
        (torch.iinfo(torch.int32), torch.iinfo(torch.int8)),
        (torch.per_tensor_affine, torch.per_channel_affine),
    ],
    ids=["NotImplemented", "bytes", "complex", "str", "int", "float", "finfo", "iinfo", "qscheme"],
)
def test_a_value_is_told_from_another_of_its_kind(one, other, monkeypatch):
    monkeypatch.setitem(WANTED, "value", one)
    counters.clear()
    compiled = stator.compile(by_value, backend="eager")
    x = torch.arange(3.0)
    for value in (one, other, one):
        expected, found = by_value(x, value), compiled(x, value)
        assert found[1] is expected[1]
        torch.testing.assert_close(found[0], expected[0])
    assert counters.counts["dynamo.failed_frames"] == 0
    assert counters.counts["graphs"] == 2


def test_a_subclass_of_bytes_that_adds_behaviour_is_asked_by_its_own_methods():
    counters.clear()

    def of_length(x: Any, value: Any) -> Any:
        return x * len(value)

    found = stator.compile(of_length, backend="eager")(torch.ones(2), Reversed(b"abc"))
    torch.testing.assert_close(found, torch.full((2,), 7.0))
    assert counters.counts["dynamo.failed_frames"] == 0


def test_parameters_of_a_signature_are_read_in_the_graph_and_stay_there() -> None:
    def counted(x: torch.Tensor) -> Any:
        parameters = inspect.signature(counted).parameters
        return x * len(parameters), "x" in parameters, list(parameters), type(parameters).__name__

    def written(x: torch.Tensor) -> Any:
        parameters: Any = inspect.signature(counted).parameters
        try:
            parameters["y"] = 1
        except TypeError as error:
            return x + 1, str(error), list(parameters.keys())
        return x

    def handed_on(x: torch.Tensor) -> Any:
        parameters = inspect.signature(counted).parameters
        return x + 1, len(parameters), parameters, parameters.items()

    x = torch.arange(3.0)
    assert str(stator.compile(counted, backend="eager", fullgraph=True)(x)) == str(counted(x))
    for function in (written, handed_on):
        assert str(stator.compile(function, backend="eager")(x)) == str(function(x))
