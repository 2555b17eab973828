"""Facts about sizes name the user's line that needs them, whichever stage of the compiler relies on them."""

from __future__ import annotations

import linecache
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import stator
from stator.base import logs
from stator.base.errors import ConstraintViolation


def of_capture(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y.narrow(0, 3, 2) * 2  # here


def of_a_decomposition(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = F.interpolate(y, size=(14, 14), mode="nearest")  # here
    return z.sin()


def of_a_gradient(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y[3:].prod(0)  # here


def of_a_lowering(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    drawn = torch.randint(0, x.shape[0], (3, 1))  # here
    return y[:3] + drawn.float().mean() * 0


def of_an_int(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x + 1
    return torch.cat([y.flatten(), torch.zeros(n)])  # here


def of_a_replaced_size(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.narrow(0, 3, 2).sum() * 2  # here
    return z + x + y


IMAGE = (2, 3, 7, 7)
# program, the shapes or values of its arguments, whether they require grad, a fact
PROGRAMS = [
    (of_capture, [(9, 4)], False, "x.size(0) >= 5"),
    (of_a_decomposition, [IMAGE], False, ">= 2"),
    (of_a_decomposition, [IMAGE], True, "14 % x.size(2) == 0"),  # a formula of the backward
    (of_a_gradient, [(9, 4)], True, "x.size(0) >= 5"),
    (of_a_lowering, [(9, 4)], False, "x.size(0) <= 65536"),
    (of_an_int, [(9, 4), 5], False, "n >= 1"),
    (of_a_replaced_size, [(9, 4), (9, 4)], False, "x.size(0) >= 5"),
]
CASES = pytest.mark.parametrize(
    ("program", "given", "grad", "fact"), PROGRAMS, ids=[f"{one[0].__name__}_{one[2]}" for one in PROGRAMS]
)


def arguments(given: Sequence[Any], grad: bool, larger: int) -> list[Any]:
    """Tensors of these shapes and ints of these values, made larger by a number."""
    return [
        torch.randn([size + larger for size in one], requires_grad=grad) if isinstance(one, tuple) else one + larger
        for one in given
    ]


def needing_line(program: Callable[..., Any]) -> int:
    first = program.__code__.co_firstlineno
    return next(at for at in range(first, first + 9) if linecache.getline(__file__, at).endswith("# here\n"))


@pytest.fixture
def compiled_where(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines of the log about the facts of compiled versions."""
    lines: list[str] = []
    monkeypatch.setattr(logs, "_enabled", {"recompiles"})
    logger = logging.getLogger("stator.recompiles")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    yield lines


@CASES
def test_the_log_names_the_line_of_each_fact(
    program: Callable[..., Any], given: Sequence[Any], grad: bool, fact: str, compiled_where: list[str]
) -> None:
    compiled = stator.compile(program, dynamic=True)
    for larger in (0, 1):  # an int is a symbol once it has changed
        inputs = arguments(given, grad, larger)
        found = compiled(*inputs)
        torch.testing.assert_close(found, program(*inputs))
        if grad:
            found.sum().backward()
    facts = [line for line in compiled_where if line.startswith("compiled only where")]
    assert all(re.search(r"line \d+, in of_", line) for line in facts)
    assert any(fact in line and f"line {needing_line(program)}," in line for line in facts)


def over_size(x: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(())
    for at in range(x.shape[0]):
        total = total + x[at].sum() * 2
    return total


def over_layers(x: torch.Tensor, count: int, layers: list[torch.Tensor]) -> torch.Tensor:
    for at in range(count):
        x = x @ layers[at]
    return x


def test_the_log_says_why_a_loop_is_unrolled(compiled_where: list[str]) -> None:
    compiled = stator.compile(over_size, dynamic=True)
    for rows in (3, 4, 5, 6):
        compiled(torch.randn(rows, 2))
    line = over_size.__code__.co_firstlineno + 2
    place = f"line {line}, in over_size: the loop is unrolled for the first value of its bound)"
    assert any("only where x.size(0) == 3 (" in one and one.endswith(place) for one in compiled_where)
    assert not any(f"x.size(0) == {rows}" in one for one in compiled_where for rows in (4, 5, 6))

    compiled = stator.compile(over_layers)
    for count in (1, 2, 3):
        compiled(torch.randn(2, 2), count, [torch.randn(2, 2) for _ in range(4)])
    line = over_layers.__code__.co_firstlineno + 1
    place = f"line {line}, in over_layers: the loop is unrolled because a turn needs its number)"
    assert any("only where count == 3 (" in one and one.endswith(place) for one in compiled_where)

    compiled = stator.compile(over_size, fullgraph=True)
    for rows in (3, 4, 5):
        compiled(torch.randn(rows, 2))
    assert compiled_where[-1].endswith("in over_size: the loop is unrolled because the graph may not end here)")


def test_the_log_says_why_a_list_of_a_range_needs_its_length(compiled_where: list[str]) -> None:
    def positions(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor(list(range(x.shape[1])))

    compiled = stator.compile(positions)
    for size in (5, 7, 9):
        x = torch.randn(2, size)
        assert torch.equal(compiled(x), positions(x))
    assert compiled_where[-1].endswith("positions: a list of a range needs its length, torch.arange does not)")


@pytest.mark.fixed_sizes
def test_the_log_calls_the_number_of_a_turn_by_its_name(compiled_where: list[str]) -> None:
    def over_beginnings(x: torch.Tensor, count: int) -> torch.Tensor:
        total = x.sum()
        for at in range(1, count):
            total = total + sum(x[:at].tolist())  # here
        return total

    compiled = stator.compile(over_beginnings)
    for count in (3, 5):
        compiled(torch.arange(9), count)
    (told,) = (one for one in compiled_where if "needs constants" in one)
    wanted = f"for the number of a turn (4 in this turn): .*line {needing_line(over_beginnings)}, in .*over_beginnings"
    assert re.search(wanted.replace("(", r"\(").replace(")", r"\)"), told), told


def test_explain_says_why_a_loop_is_unrolled() -> None:
    found = str(stator.explain(over_size, dynamic=True)(torch.randn(3, 2)))
    assert "in over_size: the loop is unrolled for the first value of its bound)" in found


def test_explain_names_the_line_of_a_formula_of_the_backward() -> None:
    found = str(stator.explain(of_a_decomposition, dynamic=True)(torch.randn(IMAGE, requires_grad=True)))
    (line,) = (line for line in found.splitlines() if "14 % x.size(2) == 0" in line)
    assert f"line {needing_line(of_a_decomposition)}," in line


@pytest.mark.parametrize(
    ("program", "grad", "low", "high"),
    [(of_capture, False, 2, 90), (of_a_gradient, True, 4, 90), (of_a_lowering, False, 3, 100000)],
)
def test_a_broken_promise_names_the_line(program: Callable[..., Any], grad: bool, low: int, high: int) -> None:
    x = torch.randn(9, 4, requires_grad=grad)
    stator.mark_dynamic(x, 0, min=low, max=high)
    with pytest.raises(ConstraintViolation, match=f"line {needing_line(program)}"):
        stator.compile(program)(x)


def test_facts_of_a_users_backend_name_the_first_line_of_the_graph(compiled_where: list[str]) -> None:
    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        assert next(iter(graph.graph.nodes)).meta["example_value"].shape[0] % 4 == 1
        return graph.forward

    stator.compile(of_a_decomposition, backend=backend, dynamic=True)(torch.randn(5, 3, 7, 7))
    line = of_a_decomposition.__code__.co_firstlineno + 1
    assert any("x.size(0) % 4" in one and f"line {line}" in one for one in compiled_where)


@pytest.mark.parametrize("factor", [0.5, 0.7, 1.5, 2.0])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_resize_by_a_factor_asks_for_the_least_sizes_alone(
    mode: str, factor: float, compiled_where: list[str]
) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=factor, mode=mode)

    compiled = stator.compile(resized, dynamic=True)
    for size in (8, 11, 16):
        x = torch.randn(2, 3, size, size + 3)
        torch.testing.assert_close(compiled(x), resized(x))
    facts = [line for line in compiled_where if line.startswith("compiled only where")]
    assert len(facts) <= 2 and all(re.search(r"x\.size\([0-3]\) >= \d ", line) or factor == 2.0 for line in facts), (
        facts
    )


@pytest.mark.fixed_sizes  # with symbols from the first call, the third size needs nothing
def test_the_log_names_the_line_of_a_view_of_one_row(compiled_where: list[str]) -> None:
    def of_rows(x: torch.Tensor) -> torch.Tensor:
        rows = x.transpose(1, 2).reshape(x.shape[0] * 3, 4)  # here
        return rows + 1

    compiled = stator.compile(of_rows)
    for size in (5, 7, 1):
        compiled(torch.randn(size, 4, 3))
    told = [line for line in compiled_where if "needs constants" in line]
    assert told and all(f"line {needing_line(of_rows)}," in line for line in told)
