"""super() around breaks, where the receiver lives in a cell because a comprehension of the method reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator


@stator.disable
def unseen(*_: Any) -> None:
    return None


class Base:
    def turns(self, x: torch.Tensor) -> Any:
        for turn in range(2):
            unseen(turn)
        return x + 1

    def part(self, number: int) -> int:
        return number * 2


class BreaksInside(Base):
    def turns(self, x: torch.Tensor) -> Any:
        y = super().turns(x)
        return [self.part(number) for number in range(3)], (lambda: self)() is self, y * 2


class AsksAgain(Base):
    def turns(self, x: torch.Tensor) -> Any:
        unseen()
        y = super().turns(x)
        unseen()
        return [self.part(number) for number in range(3)], super().turns(y)


class AsksInALoop(Base):
    def turns(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = super().turns(x)
            unseen()
        return (lambda: self.part(1))(), __class__, x  # type: ignore[name-defined]


class NoCell(Base):
    def turns(self, x: torch.Tensor) -> Any:
        unseen()
        y = super().turns(x)
        unseen()
        return super().turns(y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [BreaksInside, AsksAgain, AsksInALoop, NoCell])
def test_super_finds_its_receiver(kind: type[Base]) -> None:
    run = stator.compile(kind().turns, backend="eager")
    for _ in range(2):
        assert repr(run(torch.ones(2))) == repr(kind().turns(torch.ones(2)))
