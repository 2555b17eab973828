"""What tells, before a frame is captured, whether its arguments are on a GPU: its tensors and parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stator.dynamo.backend import _tensors_among


def found(*values: Any) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in _tensors_among(values)]


def test_tensors_in_arguments_and_containers_and_first_parameters() -> None:
    x, y, z = torch.ones(1), torch.ones(2), torch.ones(3)
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(4, 5)), nn.Linear(6, 7))
    assert found(model, x, 1, "text", None, (y, [z]), {"x": x}) == [(5, 4), (1,), (2,), (3,), (1,)]


def test_nothing_of_the_program_runs() -> None:
    class Surprise(nn.Module):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    class Other:
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise AssertionError

    class Tensor(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *arguments: Any) -> Any:
            raise AssertionError

    class List(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError

    module = object.__new__(Surprise)
    object.__getattribute__(module, "__dict__").update(_parameters={"weight": nn.Parameter(torch.ones(2))})
    assert found(module, Other(), torch.ones(2).as_subclass(Tensor), List([torch.ones(2)])) == [(2,)]


def test_modules_that_contain_each_other_and_deep_containers_end() -> None:
    outer, inner = nn.Module(), nn.Module()
    outer.inner, inner.outer = inner, outer
    deep: list[Any] = []
    deep.append(deep)
    assert found(outer, deep) == []
