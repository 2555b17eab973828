"""Numbers that only the run can tell become tensors: `torch.tensor(x.item())`, and numbers that are given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Program = Callable[[torch.Tensor], Any]


def a_drawn_number_given_back(x: torch.Tensor) -> Any:
    number = torch.rand(1).item()
    return (x * number).clamp(0, 1), number


def numbers_of_one_element_in_rows(x: torch.Tensor) -> Any:
    return x * torch.rand(1, 1).item() + x[2:3].item()


PROGRAMS: dict[str, Program] = {
    "a float": lambda x: torch.tensor(x[0].item() + 1) + x,
    "a float in half precision": lambda x: torch.tensor((x * 1e10).double()[0].item(), dtype=torch.float16),
    "a wide float": lambda x: torch.tensor(x[0].item() / 3, dtype=torch.float64) * x,
    "an int": lambda x: torch.tensor(int((x > 0).sum())),
    "an int as a float": lambda x: torch.tensor(2 * int((x > 0).sum()) + 1, dtype=torch.bfloat16) * x,
    "a large int as a float": lambda x: torch.tensor((x[0].long() + 2**60 + 2**36 + 1).item(), dtype=torch.float32),
    "a float of an int": lambda x: torch.tensor(float(int((x > 0).sum()))),
    "given back": a_drawn_number_given_back,
    "of one element in rows": numbers_of_one_element_in_rows,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_become_tensors(name: str, backend: str) -> None:
    options = {"exact_random": True} if backend == "aot_eager" else None
    compiled = stator.compile(PROGRAMS[name], backend=backend, fullgraph=True, options=options)
    for x in (torch.tensor([0.5, -2.0, 3.0]), torch.tensor([1.5, 2.0, 4.0])):
        torch.manual_seed(0)
        expected = PROGRAMS[name](x)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)


@pytest.mark.filterwarnings("error")
def test_a_number_of_one_element_in_rows_is_compiled_by_aot() -> None:
    compiled = stator.compile(a_drawn_number_given_back, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(3))  # of a part that runs in ATen there is a warning


def a_float_beside_a_count(x: torch.Tensor) -> Any:
    mean, count = x.mean().item(), int((x > 0).sum())
    return x * mean, x * count, mean * 2, count


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("train", [False, True])
def test_a_float_goes_from_segment_to_segment_of_a_graph(train: bool) -> None:
    """The count divides the graph; of segments that run in ATen because of the float there is a warning."""
    compiled = stator.compile(a_float_beside_a_count, backend="aot_eager", fullgraph=True)
    for x in (torch.tensor([0.5, -2.0, 3.0]), torch.tensor([1.5, 2.0, 4.0])):
        x, y = x.clone().requires_grad_(train), x.clone().requires_grad_(train)
        found, expected = compiled(x), a_float_beside_a_count(y)
        assert found[2:] == expected[2:]
        torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0)
        if train:
            (found[0] + found[1]).sum().backward()
            (expected[0] + expected[1]).sum().backward()
            torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


def test_a_dtype_that_may_not_hold_the_number_is_refused_as_in_eager() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(x[0].long().item(), dtype=torch.int8) + x

    compiled = stator.compile(program, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    with pytest.raises(RuntimeError, match="overflow"):
        compiled(torch.full((2,), 300.0))


ARITHMETIC: dict[str, Program] = {
    "a reciprocal": lambda x: x * (1.0 / x[0].item()),
    "a root": lambda x: x * x[0].item() ** 0.5,
    "a negative power": lambda x: x * x[0].item() ** -1,
    "a square": lambda x: (x * x[0].item() ** 2, x[0].item() ** 3),
    "a power": lambda x: x * 2.0 ** x[0].item(),
    "a read exponent": lambda x: x * x[0].item() ** x[1].item(),
    "the larger of a float and an int": lambda x: (torch.arange(3) * max(x[0].item(), 3), max(x[0].item(), 3)),
    "the smaller of an int and a float": lambda x: min(1, x[0].item()),
    "the larger of a count and a float": lambda x: (x * max(int((x > 0).sum()), 1.5), max(int((x > 0).sum()), 1.5)),
    "the larger of floats": lambda x: (torch.arange(3) * max(x[0].item(), 3.0), max(x[0].item(), 3.0)),
}


def outcome(program: Program, first: float) -> str:
    try:
        return repr(program(torch.tensor([first, 1.5])))
    except ZeroDivisionError as error:
        return str(error)


COMPLEX = ("a root", "a read exponent")  # of negative numbers


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_of_floats_is_that_of_python(name: str, backend: str) -> None:
    """It raises for zeros and gives complex numbers and ints, where tensors have infinities, NaN and floats."""
    compiled = stator.compile(ARITHMETIC[name], backend=backend)
    for first in (5.0, 0.5) if name in COMPLEX else (5.0, 0.0, -2.0, 0.5):
        assert outcome(compiled, first) == outcome(ARITHMETIC[name], first)


@pytest.mark.graphs_may_fail_alone
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_powers_are_left_to_the_program(name: str) -> None:
    compiled = stator.compile(ARITHMETIC[name], backend="aot_eager")
    for first in (5.0, -2.0):
        assert outcome(compiled, first) == outcome(ARITHMETIC[name], first)
