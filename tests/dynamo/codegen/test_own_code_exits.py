"""The exit from a frame's own code at a break: after some calls in which nothing compiled runs behind it, the frame
runs on; and where something compiled runs, or comes to run later, it does not."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.cache.entry import cache_of

pytestmark = [pytest.mark.fixed_sizes, pytest.mark.usefixtures("small_graphs")]

TEXT = b"text"
CALLS = 100  # more than an exit is watched for, and more than run on between two that take it


def one_break(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    zlib.crc32(TEXT)
    return y.exp() - x


def two_breaks(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    zlib.crc32(TEXT)
    y = y.exp() - x
    zlib.crc32(TEXT)
    return y * 2


def turns(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = x * x
        zlib.crc32(TEXT)
    return x - 1


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    if y.sum() > 4:
        return y.exp() + x
    return y - x


def handled(x: torch.Tensor) -> torch.Tensor:
    y = x * x
    try:
        zlib.crc32(TEXT)
        y = y + 1
    finally:
        y = y.exp()
    return y * x


def leaf(value: float = 0.5, size: int = 8) -> torch.Tensor:
    return torch.full((size,), value).requires_grad_()


def exits(compiled: Any) -> list[Any]:
    """The exits of the versions that were made for the first calls of a function."""
    codes = [version.code for version in cache_of(compiled).versions if version.code is not None]
    return [one for code in codes for one in code.co_consts if type(one).__name__ == "OwnCodeExit"]


def runs_on(compiled: Any) -> bool:
    """Whether a frame runs on at some exit. An exit is taken now and then, but not twice in a row."""
    return any(one.runs_on for one in exits(compiled) for _ in range(2))


@pytest.mark.parametrize("program", [one_break, two_breaks, turns, branches, handled])
def test_the_frame_runs_on(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = stator.compile(program)
    for call in range(CALLS):
        x = leaf(0.5 + call % 2)
        assert torch.equal(compiled(x), program(x))
    assert runs_on(compiled)


def test_compiled_code_behind_the_exit_is_reached() -> None:
    size = 8

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        zlib.crc32(TEXT)
        return y.sum() + (other * 2).tanh() * other

    compiled = stator.compile(program)
    for size in (8, 1 << 16):
        other = leaf(0.5, size)
        for _ in range(CALLS):
            torch.testing.assert_close(compiled(leaf()), program(leaf()))
        assert runs_on(compiled) == (size == 8)


def test_frames_that_are_compiled_behind_the_exit_stay_compiled() -> None:
    large = leaf(0.5, 1 << 16)

    def inner(_: Any) -> int:
        return int(((large * 2).tanh() * large).sum() > 0)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        zlib.crc32(TEXT)
        y = y * max([1, 2], key=inner)
        return y - x

    compiled = stator.compile(program)
    for _ in range(CALLS):
        assert torch.equal(compiled(leaf()), program(leaf()))
    assert exits(compiled)
    assert not runs_on(compiled)
