"""Numbers of NumPy, and numbers that are looked up in tables: inputs of the graph like Python's, one version more when
they first change.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

numpy = pytest.importorskip("numpy")
BACKENDS = ["eager", "aot_eager", "inductor"]
KINDS = ["float64", "float32", "float16", "int64", "int32", "uint8"]


def alike(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], backend: str = "aot_eager") -> int:
    """Compare compiled calls with eager's, the types of numbers too; how many versions there were."""
    compiled = stator.compile(function, backend=backend, fullgraph=True)
    counters.clear()
    for call in calls:
        expected, found = function(*call), compiled(*call)
        assert [type(one) for one in found] == [type(one) for one in expected]
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(torch.as_tensor(other), torch.as_tensor(one))
    return counters.counts["dynamo.compiled_frames"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_argument(kind: str, backend: str) -> None:
    make = getattr(numpy, kind)

    def function(x: torch.Tensor, number: Any) -> tuple[torch.Tensor, ...]:
        return x * number, number * x, x / number, torch.add(x, x, alpha=number), x.clamp(max=number), x > number

    x = torch.randn(6, generator=torch.Generator().manual_seed(0))
    assert alike(function, [(x, make(value)) for value in (2, 3, 5, 7, 11)], backend) == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_types_are_promoted_as_by_a_python_number(kind: str, dtype: torch.dtype) -> None:
    make = getattr(numpy, kind)
    x = torch.arange(6).to(dtype)
    calls = [(x, make(value)) for value in (2, 3, 5)]
    assert alike(lambda x, number: (x * number, number - x, x / number), calls) == 2


def test_arithmetic_is_numpys() -> None:
    def function(x: torch.Tensor, rate: Any) -> tuple[Any, ...]:
        factor = numpy.sqrt(rate) * 2 + 1
        result = x * factor if rate < 3 else x / rate
        return result, factor, rate * 2, float(rate), numpy.minimum(rate, 2.0), -rate, rate**2, rate / 3, abs(rate)

    x = torch.ones(3)
    for kind in ("float64", "float32"):
        make = getattr(numpy, kind)
        assert alike(function, [(x, make(value)) for value in (1.5, 2.5, 1.25, 4.5, 3.5, 5.5)]) == 3


def test_division_by_zero_is_numpys() -> None:
    def function(x: torch.Tensor, number: Any) -> tuple[Any, ...]:
        return (x * (numpy.float64(1) / number),)

    with numpy.errstate(divide="ignore"):
        calls = [(torch.ones(2), numpy.float64(value)) for value in (1, 2, 0, 4, 0)]
        assert alike(function, calls) == 2


def test_sizes_and_dimensions_rely_on_the_value() -> None:
    def function(x: torch.Tensor, number: Any) -> tuple[torch.Tensor, ...]:
        return x[:number].sum(), x.view(2, -1) * number

    assert alike(function, [(torch.ones(8), numpy.int64(value)) for value in (1, 2, 3, 1)]) == 3


def test_kinds_do_not_stand_for_each_other() -> None:
    calls = [(torch.ones(2), value) for value in (numpy.float64(1.5), 1.5, numpy.float32(1.5), 2.5, numpy.float64(2.5))]
    alike(lambda x, number: (x * number, number + 1), calls)


# ---- tables ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [list, tuple, dict, OrderedDict])
def test_a_table_of_rates(kind: type, backend: str) -> None:
    rates = [0.5, 0.25, 0.125, 1.5, 3.0]
    table = kind(enumerate(rates) if issubclass(kind, dict) else rates)
    calls = [(torch.arange(3.0), at) for at in range(5)]
    assert alike(lambda x, at: (x * table[at], x + table[at] ** 2), calls, backend) == 2


def test_a_counter_of_milestones() -> None:
    """As in MultiStepLR: what is not there counts nothing, and is not put there."""
    milestones = Counter([2, 5, 5])
    alike(lambda x, at: (x * 0.5 ** milestones[at],), [(torch.ones(2), at) for at in range(8)])
    assert sorted(milestones) == [2, 5]


def test_a_table_that_changes_is_read_anew() -> None:
    rates, by_turn = [0.1, 0.2, 0.3], {0: 1.0, 1: 2.0, 2: 4.5}
    run = stator.compile(lambda x, at: x * rates[at] * by_turn[at] + rates[-1 - at], backend="eager", fullgraph=True)
    for turn in range(9):
        at = turn % 3
        expected = torch.ones(2) * rates[at] * by_turn[at] + rates[-1 - at]
        torch.testing.assert_close(run(torch.ones(2), at), expected)
        rates[at] *= 3
        by_turn[2 - at] += 1


def test_what_was_looked_up_before_a_change_stays() -> None:
    rates = [0.0]

    @stator.compile(backend="eager", fullgraph=True)
    def function(x: torch.Tensor, at: int) -> tuple[torch.Tensor, float, int]:
        rate = rates[at]
        rates.clear()
        return x * rate, rate, len(rates)

    for at in range(4):
        rates[:] = [0.1, 0.2, 0.3, 0.4]
        result, rate, length = function(torch.ones(2), at)
        assert (result[0].item(), rate, length) == (pytest.approx(rate), [0.1, 0.2, 0.3, 0.4][at], 0)


def test_a_counter_that_goes_on_behind_the_lookup() -> None:
    rates = [0.1, 0.2, 0.3, 0.4, 0.5]

    class Clock:
        turn = 0

    clock = Clock()

    @stator.compile(backend="eager", fullgraph=True)
    def function(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        rate = rates[clock.turn]
        clock.turn += 1
        return x * rate, rate

    assert [function(torch.ones(1))[1] for _ in range(5)] == rates


def test_a_place_that_is_not_there_raises_as_in_eager() -> None:
    rates, by_turn = [0.1, 0.2, 0.3], {0: 1.0, 1: 2.0}
    of_list = stator.compile(lambda x, at: x * rates[at], backend="eager")
    of_dict = stator.compile(lambda x, at: x * by_turn[at], backend="eager")
    for at in range(2):
        of_list(torch.ones(1), at)
        of_dict(torch.ones(1), at)
    with pytest.raises(IndexError):
        of_list(torch.ones(1), 3)
    with pytest.raises(KeyError):
        of_dict(torch.ones(1), 3)
