"""Under fullgraph=True, an exception of the program is raised as in eager; a graph break raises `Unsupported`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator.base.errors import CompileError, RecompileError

Program = Callable[[torch.Tensor], Any]


class Mine(ValueError):
    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class Stop(BaseException):
    pass


EARLIER = Mine("made before", 2)


def raises_behind_a_write(x: torch.Tensor) -> Any:
    x.add_(1)
    raise Mine("mine", 3)


def throw(error: BaseException) -> None:
    raise error


def checked(x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 1:
        raise Mine("inner", 4) from KeyError("cause")
    return x


def raises_through_finally(x: torch.Tensor) -> Any:
    try:
        return x + torch.ones(7)
    finally:
        x.add_(1)


PROGRAMS: dict[str, Program] = {
    "raise": raises_behind_a_write,
    "raise in a call": lambda x: checked(x * 2),
    "finally": raises_through_finally,
    "object from before": lambda x: throw(EARLIER),
    "BaseException": lambda x: throw(Stop("now")),
    "shapes": lambda x: x + torch.ones(7),
    "linear": lambda x: nn.functional.linear(x, torch.ones(2, 9)),
    "reshape": lambda x: x.reshape(17),
    "dtype": lambda x: x.masked_fill(x, 3),
    "leaf": lambda x: torch.zeros(2, requires_grad=True).add_(1),
    "attribute": lambda x: x.nosuch,
    "index": lambda x: x[0, 0],
    "key": lambda x: {}["nosuch"],
    "arguments": lambda x: checked(x, 3),  # type: ignore[call-arg]
    "no callable": lambda x: (x.dim())(),  # type: ignore[operator]
    "exit": lambda x: sys.exit(3),
    "group": lambda x: throw(ExceptionGroup("several", [ValueError("one"), KeyError("two")])),
    "array": lambda x: (x + torch.ones(4, requires_grad=True)).numpy(),
    "backward": lambda x: x.sum().backward(),  # type: ignore[no-untyped-call]
    "truth of many": lambda x: 1 if x else 2,
    "item of many": lambda x: x.item(),
    "module": nn.Linear(5, 2),
}


def outcome(program: Program) -> tuple[Any, ...]:
    x = torch.ones(4)
    with pytest.raises(BaseException) as caught:
        program(x)
    error = caught.value
    place = traceback.extract_tb(error.__traceback__)[-1]
    return type(error), str(error), repr(error.__cause__), vars(error), place.filename, place.lineno, x.tolist()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_exception_is_raised_as_in_eager(name: str) -> None:
    compiled = stator.compile(PROGRAMS[name], backend="eager", fullgraph=True)
    for _ in range(2):
        assert outcome(compiled) == outcome(PROGRAMS[name])


def test_calls_that_do_not_raise_stay_compiled() -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(gm)
        return gm

    def program(x: torch.Tensor, fails: bool) -> torch.Tensor:
        if fails:
            raise Mine("asked for", 1)
        return x + 1

    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for fails in (False, True, False, True, False):
        if fails:
            with pytest.raises(Mine, match="asked for"):
                compiled(torch.ones(2), fails)
        else:
            assert compiled(torch.ones(2), fails).tolist() == [2, 2]
    assert len(graphs) == 1


def test_an_error_that_the_program_handles_is_a_break() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return x + torch.ones(7)
        except RuntimeError:
            return x

    with pytest.raises(stator.Unsupported, match="torch-error"):
        stator.compile(program, backend="eager", fullgraph=True)(torch.ones(4))


@pytest.mark.parametrize("cls", [stator.StatorError, stator.Unsupported, CompileError, RecompileError])
def test_errors_are_runtime_errors(cls: type) -> None:
    assert issubclass(cls, RuntimeError)
