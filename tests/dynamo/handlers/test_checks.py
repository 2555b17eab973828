"""Checks of data that raise where they fail: one graph, and the program's own exception when they do."""

from __future__ import annotations

import contextlib
import traceback

import pytest
import torch
from tests.dynamo.handlers.asserting import asserted, written_around

import stator
from stator.base import counters


def raised_by_if(x: torch.Tensor, most: int) -> torch.Tensor:
    if (x < 0).any():
        raise ValueError(f"negative: {x.min()}")
    return x * most


def checked_all(x: torch.Tensor, most: int) -> torch.Tensor:
    torch._check_tensor_all(x < most, lambda: f"not below {most}: {x}")
    return x + 1


def asserted_by_torch(x: torch.Tensor, most: int) -> torch.Tensor:
    torch._assert((x >= 0).all(), "negative")
    return x - 1


def caught(x: torch.Tensor, most: int) -> torch.Tensor | str:
    try:
        return asserted(x, most)
    except AssertionError as error:
        return f"caught {error}"


def only_checks(x: torch.Tensor, most: int) -> None:
    torch._check_tensor_all(x >= 0)


def outcome(function, *args) -> tuple[str, list[str]]:
    try:
        return repr(function(*args)), []
    except Exception as error:
        lines = [f"{entry.name}: {entry.line}" for entry in traceback.extract_tb(error.__traceback__)]
        return repr(error), lines[-1:]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", [raised_by_if, asserted, checked_all, asserted_by_torch, caught, only_checks])
def test_one_graph_and_the_programs_exception(function, backend: str) -> None:
    compiled = stator.compile(function, backend=backend)
    counters.clear()
    inputs = [torch.ones(3), torch.full((3,), 5.0), -torch.ones(3), torch.zeros(3)]
    for x in inputs:
        assert outcome(compiled, x, 10) == outcome(function, x, 10)
    assert not counters.counts["graph_breaks"] and (backend != "eager" or counters.counts["graphs"] == 1)
    assert counters.counts["dynamo.failed_graphs"] == sum(
        "Error" in outcome(function, x, 10)[0] or "caught" in outcome(function, x, 10)[0] for x in inputs
    )


def test_what_was_written_before_a_failing_check_is_written_once() -> None:
    compiled = stator.compile(written_around, backend="eager")
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        logs = torch.zeros(2), torch.zeros(2)
        assert outcome(compiled, x, logs[0]) == outcome(written_around, x, logs[1])
        assert torch.equal(*logs)


def test_a_branch_that_does_more_than_raise_is_a_break() -> None:
    def program(x: torch.Tensor, seen: list[str]) -> torch.Tensor:
        if x.sum() > 3:
            seen.append("large")
        return x + 1

    compiled = stator.compile(program, backend="eager")
    counters.clear()
    for x in (torch.ones(2), torch.ones(5)):
        found: tuple[list[str], list[str]] = [], []
        assert torch.equal(compiled(x, found[0]), program(x, found[1])) and found[0] == found[1]
    assert counters.counts["graph_breaks"]


def raised_into_a_handler(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    try:
        raise ValueError("not positive")
    except ValueError:
        return x - 1


def raised_into_a_manager(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    with contextlib.suppress(ValueError):
        raise ValueError("not positive")
    return x - 1


def raised_past_handlers(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    try:
        raise ValueError("not positive")
    except KeyError:
        raise TypeError("no key") from None
    finally:
        str(x.shape)


@pytest.mark.parametrize(
    ("function", "breaks"),
    [(raised_into_a_handler, True), (raised_into_a_manager, True), (raised_past_handlers, False)],
)
def test_a_branch_that_handles_what_it_raises_is_a_break(function, breaks: bool) -> None:
    compiled = stator.compile(function, backend="eager")
    counters.clear()
    for x in (torch.ones(2), -torch.ones(2)):
        assert outcome(compiled, x) == outcome(function, x)
    assert bool(counters.counts["graph_breaks"]) == breaks
    assert counters.counts["dynamo.failed_graphs"] == (not breaks)


# ---- text of tensors ----


def unread(x: torch.Tensor) -> torch.Tensor:
    message = f"{x.sum()}, {x!r}, {x.dtype}"
    return x + len([message])


def returned(x: torch.Tensor) -> tuple[torch.Tensor, str]:
    message = f"sum: {x.sum()}"
    x = x + 1
    return x, message


def asked_about(x: torch.Tensor) -> tuple[torch.Tensor, int, bool, bool]:
    message = f"{x.sum():.3f} " + f"{x[0]}"
    return x * 2, len(message), message == "", bool(f"{x}")


def changed_meanwhile(x: torch.Tensor) -> str:
    y = x.clone()
    message = f"{y}"
    y.add_(1)
    return message


@pytest.mark.parametrize("function", [returned, asked_about, changed_meanwhile])
def test_text_that_is_needed_is_made_where_it_stands(function) -> None:
    x = torch.arange(3.0)
    compiled = stator.compile(function, backend="eager")
    for _ in range(2):
        assert repr(compiled(x)) == repr(function(x))


def test_text_that_nobody_reads_is_not_made() -> None:
    x = torch.arange(3.0)
    counters.clear()
    assert torch.equal(stator.compile(unread, backend="eager")(x), unread(x))
    assert counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]


def test_a_format_that_tensors_do_not_take_fails() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        message = f"{x:.3f}"
        return x + 1 if message else x

    compiled = stator.compile(program, backend="eager")
    with pytest.raises(TypeError, match="unsupported format string"):
        compiled(torch.ones(3))
