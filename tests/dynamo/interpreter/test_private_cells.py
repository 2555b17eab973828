"""Cells of variables that closures share: behind a graph break, writes to cells that nothing but the frame holds are no
effects of the frame, and closures that live on see every write."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

TEXT = b"text"


def written_behind_a_comprehension(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    total = sum(y * factor for factor in range(3))
    zlib.crc32(TEXT)
    y = y * total
    return y.exp() - 1


def written_twice(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    total = sum(y * factor for factor in range(3))
    zlib.crc32(TEXT)
    y = y * total
    zlib.crc32(TEXT)
    y = y - 3
    return y * y


def called(x: torch.Tensor) -> torch.Tensor:
    return written_behind_a_comprehension(x * 2) + 1


def returned_closure(x: torch.Tensor) -> Any:
    y = x + 1

    def read() -> torch.Tensor:
        return y

    zlib.crc32(TEXT)
    y = y * 2
    return read


def closure_made_behind(x: torch.Tensor) -> Any:
    y = x + 1
    parts = [y * factor for factor in range(2)]
    zlib.crc32(TEXT)
    y = y * parts[1]
    zlib.crc32(TEXT)

    def read() -> torch.Tensor:
        return y

    y = y - 3
    return read


def closure_in_another_cell(x: torch.Tensor) -> Any:
    y = x + 1

    def read() -> torch.Tensor:
        return y

    def reads() -> torch.Tensor:
        return read()

    zlib.crc32(TEXT)
    y = y * 2
    return reads


def kept_in_a_list(x: torch.Tensor) -> Any:
    y, found = x + 1, []
    zlib.crc32(TEXT)
    found.append(lambda: y)
    zlib.crc32(TEXT)
    y = y * 2
    zlib.crc32(TEXT)
    y = y - 3
    return found[0]


def written_by_a_closure(x: torch.Tensor) -> torch.Tensor:
    y = x + 1

    def double() -> torch.Tensor:
        nonlocal y
        y = y * 2
        return y

    zlib.crc32(TEXT)
    first = double()
    zlib.crc32(TEXT)
    return first + double() * y


def calls_closures(x: torch.Tensor) -> Any:
    read, reads = returned_closure(x), kept_in_a_list(x * 2)
    zlib.crc32(TEXT)
    return lambda: read() + reads()


PROGRAMS = (
    *(written_behind_a_comprehension, written_twice, called, returned_closure, closure_made_behind),
    *(closure_in_another_cell, kept_in_a_list, written_by_a_closure, calls_closures),
)


def value_of(result: Any) -> Any:
    return result() if callable(result) else result


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_every_write_is_seen(program: Callable[..., Any], requires_grad: bool) -> None:
    compiled = stator.compile(program, backend="aot_eager")
    for _ in range(3):
        x = torch.randn(5, dtype=torch.float64, requires_grad=requires_grad)
        found, expected = value_of(compiled(x)), value_of(program(x))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        if requires_grad:
            gradients = [torch.autograd.grad(one.sum(), x)[0] for one in (found, expected)]
            torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("program", [written_behind_a_comprehension, written_twice, called])
def test_graphs_return_only_what_is_read(program: Callable[..., Any]) -> None:
    results = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        results.append(len(gm.graph.output_node().args[0]))  # type: ignore[arg-type]
        return gm.forward

    stator.compile(program, backend=backend)(torch.randn(5))
    assert results[-1] == 1
