"""Loops over ranges whose bounds change between calls: results equal eager's, and few versions serve all bounds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import ROUNDED, assert_same
from torch import nn

import stator
from stator.base import counters
from stator.dynamo import frame_compiler
from stator.dynamo.capture import capture

COUNTS = (3, 5, 7, 1, 0, 4, 9, 2, 11, 8, 6)
FIRST_LONG = COUNTS.index(9) + 1  # a graph has several turns where as many are left


def adds(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        x = x * 0.5 + at
    return x


def from_the_end(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count, 0, -1):
        x = x.sin() + at
    return x


def between(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(1, count + 2):
        x = x.cos() * at
    return x


def rows(x: torch.Tensor, count: int) -> torch.Tensor:
    total = x[0]
    for at in range(count):
        total = total + x[at] * x[:, at]
    return total


def writes(x: torch.Tensor, count: int) -> torch.Tensor:
    made = torch.zeros_like(x)
    for at in range(count):
        made[at] = x[at].exp() + at
    return made


def nested(x: torch.Tensor, count: int) -> torch.Tensor:
    for row in range(count):
        for column in range(count):
            x = x + row * 0.25 - column
    return x


def leaves_early(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        x = x.tanh() + 1
        if at == 4:
            return x * 100
    else:
        x = x - 7
    return x


def goes_around(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        if at % 2:
            continue
        x = x * 1.5 - at
        if at > 5:
            break
    return x


def inlined(x: torch.Tensor, count: int) -> torch.Tensor:
    return adds(x + 1, count).relu() + adds(x, 2)


def collects(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    found = []
    for at in range(count):
        found.append(x.sum() * at)
    return found


def prints(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        x = x + at
        torch._dynamo.graph_break()
        x = x * 2
    return x


def given_range(x: torch.Tensor, count: int) -> torch.Tensor:
    return _over(x, range(count))


def _over(x: torch.Tensor, numbers: range) -> torch.Tensor:
    for at in numbers:
        x = x + at
    return x


FUNCTIONS = (
    adds,
    from_the_end,
    between,
    rows,
    writes,
    nested,
    leaves_early,
    goes_around,
    inlined,
    collects,
    prints,
    given_range,
)


def _compiled_after(call: Callable[..., Any], eager: Callable[..., Any], steady: int) -> int:
    """Compare with eager for all counts, then again. Returns the number of frames compiled after the first `steady`
    different counts."""
    before = 0
    for at, count in enumerate((*COUNTS, *COUNTS)):
        if at == steady:
            before = counters.counts["dynamo.compiled_frames"]
        x = torch.randn(12, 12, dtype=torch.float64)
        torch.testing.assert_close(call(x, count), eager(x, count))
    return counters.counts["dynamo.compiled_frames"] - before


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_bound_that_changes_needs_no_version_for_each_value(function: Any) -> None:
    stator.reset()
    assert _compiled_after(stator.compile(function), function, FIRST_LONG) == 0


LONG = (5, 9, 30, 13, 16, 3, 21, 40)


def returns_early(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(0, 3 * count, 3):
        x = x * 0.5 + at
        if at == 33:
            return x - 1
    return x


def breaks_the_graph_once(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        x = x * 0.5
        if at == 11:
            torch._dynamo.graph_break()
        x = x + at
    return x


def changes_things(x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int], dict[str, Any]]:
    found: list[int] = []
    state = {"turns": 0}
    made = x.clone()
    for at in range(count):
        made[at % 4].add_(x[0] * at)
        found.append(at)
        state["turns"] += 1
    return made, found, state


def asks_for_half(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        x = x * 0.5 + at if at < count // 2 else x.sin() - at
    return x


def handles_errors(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        try:
            x = x * 0.5 + 6 // (11 - at)
        except ZeroDivisionError:
            x = x - 1
        finally:
            x = x + 0.25
    return x


def nested_long(x: torch.Tensor, count: int) -> torch.Tensor:
    for row in range(count):
        for column in range(row):
            x = x * 0.5 + column
        x = x - row
    return x


def two_loops(x: torch.Tensor, count: int) -> torch.Tensor:
    for at in range(count):
        x = x * 0.5 + at
    for at in range(2 * count, 0, -2):
        x = x * 0.5 - at
    return x


def keeps_the_iterator(x: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
    numbers = iter(range(count))
    for at in numbers:
        x = x * 0.5 + at
        if at == 12:
            break
    return x, list(numbers)


ENDS = [
    adds,
    from_the_end,
    returns_early,
    breaks_the_graph_once,
    changes_things,
    asks_for_half,
    handles_errors,
    nested_long,
    two_loops,
    keeps_the_iterator,
]


@pytest.mark.parametrize("function", ENDS)
def test_several_turns_at_once_do_what_single_turns_do(function: Callable[..., Any]) -> None:
    compiled = stator.compile(function, backend="aot_eager")
    limits = counters.counts["dynamo.recompile_limit"]
    for count in (*LONG, *LONG):
        x = torch.randn(4, 3, requires_grad=True)
        assert_same(compiled(x, count), function(x, count), ROUNDED)
    assert counters.counts["dynamo.recompile_limit"] == limits


@pytest.mark.fixed_sizes
def test_a_long_loop_takes_few_graphs() -> None:
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append(graph)
            return graph(*args)

        return run

    compiled = stator.compile(adds, backend=backend)
    x = torch.randn(3)
    for count in (4, 6, 12, 5, 27):
        calls.clear()
        torch.testing.assert_close(compiled(x, count), adds(x, count))
    assert len(calls) == 3 + 3  # 27 turns: three times eight, and three


def test_an_error_in_one_of_several_turns_leaves_what_came_before() -> None:
    def fills(x: torch.Tensor, count: int) -> torch.Tensor:
        for at in range(count):
            x[at].add_(at)
        return x

    compiled = stator.compile(fills)
    for count in (3, 5, 9, 12, 5):
        torch.testing.assert_close(compiled(torch.ones(12), count), fills(torch.ones(12), count))
    found, expected = torch.ones(12), torch.ones(12)
    for call, x in ((compiled, found), (fills, expected)):
        with pytest.raises(IndexError):
            call(x, 15)
    torch.testing.assert_close(found, expected)


def test_gradients_flow_through_a_loop_of_any_length() -> None:
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)

    def steps(x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            x = torch.tanh(x @ weight)
        return x.sum()

    compiled = stator.compile(steps)
    for count in COUNTS:
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        found, expected = compiled(x, count), steps(x, count)
        torch.testing.assert_close(found, expected)
        leaves = (x, weight) if count else (x,)
        wanted = torch.autograd.grad(expected, leaves)
        torch.testing.assert_close(torch.autograd.grad(found, leaves), wanted)


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.count = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            x = self.layer(x).relu()
        return x


@pytest.mark.fixed_sizes
def test_an_attribute_may_be_the_bound() -> None:
    model = Steps()
    compiled = stator.compile(model)
    for at, count in enumerate((*COUNTS, *COUNTS)):
        if at == FIRST_LONG:
            before = counters.counts["dynamo.compiled_frames"]
        model.count = count
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert counters.counts["dynamo.compiled_frames"] == before


def over_numbers_of_rows(x: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(3)
    for at in range(x.shape[0]):
        total = total * 0.5 + x[at]
    return total


def over_rows(x: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(3)
    for row in x * 2:
        total = total * 0.5 + row
    return total


def over_numbered_rows(x: torch.Tensor) -> list[torch.Tensor]:
    found = []
    with torch.no_grad():
        for at, row in enumerate(x):
            found.append(row * at)
    return found


def over_numbers_of_rows_from_the_last(x: torch.Tensor) -> torch.Tensor:
    total = x.new_zeros(3)
    for at in reversed(range(x.shape[0])):
        total = total * 0.5 + x[at]
    return total


def over_rows_kept_in_a_list(x: torch.Tensor) -> torch.Tensor:
    total, found = x.new_zeros(3), []
    for at in range(1, x.shape[0]):
        total = total * 0.5 + x[at]
        found.append(total)
    return torch.stack(found, 1) * 2


def over_pairs_of_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([one.sin() * other for one, other in zip(x, x.flip(0), strict=True)])


@pytest.mark.fixed_sizes
@pytest.mark.parametrize(
    "over",
    [
        over_numbers_of_rows,
        over_numbers_of_rows_from_the_last,
        over_rows,
        over_numbered_rows,
        over_rows_kept_in_a_list,
        over_pairs_of_rows,
    ],
)
def test_a_size_is_a_bound_from_its_second_value_on(over: Callable[..., Any]) -> None:
    compiled = stator.compile(over, backend="aot_eager")
    needed = []
    for rows in (3, 5, 9, 4, 8, 6, 10, 12):
        before = counters.counts["dynamo.compiled_frames"]
        x = torch.randn(rows, 3, requires_grad=True)
        assert_same(compiled(x), over(x), ROUNDED)
        needed.append(counters.counts["dynamo.compiled_frames"] - before)
    in_a_function = over is over_pairs_of_rows and sys.version_info < (3, 12)  # whose list has two lengths first
    assert needed[0] == 1
    assert sum(needed[2:]) <= 1 or in_a_function, needed  # a body for several turns
    assert not any(needed[4:]), needed


def test_rows_that_the_program_changes_before_a_loop_are_those_of_eager() -> None:
    def over_changed_rows(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        rows = iter(x)
        x.mul_(2)
        total = x.new_zeros(3)
        for row in rows:
            total = total * 0.5 + row
        return total

    compiled = stator.compile(over_changed_rows, backend="aot_eager")
    for rows in (3, 5, 7, 9, 4):
        x = torch.randn(rows, 3)
        assert_same(compiled(x), over_changed_rows(x), ROUNDED)


@pytest.mark.fixed_sizes
def test_a_loop_whose_body_needs_its_number_is_unrolled() -> None:
    layers = [nn.Linear(4, 4) for _ in range(6)]

    def through(x: torch.Tensor, count: int) -> torch.Tensor:
        for at in range(count):
            x = layers[at](x)
        return x

    compiled = stator.compile(through)
    for count in (2, 4, 6):
        breaks, versions = counters.counts["graph_breaks"], counters.counts["dynamo.compiled_frames"]
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x, count), through(x, count))
        assert (counters.counts["graph_breaks"], counters.counts["dynamo.compiled_frames"]) == (breaks, versions + 1)


@pytest.mark.fixed_sizes
def test_the_answer_of_a_trial_serves_later_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the body of a loop needs its number is found out once, by a capture that starts again."""
    captures = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        captures.append(args)
        return capture(*args, **kwargs)

    monkeypatch.setattr(frame_compiler, "capture", counted)
    layers = [nn.Linear(4, 4) for _ in range(6)]

    def through(x: torch.Tensor, count: int) -> torch.Tensor:
        for at in range(count):
            x = layers[at](x)
        return x

    compiled = stator.compile(through, backend="eager")
    made = []
    for count in (2, 4, 6, 5):
        captures.clear()
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x, count), through(x, count))
        made.append(len(captures))
    assert made == [1, 2, 1, 1]


def test_a_whole_graph_unrolls_its_loops() -> None:
    compiled = stator.compile(adds, fullgraph=True)
    for count in (2, 3, 5):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x, count), adds(x, count))


def test_an_error_in_a_turn_is_the_programs() -> None:
    def divides(x: torch.Tensor, count: int) -> torch.Tensor:
        for at in range(count):
            x = x + 6 // (3 - at)
        return x

    compiled = stator.compile(divides)
    x = torch.randn(3)
    for count in (1, 2, 3, 2):
        torch.testing.assert_close(compiled(x, count), divides(x, count))
    with pytest.raises(ZeroDivisionError, match="division"):
        compiled(x, 5)
    torch.testing.assert_close(compiled(x, 3), divides(x, 3))


def test_a_step_of_zero_is_the_programs_error() -> None:
    def steps(x: torch.Tensor, count: int, step: int) -> torch.Tensor:
        for at in range(0, count, step):
            x = x + at
        return x

    compiled = stator.compile(steps)
    x = torch.randn(3)
    for count, step in ((4, 1), (6, 1), (8, 2), (9, 3)):
        torch.testing.assert_close(compiled(x, count, step), steps(x, count, step))
    with pytest.raises(ValueError, match="must not be zero"):
        compiled(x, 4, 0)


@pytest.mark.fixed_sizes
def test_a_list_of_changing_length_is_used_outside_of_graphs() -> None:
    def joined(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(parts).sum() * 2

    compiled = stator.compile(joined)
    for at, count in enumerate((2, 3, 4, 5, 6, 7, 8, 9)):
        if at == 4:
            before = counters.counts["dynamo.compiled_frames"]
        parts = [torch.randn(2) for _ in range(count)]
        torch.testing.assert_close(compiled(parts), joined(parts))
    assert counters.counts["dynamo.compiled_frames"] == before


def over_reversed(parts: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(2)
    for one in reversed(parts):
        total = (total + one).tanh()
    return total


def over_some_of_reversed(parts: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(2)
    for one in reversed(parts):
        total = (total + one).tanh()
        if one is parts[1]:
            break
    else:
        total = total + 1
    return total


def over_steps_backwards(parts: list[torch.Tensor]) -> torch.Tensor:
    steps, total = [], torch.zeros(2)
    for one in parts:
        total = (total + one).sin()
        steps.append(total)
    for step, one in zip(reversed(steps), parts, strict=True):
        total = total * step + one
    for step in steps[::-1]:
        total = (total + step).cos()
    return total


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("program", [over_reversed, over_some_of_reversed, over_steps_backwards])
def test_a_loop_backwards_over_a_list_of_changing_length_needs_no_version_for_each_length(
    program: Callable[..., Any],
) -> None:
    compiled = stator.compile(program)
    for at, count in enumerate((2, 3, 4, 6, 9, 5, 8, 7, 11, 2)):
        if at == 5:
            before = counters.counts["dynamo.compiled_frames"]
        parts = [torch.randn(2) for _ in range(count)]
        torch.testing.assert_close(compiled(parts), program(parts))
    assert counters.counts["dynamo.compiled_frames"] == before


def in_one_chunk(x: torch.Tensor) -> list[torch.Tensor]:
    count = x.shape[1]
    return [x[:, begin : begin + count] * 2 + begin for begin in range(0, count, count)]


def in_two_halves(x: torch.Tensor) -> list[torch.Tensor]:
    count = x.shape[1]
    return [x * begin for begin in range(-count, count, count)]


def the_next_numbers(x: torch.Tensor) -> list[torch.Tensor]:
    count = x.shape[1]
    return [x * number + at for at, number in enumerate(range(count, count + 3))]


def counts_its_chunks(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + len(range(0, x.shape[1], x.shape[1]))]


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [in_one_chunk, in_two_halves, the_next_numbers, counts_its_chunks])
def test_ranges_of_one_length_for_all_sizes_are_unrolled_once(program: Any, dynamic: bool | None) -> None:
    compiled = stator.compile(program, backend="eager", fullgraph=True, dynamic=dynamic)
    versions = counters.counts["frames"]
    for count in (7, 9, 12, 5, 2, 30):
        x = torch.randn(3, count)
        assert_same(compiled(x), program(x))
    assert counters.counts["frames"] - versions == (1 if dynamic else 2)


def test_a_range_leaves_the_frame_with_a_step_that_is_a_size() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, range]:
        return x * 2, range(0, x.shape[0], x.shape[0])

    compiled = stator.compile(program, backend="eager", dynamic=True)
    for count in (3, 5, 8):
        x = torch.randn(count)
        assert_same(compiled(x), program(x))


def lists_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.cat(list(x * 2)) + 1


def makes_a_tuple_of_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(tuple(x * 2)[::-1])


def unbinds(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x * 2).unbind(0), 1) + 1


def unbinds_columns(x: torch.Tensor) -> torch.Tensor:
    return torch.stack(torch.unbind(x.t() * 2, dim=1)) + 1


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [lists_rows, makes_a_tuple_of_rows, unbinds, unbinds_columns])
def test_lists_of_rows_of_any_number(program: Any, dynamic: bool | None) -> None:
    """From the second number of rows on, the interpreter makes the list."""
    compiled = stator.compile(program, backend="eager", dynamic=dynamic)
    versions = []
    for count in (3, 4, 5, 6, 7, 9, 12):
        before = counters.counts["frames"]
        x = torch.randn(count, 4)
        assert_same(compiled(x), program(x))
        versions.append(counters.counts["frames"] - before)
    assert not any(versions[2:]), versions


def test_rows_that_the_program_counts_are_no_list_of_any_length() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x * 2).unbind(0)
        return q + k * v

    compiled = stator.compile(program, backend="eager", dynamic=True)
    breaks = counters.counts["graph_breaks"]
    for size in (4, 5, 6):
        x = torch.randn(3, size)
        assert_same(compiled(x), program(x))
    assert counters.counts["graph_breaks"] == breaks
