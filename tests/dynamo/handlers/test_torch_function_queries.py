"""`torch.overrides.has_torch_function` and its relatives, on objects that override torch functions, and others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import has_torch_function, has_torch_function_unary, has_torch_function_variadic

import stator


class Overriding:
    @classmethod
    def __torch_function__(cls, *_: Any) -> int:
        return 42


class OverridingList(list):
    __torch_function__ = Overriding.__torch_function__


class Disabled:
    __torch_function__ = torch._C._disabled_torch_function_impl


class OfInstance:
    def __init__(self) -> None:
        self.__torch_function__ = Overriding.__torch_function__


def given(x: torch.Tensor, kind: type, one: Any) -> Any:
    queries = has_torch_function((x, one)), has_torch_function_unary(one), has_torch_function_variadic(x, one)
    return x + 1, queries, torch._C._has_torch_function([one])


def made(x: torch.Tensor, kind: type, one: Any) -> Any:
    return given(x, kind, kind())


def disabled(x: torch.Tensor, kind: type, one: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return given(x, kind, one)


@pytest.mark.parametrize("program", [given, made, disabled])
@pytest.mark.parametrize("kind", [Overriding, OverridingList, Disabled, OfInstance, list, int])
def test_objects_override_as_in_eager(program: Any, kind: type) -> None:
    x, one = torch.zeros(2), kind()
    compiled = stator.compile(program, backend="eager", fullgraph=program is not disabled)
    assert repr(compiled(x, kind, one)) == repr(program(x, kind, one))


@pytest.mark.parametrize("one", [torch.ones(2), torch.nn.Parameter(torch.ones(2)), torch.ones(2).numpy(), Overriding])
def test_tensors_arrays_and_classes(one: Any) -> None:
    x = torch.zeros(2)
    assert repr(stator.compile(given, backend="eager", fullgraph=True)(x, int, one)) == repr(given(x, int, one))
