"""Programs whose frames cannot be one graph: compiled, they return, print, raise and mutate as plain Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import Counts, check

import stator

Log = list[Any]
PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a tensor and a log, to be compared with itself compiled."""
    PROGRAMS.append(function)
    return function


def opaque(log: Log, *values: Any) -> int:
    """A call that capture does not follow."""
    log.append([value.tolist() if isinstance(value, torch.Tensor) else value for value in values])
    return len(log)


opaque = stator.disable(opaque)


@program
def as_an_argument_of_a_pending_call(x: torch.Tensor, log: Log) -> Any:
    return torch.add(x * 2, opaque(log, x)) + max(3, opaque(log, "again"), 1)


@program
def on_a_condition_of_a_tensor(x: torch.Tensor, log: Log) -> Any:
    if x.sum() > 0:
        y = x + 1
    else:
        y = x - 1
    return y * 2 if y.mean() > 0.5 else y * 3


@program
def with_item(x: torch.Tensor, log: Log) -> Any:
    n = int(x.sum().item())
    return x + n, [n] * 3


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.seen = 0


@program
def objects_made_before_the_break(x: torch.Tensor, log: Log) -> Any:
    box = Box(x + 1)
    other = [box, box]
    box.seen += 1
    opaque(log, box.seen)
    box.value = box.value * 2
    return other[0] is other[1], other[1].value, box.seen


@program
def starred_call_at_the_break(x: torch.Tensor, log: Log) -> Any:
    values = (1, 2)
    return x + opaque(log, *values, *["z"])


@program
def keywords_at_the_break(x: torch.Tensor, log: Log) -> Any:
    n = dict(a=opaque(log, "a"), b=opaque(log, "b"))
    return x * n["a"] + n["b"]


@program
def unpacking_over_the_break(x: torch.Tensor, log: Log) -> Any:
    a, (b, *c) = opaque(log, 1), [x, x + 1, x + 2]
    del log[:]
    return a, b * 2, c


@program
def sharing_is_kept(x: torch.Tensor, log: Log) -> Any:
    shared = [x + 1]
    pair = (shared, shared)
    opaque(log, 1)
    pair[0].append(x)
    return pair, pair[0] is pair[1], shared is pair[0]


@pytest.mark.parametrize("scale", [1.0, -1.0], ids=["positive", "negative"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_compiled_program_behaves_as_plain_python(function: Callable[..., Any], scale: float) -> None:
    x = torch.tensor([0.5, 0.25, 0.75]) * scale
    check(function, x, [], calls=3)


def test_many_breaks_in_a_row_do_not_exhaust_the_stack() -> None:
    lines = "".join(f"    opaque(log, {i})\n" for i in range(600))
    namespace: dict[str, Any] = {"opaque": opaque}
    exec(compile(f"def many(x, log):\n    x = x + 1\n{lines}    return x\n", "<many breaks>", "exec"), namespace)
    log: Log = []
    assert stator.compile(namespace["many"], backend="eager")(torch.zeros(1), log).tolist() == [1]
    assert [entry for [entry] in log] == list(range(600))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, log: Log) -> torch.Tensor:
        y = self.linear(x)
        opaque(log, "block")
        return torch.tanh(y) + x


def test_a_break_in_each_of_many_blocks_does_not_use_up_the_recompile_limit() -> None:
    blocks = torch.nn.ModuleList([Block() for _ in range(12)])

    def run(x: torch.Tensor, log: Log) -> torch.Tensor:
        for block in blocks:
            x = block(x, log)
        return x

    counts = Counts()
    check(run, torch.rand(2, 3), [], calls=3)
    assert not counts["dynamo.recompile_limit"]
