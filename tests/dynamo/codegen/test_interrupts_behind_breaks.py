"""What is raised while code behind a break is compiled, or while its graph runs, is raised where the program goes on
there: blocks open around the break are left as in eager, inner frames' before outer frames'."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.host.native_status import native

LOG: list[Any] = []
X = torch.ones(2)


class Interrupt(BaseException):
    pass


class Block:
    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        LOG.append(f"enter {self.name}")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        LOG.append(f"exit {self.name} {kind and kind.__name__}")


@contextlib.contextmanager
def generated(name: str) -> Iterator[None]:
    LOG.append(f"enter {name}")
    try:
        yield
    finally:
        LOG.append(f"exit {name}")


def blocks(x: Any) -> Any:
    y = x + 1
    try:
        with torch.no_grad(), Block("a"):
            stator.graph_break()
            y = y * 2
            with generated("b"):
                stator.graph_break()
                y = y * 3
    finally:
        LOG.append("finally")
    return y * 5


def in_an_outer_frame(x: Any) -> Any:
    with Block("outer"):
        y = blocks(x)
    return y + 1


def in_a_loop(x: Any) -> Any:
    for i in range(3):
        with Block(str(i)):
            x = x + i
            stator.graph_break()
            x = x * 2
    return x


def in_a_handler(x: Any) -> Any:
    try:
        x = x + 1
        raise KeyError
    except KeyError:
        stator.graph_break()
        x = x * 2
        stator.graph_break()
        x = x * 3
    finally:
        LOG.append("finally")
    return x


def in_operands(x: Any) -> Any:
    with Block("a"):
        return [x * 2, blocks(x), x * 3][1] + 1


def caught(x: Any) -> Any:
    for _ in range(2):
        try:
            stator.graph_break()
            x = x * 2
            stator.graph_break()
            x = x * 3
        except Interrupt:
            LOG.append("caught")
        else:
            LOG.append("else")
    return x


PROGRAMS = [blocks, in_an_outer_frame, in_a_loop, in_a_handler, in_operands, caught]


class Backend:
    """Interrupted when it is called for the nth time, or what it has compiled is."""

    def __init__(self, at: int, running: bool) -> None:
        self.at, self.running = at, running

    def count(self) -> None:
        self.at -= 1
        if self.at == 0:
            raise Interrupt

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*inputs: torch.Tensor) -> Any:
            self.count()
            return gm(*inputs)

        if self.running:
            return run
        self.count()
        return gm


def entered_and_left() -> list[str]:
    """The blocks in the order in which they were left, and nothing else is open."""
    open_blocks, left = [], []
    for text in LOG:
        if text.startswith("enter"):
            open_blocks.append(text.split()[1])
        elif text.startswith("exit"):
            assert open_blocks.pop() == text.split()[1]
            left.append(text)
    assert not open_blocks
    return left


@pytest.mark.parametrize("running", [False, True], ids=["compiling", "running"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_open_blocks_are_left(program: Callable[..., Any], running: bool) -> None:
    LOG.clear()
    expected = program(X)
    whole = list(LOG)
    interrupted = 0
    for at in range(1, 12):
        LOG.clear()
        backend = Backend(at, running)
        compiled = stator.compile(program, backend=backend)
        try:
            result = compiled(X)
        except Interrupt as error:
            interrupted += 1
            assert error.__traceback__ is not None
            if LOG and program is not in_a_loop:
                assert "finally" in LOG or program is caught
            left = entered_and_left()
            assert not left or "Interrupt" in left[-1] or program is blocks
        else:
            if program is caught and "caught" in LOG:
                interrupted += 1
            else:
                assert whole == LOG and torch.equal(result, expected)
        assert torch.is_grad_enabled() and native.hook_users() == 0 and native.compiling_depth() == 0
        LOG.clear()
        backend.at = 0
        assert torch.equal(compiled(X), expected) and whole == LOG  # compiled now, as if nothing had been
    assert interrupted >= 2


def test_a_refusal_to_compile_again_leaves_blocks() -> None:
    def program(x: Any, n: str) -> Any:
        with Block("a"):
            stator.graph_break()
            return x * int(n)

    compiled = stator.compile(program, backend="eager")
    assert torch.equal(compiled(X, "2"), X * 2)
    LOG.clear()
    with stator.set_stance("fail_on_recompile"), pytest.raises(stator.RecompileError):
        compiled(X, "3")
    assert LOG in ([], ["enter a", "exit a RecompileError"])
    assert torch.equal(compiled(X, "3"), X * 3)
