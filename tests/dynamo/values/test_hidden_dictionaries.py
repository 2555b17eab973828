"""Attributes of instances whose dictionary Python code cannot read: some classes written in C have no `__dict__`."""

from __future__ import annotations

import asyncio
from typing import Any, ParamSpec, TypeVarTuple

import pytest
import torch
from tests.differential import check

SHAPE = TypeVarTuple("SHAPE")
GIVEN = ParamSpec("GIVEN")


@pytest.mark.parametrize("parameter", [SHAPE, GIVEN], ids=["TypeVarTuple", "ParamSpec"])
def test_the_module_of_a_type_parameter(parameter: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, parameter.__module__, parameter.__name__

    check(program, torch.ones(2), fullgraph=True)


def test_an_attribute_that_may_be_missing() -> None:
    def program(x: torch.Tensor, future: Any) -> Any:
        return x + 1, getattr(future, "note", None), hasattr(future, "other")

    def make() -> tuple[torch.Tensor, Any]:
        loop = asyncio.new_event_loop()
        future = loop.create_future()
        loop.close()
        future.note = "written"  # type: ignore[attr-defined]
        return torch.ones(2), future

    check(program, make=make)
