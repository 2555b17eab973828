"""Attributes of classes that getattr does not find, since the metaclass answers first: instances read them."""

from __future__ import annotations

from typing import Any

import torch

import stator


class Named(type):
    @property
    def level(cls) -> int:
        return 7


def test_instances_read_what_the_class_holds() -> None:
    class Odd(metaclass=Named):
        """Text."""

        __class__ = 413  # type: ignore[assignment]
        level = 3

    odd = Odd()

    def function(x: torch.Tensor) -> Any:
        return x + 1, odd.__class__, odd.level, odd.__doc__, type(odd).level

    compiled = stator.compile(function, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1:] == function(torch.ones(2))[1:] == (413, 3, "Text.", 7)
