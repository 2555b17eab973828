"""Capture of tensors that are made of other tensors: guards on their parts, attributes, and what breaks the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import Counts, assert_same, check
from tests.wrapper_tensors import Labelled, Overriding, Quantized, pair, values
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import stator


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "others",
    [
        [lambda: Labelled(values(3), 3)],
        [lambda: Labelled(values(4), 2)],
        [lambda: Labelled(values(3).double(), 2)],
        [lambda: Labelled(values(3), 2).requires_grad_()],
        [lambda: pair(3), lambda: values(3)],
    ],
    ids=["context", "size", "dtype", "requires_grad", "class"],
)
def test_guards_tell_tensors_apart(others: Any, backend: str) -> None:
    function = lambda x: x * 2  # noqa: E731
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    counts = Counts()
    for make in (lambda: Labelled(values(3), 2), *others, lambda: Labelled(values(3), 2)):
        assert_same(compiled(make()), function(make()))
    assert counts.compilations == 1 + len(others)


def test_a_guard_of_the_class_compares_contexts() -> None:
    class Even(Labelled):
        @staticmethod
        def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Even:
            return Even(inner["inner"], context["label"])

        @classmethod
        def __metadata_guard__(cls, before: Any, now: Any) -> bool:
            return before["label"] % 2 == now["label"] % 2

    compiled = stator.compile(lambda x: x.sin(), backend="eager", fullgraph=True)
    counts = Counts()
    for label in (2, 4, 6, 3):
        compiled(Even(values(3), label))
    assert counts.compilations == 2


def test_a_class_that_makes_tensors_without_size_and_strides() -> None:
    class Brief(Labelled):
        @staticmethod
        def __tensor_unflatten__(inner: Any, context: Any) -> Brief:  # type: ignore[override]
            return Brief(inner["inner"], context["label"])

    for backend in ("eager", "inductor"):
        check(lambda x: (x * 2).sin(), make=lambda: (Brief(values(3), 2),), backend=backend, fullgraph=True)


def test_attributes_and_methods() -> None:
    def program(x: Labelled, y: torch.Tensor) -> Any:
        z = x.sin()
        kinds = type(z), isinstance(x, Labelled), x.is_leaf, z.shape, z.dtype
        return kinds, x.inner + y, z.inner * z.label, x.labelled(2), (x.label, z.label)

    check(program, make=lambda: (Labelled(values(3), 2), values(3)), fullgraph=True)


def test_parts_of_one_tensor_as_inputs_of_their_own() -> None:
    def program(x: TwoTensor) -> Any:
        x.a.add_(1)
        y = x + 1
        x.mul_(2)
        return y, x.a

    for backend in ("eager", "aot_eager", "inductor"):
        check(program, make=lambda: (pair(3),), backend=backend, fullgraph=True)


def test_module_with_parameters() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(pair(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    model = Model()
    compiled = stator.compile(model, backend="aot_eager", fullgraph=True)
    assert_same(compiled(values(2, 3)), model(values(2, 3)))
    model.weight = nn.Parameter(pair(3, 3, seed=1))
    assert_same(compiled(values(2, 3)), model(values(2, 3)))
    model.weight.a = values(3, 3, seed=5)
    assert_same(compiled(values(2, 3)), model(values(2, 3)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_tensors_made_inside(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        made = TwoTensor(x, x * 2)
        nested = TwoTensor(made, TwoTensor(y, y)) * y
        return made, made + y, nested.b.a, Labelled(y, 3).labelled(1)

    check(program, make=lambda: (values(3), values(3, seed=1)), backend=backend, fullgraph=True)


def test_what_is_not_captured_breaks() -> None:
    def program(x: TwoTensor, y: torch.Tensor) -> Any:
        made = TwoTensor(y, y * 2)
        x.a = y.detach()
        return x + 1, made * 3, torch.vmap(torch.sin)(y)

    check(program, make=lambda: (pair(3), values(3, grad=True)))


def test_block_without_torch_functions() -> None:
    def program(x: torch.Tensor, weight: torch.Tensor) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            y = F.softmax(weight, 0)
        return y, F.softmax(weight, 0) + x

    check(program, make=lambda: (values(1), Quantized.of(values(3, 4), Overriding)))


class Noted(Labelled):
    __slots__ = ("note",)


def test_a_slot_of_a_tensor_from_outside_is_read_and_guarded() -> None:
    function = lambda x: x * x.note  # noqa: E731
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    for note in (2, 3):
        x = Noted(values(3), 2)
        x.note = note
        assert_same(compiled(x), function(x))
