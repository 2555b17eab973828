"""Names and places in the log of recompilations and in warnings about frames."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator.base import logs


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, by: str = "a") -> torch.Tensor:
        return x * len(by)


class Hooked(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda module, arguments: None)


PLACE = f'(File "{__file__}", line {Scaled.forward.__code__.co_firstlineno})'


@pytest.fixture
def recompilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines: list[str] = []
    monkeypatch.setattr(logs, "_enabled", {"recompiles"})
    logger = logging.getLogger("stator.recompiles")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    yield lines


def warned(run: Callable[[], Any]) -> list[warnings.WarningMessage]:
    logs.forget_warnings()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return found


@pytest.mark.parametrize("kind", [Scaled, Hooked])
@pytest.mark.fixed_sizes
def test_the_log_names_the_users_forward_and_what_changed_last(kind: type, recompilations: list[str]) -> None:
    compiled = stator.compile(kind(), backend="eager")
    for by in ("a", "bb", "ccc"):
        compiled(torch.ones(2), by)
    names = [f"recompiling {kind.__name__}.forward {PLACE}"] * 2
    assert [line.partition("  #")[0].partition("\n")[0] for line in recompilations] == names
    assert [line.count("became") for line in recompilations] == [1, 1]
    assert "'a' became 'bb'" in recompilations[0] and "'bb' became 'ccc'" in recompilations[1]


@pytest.mark.fixed_sizes
def test_the_nearest_version_is_the_one_whose_guards_hold_longest(recompilations: list[str]) -> None:
    def program(x: torch.Tensor, first: str, second: str) -> torch.Tensor:
        return x * len(first) + len(second)

    compiled = stator.compile(program, backend="eager")
    for first, second in (("a", "x"), ("b", "y"), ("a", "z")):
        compiled(torch.ones(2), first, second)
    assert "second: 'x' became 'z'" in recompilations[-1] and "first" not in recompilations[-1]


@pytest.mark.parametrize("kind", [Scaled, Hooked])
def test_the_warning_at_the_limit_stands_at_the_call_and_names_ways_out(kind: type) -> None:
    compiled = stator.compile(kind(), backend="eager", options={"recompile_limit": 2})

    def run() -> None:
        for by in ("a", "bb", "ccc"):
            compiled(torch.ones(2), by)

    [warning] = warned(run)
    assert (warning.filename, warning.lineno) == (__file__, inspect.getsourcelines(run)[1] + 2)
    text = str(warning.message)
    assert f"{kind.__name__}.forward {PLACE}" in text and "recompile_limit" in text.partition("Ways out:")[2]


@pytest.mark.parametrize("kind", [Scaled, Hooked])
def test_a_failed_compilation_stands_at_the_call(kind: type) -> None:
    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        raise RuntimeError("no")

    compiled = stator.compile(kind(), backend=backend)
    [warning] = warned(lambda: compiled(torch.ones(2)))
    assert warning.filename == __file__ and f"{kind.__name__}.forward {PLACE}" in str(warning.message)
