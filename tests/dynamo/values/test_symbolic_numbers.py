"""One arithmetic for numbers of all origins: what a program computes of a number that changes between calls, or of one
that it reads from a tensor, is what Python computes, for infinities, NaN, -0.0 and large ints, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.differential import EXACT, Counts, Tolerance, assert_same_outcome, observe

import stator

Program = Callable[[torch.Tensor, Any], Any]
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, 0.5, 1.0, -1.5, 2.5, 1e308, -1e308, 5e-324, 2.0**62, 2.0**53])
INTS = st.integers(-9, 9) | st.integers(-(2**70), 2**70)

OF_ONE: dict[str, Callable[[Any], Any]] = {
    "negation": lambda v: (-v, +v, abs(v)),
    "sums": lambda v: (v + 1, v - 0.5, 2 - v, 0.0 - v, v + v),
    "products": lambda v: (v * 2, v * -0.0, v * 1e300, v * v),
    "a quotient": lambda v: (1.5 / v, v / 3),
    "a floor": lambda v: (v // 0.7, v % 0.7),
    "a floor of a reciprocal": lambda v: 7 // v,
    "a rest": lambda v: 7 % v,
    "both": lambda v: divmod(v, 3),
    "powers": lambda v: (v**2, v**3),
    "an inverse power": lambda v: v**-1,
    "a root as a power": lambda v: v**0.5,
    "an exponent": lambda v: 2.0**v,
    "comparisons": lambda v: (v < 1, v <= 1.0, v > 0, v >= -0.0, v == 1, v != 1.0, v == 2**53 + 1),
    "truths": lambda v: (not v, bool(v), v == v),
    "a rounding": lambda v: (int(v), round(v)),
    "floors": lambda v: (math.floor(v), math.ceil(v), math.trunc(v)),
    "a float": lambda v: float(v) * 0.5,
    "the larger": lambda v: (max(v, 1.0), min(v, 2.0), max(1.0, v)),
    "arithmetic of truths": lambda v: ((v > 1) + 2, (v > 1) * 2.5, -(v > 1), (v > 1) | (v < 0), (v > 1) ^ (v < 2)),
    "a branch": lambda v: 1 if v > 1 else 2,
    "a choice": lambda v: v if v >= 1 else 1.0,
    "a chain": lambda v: 0 < v <= 2,
    "methods": lambda v: (v.bit_length(), v.bit_count()) if isinstance(v, int) else v.is_integer(),
    "nested": lambda v: int(math.floor(v * 0.5) + round(v) - v // 1),
}


PROGRAMS: dict[str, Callable[[Callable[[Any], Any]], Program]] = {
    "input": lambda function: lambda x, v: (x + 1, function(v)),
    "tensor": lambda function: lambda x, v: (x + 1, function(v.item())),
    "size": lambda function: lambda x, v: (x + 1, function(v.shape[0])),
    "a float of a size": lambda function: lambda x, v: (x + 1, function(v.shape[0] * 0.5)),
}
TENSORS: dict[str, Callable[[Any], Any]] = {
    "input": lambda number: number,
    "tensor": lambda number: torch.tensor(number, dtype=torch.float64 if type(number) is float else torch.int64),
    "size": lambda number: torch.ones(number % 9),
    "a float of a size": lambda number: torch.ones(number % 9),
}
NUMBERS: dict[str, Any] = {
    "input": (FLOATS, INTS),
    "tensor": (FLOATS, st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)),
    "size": (st.integers(0, 8),),
    "a float of a size": (st.integers(0, 8),),
}


def alike(origin: str, function: Callable[[Any], Any], numbers: list[Any]) -> None:
    """Calls give numbers as eager does, with their types and the signs of zeros."""
    stator.reset()
    program = PROGRAMS[origin](function)
    compiled = stator.compile(program, backend="eager")
    for number in numbers:
        given = TENSORS[origin](number)
        found, expected = (observe(_shown(run), (torch.ones(2), given)) for run in (compiled, program))
        assert_same_outcome(found, expected, EXACT)


def _shown(program: Program) -> Program:
    def run(x: torch.Tensor, v: Any) -> Any:
        y, found = program(x, v)
        return y, [f"{type(one).__name__} {one!r}" for one in (found if isinstance(found, tuple) else (found,))]

    return run


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("origin", PROGRAMS)
def test_python_computes_these_numbers(origin: str, name: str) -> None:
    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        kinds = data.draw(st.sampled_from(NUMBERS[origin]))
        alike(origin, OF_ONE[name], data.draw(st.lists(kinds, min_size=5, max_size=7)))

    check()


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("origin", ["input", "tensor"])
def test_python_computes_exceptional_numbers(origin: str, name: str) -> None:
    alike(origin, OF_ONE[name], [1.5, 2.5, -0.0, 0.0, math.inf, -math.inf, math.nan, 1e308, 5e-324, -7.5])
    alike(origin, OF_ONE[name], [2, 3, 0, -1, 2**53 + 1, 2**62, -(2**62), 5])


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("origin", PROGRAMS)
@pytest.mark.parametrize("function", [math.sqrt, math.exp, math.log])
def test_functions_of_the_math_library(function: Any, origin: str) -> None:
    """torch's differ from C's in the last bit."""
    program = PROGRAMS[origin](function)
    compiled = stator.compile(program, backend="eager")
    for number in (1, 2, 3, 0.5, 1.5, 0.0, -0.0, -1.5, 1e3, 5e-324, math.inf, -math.inf, math.nan):
        made = TENSORS[origin](number if "size" not in origin else int(number) if math.isfinite(number) else 4)
        found, expected = (observe(run, (torch.ones(2), made)) for run in (compiled, program))
        assert_same_outcome(found, expected, Tolerance(1e-15, 0.0))


CALLS: dict[str, Program] = {
    "two inputs": lambda x, v: (x * 2, v + v * 0.5 - 1),
    "an input and a size": lambda x, v: (x * (v * x.shape[0]), v * x.shape[0] + 0.5),
    "an input and a float of a tensor": lambda x, v: (x * v, x[0].item() * v, x[0].item() > v, v < x[0].item()),
    "an input and an int of a tensor": lambda x, v: (x * v, x[0].long().item() * v),
    "a size and a float of a tensor": lambda x, v: (x + v, x[0].item() * x.shape[0], x.sum().item() > x.shape[0]),
    "a truth and a float": lambda x, v: (x + v, (x[0] > 1).item() * v, (x[0].item() > v) + (x[1].item() > v)),
    "a choice of two tensors": lambda x, v: (x + v, max(x[0].item(), x[1].item()), min(x[0].item(), x[1].item())),
    "a deep expression": lambda x, v: (x, _deep(x[0].item(), v)),
}


def _deep(number: Any, other: Any) -> Any:
    for _ in range(40):
        number = number * 0.5 + other
    return number


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CALLS)
def test_numbers_of_several_origins_meet(name: str, backend: str) -> None:
    stator.reset()
    compiled = stator.compile(
        CALLS[name], backend=backend, options={"exact_rounding": True} if backend != "eager" else None
    )
    for at, number in enumerate([1.5, 2.5, 0.25, -0.0, math.inf, math.nan, 3.5]):
        x = torch.arange(1.0, 3.0 + at % 3) * (at - 2)
        found, expected = (observe(run, (x.clone(), number)) for run in (compiled, CALLS[name]))
        assert_same_outcome(found, expected, EXACT)


def test_one_version_serves_numbers_of_all_origins() -> None:
    def program(x: torch.Tensor, v: float) -> Any:
        scale = x.sum().item() * v + x.shape[0]
        return x * scale, x * (v / 3), scale > 2

    compiled, counts = stator.compile(program, backend="eager", fullgraph=True), Counts()
    for size, number in enumerate((0.5, 1.5, 2.5, -3.5), 2):
        x = torch.ones(size)
        found, expected = (observe(run, (x, number)) for run in (compiled, program))
        assert_same_outcome(found, expected, EXACT)
    assert counts.compilations == 2


def test_truths_are_operands_of_bitwise_functions() -> None:
    """`True << 3` is 8: such an int of a truth is no truth itself."""

    def program(x: torch.Tensor, n: int) -> Any:
        shifted = (n == 5) << 3
        return x.new_zeros(shifted + 2), x * shifted, shifted, (n > 3) ^ 2, round(n == 5), -(n == 5)

    compiled, x = stator.compile(program), torch.ones(2)
    for number in (3, 4, 5, 6, 5, 2):
        found, expected = compiled(x, number), program(x, number)
        assert all(map(torch.equal, found[:2], expected[:2]))
        assert found[2:] == expected[2:] and list(map(type, found[2:])) == list(map(type, expected[2:]))


@pytest.mark.fixed_sizes
def test_functions_of_sizes_need_no_constant():
    def sized(x):
        n = x.shape[0]
        return x + 1, n << 1, 1 << n, ~n, math.comb(n, 2), x.nbytes, x[1:].nbytes // 4

    compiled, counts = stator.compile(sized, backend="eager", fullgraph=True), Counts()
    for size in (4, 5, 6, 17):
        x = torch.randn(size, 3)
        assert_same_outcome(observe(compiled, (x,)), observe(sized, (x,)))
    assert counts.compilations == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.fixed_sizes
def test_ints_with_more_digits_than_python_writes() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        return x + 1, pow(n, 50000, 1000000007), 10**9999 % n

    compiled, x = stator.compile(program, backend="eager", dynamic=True), torch.ones(2)
    for number in (3, 5, 7):
        assert compiled(x, number)[1:] == program(x, number)[1:]
