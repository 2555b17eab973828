"""Weak references that are asked in captured code, before and behind the end of what they refer to."""

from __future__ import annotations

import functools
import gc
import weakref
from collections import OrderedDict
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


def makes_and_keeps(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    holder.kept = weakref.ref(holder.it)  # type: ignore[attr-defined]
    return x + 1, holder.kept  # type: ignore[attr-defined]


def makes_and_compares(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    made = weakref.ref(holder.it)
    y = x + 1
    return y, made is reference, made == reference, weakref.ref(holder.it) is made, made == weakref.ref(holder)


def makes_before_the_end(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    made = weakref.ref(holder.it)
    del holder.it
    return made() is None, x + 1


def makes_with_a_callback(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    ends: list[int] = []
    made = weakref.ref(holder.it, lambda _: ends.append(1))
    holder.it = None
    return made() is None, ends, x + 1


def makes_of_what_has_none(holder: Holder, reference: Any, x: torch.Tensor) -> Any:
    try:
        weakref.ref(3)
    except TypeError as error:
        return str(error), x + 1


def test_references_made_in_the_frame_are_real_outside_of_it() -> None:
    compiled = stator.compile(makes_and_keeps, backend="eager")
    for _ in range(2):
        holder = Holder()
        holder.it = Held()
        _, kept = compiled(holder, None, torch.zeros(1))
        assert kept is holder.kept is weakref.ref(holder.it)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "function",
    [makes_and_compares, makes_before_the_end, makes_with_a_callback, makes_of_what_has_none],
    ids=lambda it: it.__name__,
)
def test_references_made_in_the_frame_are_as_in_eager(function: Callable[..., Any]) -> None:
    run = stator.compile(function, backend="eager")
    called(run)  # while a call is compiled, what it was given may be kept for longer
    for _ in range(2):
        assert called(run) == called(function)


def registers(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    handle = layer.register_forward_hook(lambda module, args, output: output * 3)
    y = layer(x)
    handle.remove()
    return y, layer(x)


def writes_a_hook(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    first = layer(x)
    layer._forward_pre_hooks[1234567] = lambda module, args: (args[0] + 1,)
    second = layer(x)
    del layer._forward_pre_hooks[1234567]
    return first, second, layer(x)


def replaces_hooks(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    first = layer(x)
    layer._forward_hooks = OrderedDict({5: lambda module, args, output: output * 3})
    second = layer(x)
    layer._forward_hooks = OrderedDict()
    return first, second, layer(x)


def writes_a_hook_of_all_modules(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    hooks = torch.nn.modules.module._global_forward_hooks
    first = layer(x)
    hooks[77] = lambda module, args, output: output * 3
    second = layer(x)
    del hooks[77]
    return first, second, layer(x)


@pytest.mark.parametrize(
    "function", [registers, writes_a_hook, replaces_hooks, writes_a_hook_of_all_modules], ids=lambda it: it.__name__
)
def test_hooks_that_come_and_go_in_the_graph_are_called(function: Callable[..., Any]) -> None:
    """A handle of a hook holds a weak reference to the dictionary of hooks."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(2, 2), torch.randn(3, 2)
    compiled = stator.compile(function, backend="eager", fullgraph=function is not registers)
    for _ in range(2):
        assert all(map(torch.equal, compiled(layer, x), function(layer, x)))
    assert not layer._forward_hooks and not layer._forward_pre_hooks


@pytest.mark.parametrize("keep_empty_graphs", [False], indirect=True)
def test_what_a_class_holds_that_the_program_defines_goes_with_it(keep_empty_graphs: None) -> None:
    def program() -> Any:
        class Holder:
            @staticmethod
            @functools.lru_cache
            def cached(value: int) -> int:
                return value

        reference = weakref.ref(Holder.cached)
        before = reference() is not None
        del Holder
        gc.collect()
        return before, reference() is None

    assert stator.compile(program, backend="eager")() == (True, True)
