"""Modes that see torch functions: the one that attention masks are made under is followed, a program's own is not."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.overrides import TorchFunctionMode

import stator
from stator.base import counters


def mask(allowed: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    def one(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return (row >= column) & allowed[row, column] & allowed[0, column]

    over_columns = torch.vmap(one, in_dims=(None, 0))
    with TransformGetItemToIndex():
        return torch.vmap(over_columns, in_dims=(0, None))(rows, columns)


def test_masks_made_by_vmap_under_the_mode_are_one_graph() -> None:
    compiled = stator.compile(mask, backend="eager")
    counters.clear()
    for seed in range(2):
        torch.manual_seed(seed)
        given = (torch.rand(6, 6) > 0.5, torch.arange(6), torch.arange(6))
        assert torch.equal(compiled(*given), mask(*given))
    assert counters.counts["graphs"] == 1 and not counters.counts["graph_breaks"]


def broken_inside(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    with TransformGetItemToIndex():
        first = x[0]
        stator.graph_break()
        depth = torch._C._len_torch_function_stack()
        second = x[index]
    first.add_(1)  # under the mode, x[0] is no view of x
    return second + x, depth, torch._C._len_torch_function_stack()


def test_a_break_inside_leaves_the_mode_entered_for_what_follows() -> None:
    x, index = torch.randn(3, 2), torch.tensor(2)
    (got, *depths), (wanted, *wanted_depths) = (
        function(x.clone(), index) for function in (stator.compile(broken_inside, backend="eager"), broken_inside)
    )
    assert torch.equal(got, wanted) and depths == wanted_depths == [1, 0]
    assert torch._C._len_torch_function_stack() == 0


class Doubled(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is torch.sin else made


def test_a_programs_own_mode_sees_what_it_would_in_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with Doubled():
            y = torch.sin(x)
        return y + torch.sin(x)

    x = torch.randn(4)
    assert torch.equal(stator.compile(program, backend="eager")(x), program(x))


class Heard(TorchFunctionMode):
    """Notes each torch function that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def two_parts(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    stator.graph_break()
    return y.add(1).relu()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("compiled_before", [False, True])
def test_a_mode_around_compiled_code_sees_the_programs_functions_and_no_others(
    backend: str, compiled_before: bool
) -> None:
    x, compiled = torch.randn(4), stator.compile(two_parts, backend=backend)
    if compiled_before:
        compiled(x)
    for _ in range(2):
        with Heard() as mode:
            assert torch.equal(compiled(x), two_parts(x))
        assert mode.names == ["sin", "add", "relu"] * 2 + ["equal"]
    counters.clear()
    torch.testing.assert_close(compiled(x), two_parts(x))
    assert bool(counters.counts["graphs"]) is not compiled_before


def test_a_mode_inside_compiled_code_sees_the_programs_functions_and_no_others() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        y = x.cos()
        with Heard() as mode:
            z = torch.sin(y) + 1
        return z.relu(), mode.names

    x = torch.randn(4)
    (got, names), (wanted, wanted_names) = stator.compile(program, backend="eager")(x), program(x)
    assert torch.equal(got, wanted) and names == wanted_names == ["sin", "add"]


class Noted(TorchFunctionMode):
    """Multiplies what torch.sin gives, and notes what it sees."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.seen = factor, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.__name__)
        made = function(*args, **(kwargs or {}))
        return made * self.factor if function is torch.sin else made


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("first", ["inside", "outside"])
def test_a_mode_around_a_compiled_function_sees_the_program_and_nothing_else(backend: str, first: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    x = torch.randn(4)
    compiled = stator.compile(program, backend=backend)
    if first == "outside":
        compiled(x)
    for factor in (2.0, 3.0):
        with Noted(factor) as expected_by:
            expected = program(x)
        with Noted(factor) as mode:
            found = compiled(x)
        assert torch.equal(found, expected) and mode.seen == expected_by.seen == ["sin", "add"]
    torch.testing.assert_close(compiled(x), program(x))
    with torch.device("cpu"):
        torch.testing.assert_close(compiled(x), program(x))
