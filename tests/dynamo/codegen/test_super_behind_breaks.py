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


class InTwoForms(Base):
    def turns(self, x: torch.Tensor) -> Any:
        y = super().turns(x)
        unseen()
        found = super()
        return (lambda: self.part(1))(), found.turns(y)


class NoCell(Base):
    def turns(self, x: torch.Tensor) -> Any:
        unseen()
        y = super().turns(x)
        unseen()
        return super().turns(y)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [BreaksInside, AsksAgain, AsksInALoop, InTwoForms, NoCell])
def test_super_finds_its_receiver(kind: type[Base]) -> None:
    run = stator.compile(kind().turns, backend="eager")
    for _ in range(2):
        assert repr(run(torch.ones(2))) == repr(kind().turns(torch.ones(2)))


class Made:
    def __new__(cls, *args: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, log: list[str]) -> None:
        log.append("made")


class MadeByWayOfSuper(Made):
    """What `super()` gives waits in a variable while the graph breaks; its class has methods of these names, too."""

    def __new__(cls, x: torch.Tensor, log: list[str]) -> Any:
        found = super()
        stator.graph_break()
        return found.__new__(cls)

    def __init__(self, x: torch.Tensor, log: list[str]) -> None:
        found = super()
        stator.graph_break()
        found.__init__(log)
        self.x = x


def test_super_itself_goes_on_behind_a_break() -> None:
    def program(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        return MadeByWayOfSuper(x + 1, log).x * 2

    x = torch.rand(3, generator=torch.Generator().manual_seed(1))
    logs: list[list[str]] = [[], []]
    assert torch.equal(stator.compile(program, backend="eager")(x, logs[0]), program(x, logs[1]))
    assert logs[0] == logs[1] == ["made"]
