"""`with torch.device(...)` inside of captured code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


@pytest.fixture(autouse=True)
def no_default_device_is_left() -> Any:
    yield
    assert torch.get_default_device() == torch.device("cpu")


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.device.type, tuple(value.shape), None if value.is_meta else value.tolist()
    return [_facts(item) for item in value] if isinstance(value, tuple) else value


def _check(function: Callable[[torch.Tensor], Any], backend: str, *, fullgraph: bool) -> None:
    x = torch.randn(3)
    expected = _facts(function(x))
    assert _facts(stator.compile(function, backend=backend, fullgraph=fullgraph)(x)) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_factories_take_the_device_of_the_innermost_block(backend: str) -> None:
    def function(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            outer = torch.zeros(2), torch.ones(2, device="cpu"), torch.tensor(1.0), torch.zeros_like(x)
            asked = str(torch.get_default_device())
            with torch.device("cpu"):
                inner = torch.arange(3), torch.fft.fftfreq(4)
        return outer, inner, torch.ones(2), asked, x + 1

    _check(function, backend, fullgraph=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_random_numbers_on_a_device_without_a_generator(backend: str) -> None:
    def function(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            layer = torch.nn.Linear(3, 2)  # which draws its weights
            drawn = torch.rand(2), torch.nn.functional.dropout(torch.ones(4))
        return layer.weight.shape, drawn, torch.rand_like(x, device="meta"), x + 1

    _check(function, backend, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_block_goes_on_behind_a_graph_break(backend: str) -> None:
    def function(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            first = torch.zeros(2)
            stator.graph_break()
            second, asked = torch.zeros(3), str(torch.get_default_device())
        return first, second, asked, torch.zeros(1), x + 1

    _check(function, backend, fullgraph=False)


def test_an_exception_leaves_the_block() -> None:
    def function(x: torch.Tensor) -> Any:
        try:
            with torch.device("meta"):
                made = torch.zeros(2)
                raise ValueError("out")
        except ValueError:
            return made, torch.zeros(1), x + 1

    def escaping(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            x = x + 1
            raise KeyError("out")

    _check(function, "eager", fullgraph=True)
    with pytest.raises(KeyError):
        stator.compile(escaping, backend="eager")(torch.ones(2))
