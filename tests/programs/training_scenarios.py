"""Scenarios with gradients: functions of `compiled` that return all that they saw, run eagerly and compiled.

`whole` scenarios must be one graph and give no warning; others may break or run eagerly, and must still be exact.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import stator

BACKENDS = ("eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow))
_TOLERANCES = {"eager": (0.0, 0.0), "aot_eager": (1e-6, 1e-6), "inductor": (1e-4, 1e-5)}
_OF_NARROW = (2e-2, 2e-2)  # bfloat16 and float16 round at other places


@dataclass(frozen=True)
class Scenario:
    run: Callable[[Callable[..., Any]], Any]
    whole: bool


def collector() -> tuple[list[Any], Callable[..., Any]]:
    """A list of scenarios for pytest, and the decorator that fills it: `@scenario` or `@scenario(whole=False)`."""
    scenarios: list[Any] = []

    def scenario(function: Any = None, *, whole: bool = True) -> Any:
        if function is None:
            return functools.partial(scenario, whole=whole)
        scenarios.append(pytest.param(Scenario(function, whole), id=function.__name__.strip("_")))
        return function

    return scenarios, scenario


def check(scenario: Scenario, backend: str) -> None:
    """The scenario gives the same with and without compilation: structure, dtypes, requires_grad, values."""
    expected = _outcome(scenario, lambda target: target)
    stator.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = functools.partial(stator.compile, backend=backend, fullgraph=scenario.whole)
        actual = _outcome(scenario, compiled)
    ours = [str(warning.message) for warning in caught if str(warning.message).startswith("stator")]
    assert not (scenario.whole and ours), ours
    _assert_same(expected, actual, backend)


def _outcome(scenario: Scenario, compiled: Callable[..., Any]) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    try:
        return pytree.tree_flatten(scenario.run(compiled))
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, stator.StatorError):
            raise
        return [type(error).__name__, str(error).splitlines()[0]], None


def _assert_same(expected: tuple[list[Any], Any], actual: tuple[list[Any], Any], backend: str) -> None:
    assert actual[1] == expected[1], f"{actual[1]} instead of {expected[1]}: {actual[0]}"
    for at, (ours, theirs) in enumerate(zip(actual[0], expected[0], strict=True)):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs, f"leaf {at}: {ours} instead of {theirs}"
            continue
        facts = [(one.dtype, tuple(one.shape), one.requires_grad, one.layout) for one in (ours, theirs)]
        assert facts[0] == facts[1], f"leaf {at}"
        narrow = theirs.dtype in (torch.bfloat16, torch.float16)
        rtol, atol = _OF_NARROW if narrow else _TOLERANCES[backend]
        assert torch.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True), f"leaf {at}: {ours} is not {theirs}"


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers that require grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def gradients(loss: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor | None]:
    """Run the backward; `.grad` of the tensors, which are cleared."""
    loss.backward()
    found = [None if tensor.grad is None else tensor.grad.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    return found
