"""Members of enumerations that captured code makes, in particular flags together, which have no name of their own."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


def joined(x: torch.Tensor) -> Any:
    class Access(enum.Flag):
        READ = 4
        WRITE = 2

    both = Access.READ | Access.WRITE
    return x + 1, both, both is Access(6), Access


def asked_for(x: torch.Tensor) -> Any:
    class Access(enum.IntFlag):
        READ = 4
        WRITE = 2

    return x + Access(6), Access(6), Access(9), Access(0), ~Access.READ, [one.name for one in Access(6)]


def named_together(x: torch.Tensor) -> Any:
    class Access(enum.Flag):
        READ = 4
        WRITE = 2
        ALL = 6
        NONE = 0

    return x + 1, Access.READ | Access.WRITE, Access(0), Access.READ ^ Access.ALL, Access(4) in Access.ALL


def refused(x: torch.Tensor) -> Any:
    class Access(enum.Flag):
        READ = 4

    try:
        return x, Access(9)
    except ValueError as error:
        return x + 1, str(error)


def shown(value: Any) -> Any:
    return [shown(one) for one in value] if isinstance(value, (tuple, list)) else repr(value)


@pytest.mark.parametrize("function", [joined, asked_for, named_together, refused], ids=lambda one: one.__name__)
def test_flags_are_as_in_eager_in_one_graph(function: Callable[..., Any]) -> None:
    stator.reset()
    compiled = stator.compile(function, backend="eager", fullgraph=True)
    for call in range(2):
        assert shown(compiled(torch.ones(2) + call)) == shown(function(torch.ones(2) + call))
