"""Scenarios: functions of `compiled`, which stands for stator.compile or for doing nothing; both give equal results.

A scenario changes things between calls of what it compiled, differentiates, and returns all that it saw.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import BY_BACKEND, Tolerance, assert_same

import stator

Scenario = Callable[[Callable[..., Any]], Any]
BACKENDS = ("eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow))


def may_break(scenario: Scenario) -> Scenario:
    """This scenario is not one graph."""
    scenario.may_break = True  # type: ignore[attr-defined]
    return scenario


def scenarios(namespace: dict[str, Any]) -> list[Any]:
    """The functions of a module whose only parameter is called `compiled`, as test parameters."""
    found = [one for one in namespace.values() if inspect.isfunction(one) and _parameters(one) == ("compiled",)]
    return [pytest.param(one, id=one.__name__.strip("_")) for one in found]


def _parameters(function: Any) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def check(
    scenario: Scenario, backend: str = "eager", *, whole: bool = False, tolerance: Tolerance | None = None
) -> None:
    """The scenario gives equal results with and without compilation.

    whole: it is also one graph without a warning, unless it may break.
    """
    whole = whole and not hasattr(scenario, "may_break")
    expected = _outcome(scenario, lambda target, **options: target)
    stator.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _outcome(scenario, functools.partial(stator.compile, backend=backend, fullgraph=whole))
    ours = [str(warning.message) for warning in caught if str(warning.message).startswith("stator")]
    assert not (whole and ours), ours
    assert_same(found, expected, tolerance or BY_BACKEND[backend])


def _outcome(scenario: Scenario, compiled: Callable[..., Any]) -> Any:
    torch.manual_seed(0)
    try:
        return scenario(compiled)
    except stator.StatorError:
        raise
    except Exception as error:
        return error


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers that require grad, on the default device; the numbers are those of the CPU's generator."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, dtype=dtype, device="cpu")
    return drawn.to(torch.get_default_device()).requires_grad_()


def gradients(loss: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor | None]:
    """Run the backward; `.grad` of the tensors, which are cleared."""
    loss.backward()
    found = [None if tensor.grad is None else tensor.grad.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    return found
