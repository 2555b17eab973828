"""A program that puts functions of its own into `torch.Tensor` gets what eager gives, before, while and after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import stator

BACKENDS = ("eager", "aot_eager")
OWN_ADD = torch.Tensor.__add__
OWN_MUL = torch.Tensor.mul


@contextmanager
def replaced(name: str, function: Any) -> Iterator[None]:
    had, before = name in torch.Tensor.__dict__, torch.Tensor.__dict__.get(name)
    setattr(torch.Tensor, name, function)
    try:
        yield
    finally:
        if had:
            setattr(torch.Tensor, name, before)
        else:
            delattr(torch.Tensor, name)


CASES: dict[str, tuple[str, Any, Callable[[torch.Tensor], Any]]] = {
    "method": ("add", lambda x, y: x * 7, lambda x: x.add(1)),
    "method that calls torch's": ("mul", lambda x, y: OWN_MUL(x, y) - 3, lambda x: x.mul(2)),
    "operator": ("__neg__", lambda x: x * 5, lambda x: -x),
    "operator that calls torch's": ("__add__", lambda x, y: OWN_ADD(x, y) * 100, lambda x: x + 1),
    "reflected operator": ("__rsub__", lambda x, y: x * 11, lambda x: 1 - x),
    "operator in place": ("__iadd__", lambda x, y: x.mul_(9), lambda x: __import__("operator").iadd(x.clone(), 1)),
    "comparison": ("__lt__", lambda x, y: "less", lambda x: x < 0),
    "subscript": ("__getitem__", lambda x, key: "item", lambda x: x[0]),
    "length": ("__len__", lambda x: 1, lambda x: (x + 1, len(x))),
    "iteration": ("__iter__", lambda x: iter("ab"), lambda x: (x + 1, list(x), [*x])),
    "truth": ("__bool__", lambda x: True, lambda x: x + 1 if x.sum() * 0 else x - 1),
    "property": ("mT", property(lambda x: x * 8), lambda x: x.mT + 1),
    "attributes that are not there": ("__getattr__", lambda x, name: name * 2, lambda x: (x, getattr(x, "nothing", 0))),
    "number": ("__float__", lambda x: 3.0, lambda x: (x + 1, float(x.sum()))),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


# CPython leaves a type that once had a `__getitem__` in Python with `sq_item`, too, and torch takes what has that for
# a sequence: `torch.tensor([x.sum()])` asks for the number's length from then on
OWN_PROCESS = {"subscript"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_methods_that_are_replaced_between_calls(case: str, backend: str) -> None:
    if case not in OWN_PROCESS:
        return replace_between_calls(case, backend)
    module = Path(__file__)
    command = f"import {module.stem}; {module.stem}.replace_between_calls({case!r}, {backend!r})"
    done = subprocess.run([sys.executable, "-c", command], cwd=module.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def replace_between_calls(case: str, backend: str) -> None:
    name, function, program = CASES[case]
    x = torch.tensor([-1.0, 2.0]).view(2, 1) if case == "property" else torch.tensor([-1.0, 2.0])
    compiled = stator.compile(program, backend=backend)
    assert same(compiled(x), program(x))
    with replaced(name, function):
        assert same(compiled(x), program(x))
    assert same(compiled(x), program(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_methods_that_a_program_adds_are_followed_and_relied_on(backend: str) -> None:
    seen: list[int] = []

    def twice(x: Any) -> Any:
        seen.append(x.dim())
        return x * 2

    x = torch.tensor([-1.0, 2.0])
    compiled = stator.compile(lambda x: x.of_ours() + 1, backend=backend)
    with replaced("of_ours", twice):
        assert stator.explain(lambda x: x.of_ours() + 1)(x).graph_break_count == 0
        seen.clear()
        assert torch.equal(compiled(x), x * 2 + 1)
        assert torch.equal(compiled(x), x * 2 + 1)
        assert seen == [1, 1]
    with replaced("of_ours", lambda x: x - 42):
        assert torch.equal(compiled(x), x - 41)
    with pytest.raises(AttributeError, match="of_ours"):
        compiled(x)
