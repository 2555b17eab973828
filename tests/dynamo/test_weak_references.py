"""Weak references that are asked in captured code, before and behind the end of what they refer to."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator


class Held:
    value = 3


class Holder:
    it: Held | None


def reads(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    return reference().value, reference() is holder.it, x + 1


def deletes(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    before = reference() is None
    del holder.it
    return before, reference() is None, x + 1


def replaces(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    holder.it = None
    return reference() is None, x + 1


def takes_out(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    local = holder.__dict__.pop("it")
    kept = reference() is local
    del local
    return kept, reference() is None, x + 1


class OwnReference(weakref.ref):  # type: ignore[type-arg]
    def __call__(self) -> int:
        return 7


def called(function: Callable[..., Any], kind: Any = weakref.ref) -> str:
    holder = Holder()
    holder.it = Held()
    return repr(function(holder, kind(holder.it), torch.zeros(1)))


@pytest.mark.parametrize("function", [reads, deletes, replaces, takes_out], ids=lambda it: it.__name__)
def test_what_was_dropped_is_gone(function: Callable[..., Any]) -> None:
    run = stator.compile(function, backend="eager")
    called(run)  # while a call is compiled, what it was given may be kept for longer
    for _ in range(2):
        assert called(run) == called(function)


@pytest.mark.filterwarnings("error")
def test_a_reference_with_a_call_of_its_own() -> None:
    def asks(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
        return reference(), x + 1

    assert called(stator.compile(asks, backend="eager"), OwnReference) == called(asks, OwnReference)
