"""A device without a GPU, for tests of recorded programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from fake_capture import FakeCapture

from stator.base import logs
from stator.runtime.cuda.graphs import GraphPool, InputDescription, record

CPU = torch.device("cpu")


class World:
    """A device without a GPU, and programs on it."""

    def __init__(self) -> None:
        self.capture = FakeCapture()
        self.pool = GraphPool(CPU, self.capture)

    def program(
        self,
        call: Callable[..., Sequence[Any]],
        count: int = 1,
        *,
        parameters: Sequence[int] = (),
        written: Sequence[int] = (),
        numbers: Sequence[int] = (),
        sizes: Sequence[tuple[int, int]] = (),
        boxed: bool = False,
        visible: int | None = None,
    ) -> Any:
        tensors = tuple(at for at in range(count) if at not in numbers)
        description = InputDescription(
            tensors,
            frozenset(parameters),
            frozenset(written),
            (*sizes, *[(at, -1) for at in numbers]),
            boxed,
        )
        return record(self.capture.watched(call, boxed), description, self.pool, "a program", visible)


@pytest.fixture
def world() -> Iterator[World]:
    logs.forget_warnings()
    with torch.no_grad():
        yield World()


def double(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * 2,)


__all__ = ["World", "double", "world"]
