"""Operators on lists of tensors: shape rules and decompositions agree with eager, for every overload in the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stator.prims.foreach import FOREACH, Foreach
from stator.prims.record import TensorMeta, record

aten = torch.ops.aten
SHAPES = ((3, 2), (4,), ())
NUMBERS = (0.5, 1.5, 2.0)


def tensors(seed: int, matrices: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2),) * 3 if matrices else SHAPES
    return [torch.rand(shape, generator=generator) * 0.7 + 0.2 for shape in shapes]


def arguments(target: torch._ops.OpOverload) -> list[Any]:
    given: list[Any] = []
    for at, argument in enumerate(target._schema.arguments):
        if argument.kwarg_only or argument.has_default_value():
            continue
        kind = str(argument.type)
        if kind == "List[Tensor]":
            given.append(tensors(at, matrices="mm" in target._schema.name))
        elif kind.startswith("List["):
            given.append(list(NUMBERS))
        else:
            given.append(torch.tensor(1.5) if kind == "Tensor" else 1.5)
    return given


def meta(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


@pytest.mark.parametrize("entry", FOREACH, ids=lambda entry: str(entry.target))
def test_each_element_is_as_in_eager(entry: Foreach) -> None:
    args = arguments(entry.target)
    expected = entry.target(*args)
    assert record(entry.target).shape(*args) == [meta(tensor) for tensor in expected]
    found = record(entry.target).decompose(*args)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["_foreach_addcmul", "_foreach_addcdiv"])
def test_one_number_of_a_tensor_for_each_element(name: str) -> None:
    target = getattr(aten, name).Tensor
    args = (tensors(0), tensors(1), tensors(2), torch.tensor(NUMBERS, dtype=torch.float64))
    for one, other in zip(record(target).decompose(*args), target(*args), strict=True):
        torch.testing.assert_close(one, other)


def test_a_factor_counts_for_add_and_sub() -> None:
    for target in (aten._foreach_add.List, aten._foreach_sub.List):
        found = record(target).decompose(tensors(0), tensors(1), alpha=0.5)
        for one, other in zip(found, target(tensors(0), tensors(1), alpha=0.5), strict=True):
            torch.testing.assert_close(one, other)


def test_lists_of_different_lengths_are_refused() -> None:
    rule = record(aten._foreach_add.List).shape
    assert rule is not None
    with pytest.raises(RuntimeError, match="same number of tensors"):
        rule(tensors(0), tensors(1)[:2])


def test_in_place_forms_refuse_what_does_not_fit() -> None:
    rule = record(aten._foreach_add_.List).shape
    assert rule is not None
    assert rule(tensors(0), tensors(1)) is None
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        rule([torch.ones(2)], [torch.ones(3, 2)])
    with pytest.raises(RuntimeError, match="can't be cast"):
        rule([torch.ones(2, dtype=torch.int64)], [torch.ones(2)])
