"""Functions of numbers that are read from tensors: in the graph where they give what Python gives, and as the program
itself where Python raises or gives a number of another type.
"""

from __future__ import annotations

import math

import pytest
import torch

import stator

X = torch.tensor([1.5, -2.25, 3.0, 0.5])


def roots(x):
    v = x.abs().sum().item()
    return x * math.sqrt(v), x + math.log(v), x * math.exp(-v), x * math.log2(v), x * math.log10(v), x + math.log1p(v)


def waves(x):
    v = x.sum().item()
    return (
        x * math.sin(v) + math.cos(v) * math.tanh(v),
        x * math.atan(v),
        x * abs(v),
        x * math.fabs(-v),
        x * math.pow(v, 2),
    )


def whole(x):
    v = x.abs().sum().item()
    return (
        x * int(v),
        x + math.floor(v),
        x + math.ceil(v),
        x * round(v),
        x + math.trunc(v),
        x[: int(x[0]) % 3],
        int(x.max()),
    )


def divided(x):
    v = x.sum().item()
    return x * (v // 0.7), x * (v % 0.7), x + v // -0.7, x + v % -0.7, x + int(v // 1)


def whole_numbers(x):
    n = x.long().abs().sum().item()
    quotient, rest = divmod(n, 3)
    return x * quotient + rest, x * n**2, x + abs(-n), x + (n << 2), x + (n >> 1), x * max(n, 1), x * round(n)


def at_least_one(x):
    return x / max(x.abs().sum().item(), 1)


@pytest.mark.parametrize("program", [roots, waves, whole, divided, whole_numbers, at_least_one])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_one_graph(program, backend):
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for factor in (1.0, 2.0, -1.5, 0.75):
        expected, found = program(X * factor), compiled(X * factor)
        torch.testing.assert_close(found, expected, rtol=0 if backend == "eager" else 1e-6, atol=0)


def of_logarithm(x):
    return x * math.log(x.sum().item())


def of_root(x):
    return x * math.sqrt(x.sum().item())


def of_exponential(x):
    return x * math.exp(x.sum().item())


def of_whole(x):
    return x * int(x.sum().item())


def of_floor(x):
    return x * math.floor(x.sum().item())


def of_remainder(x):
    return x * (1.0 % x.sum().item())


def of_least(x):
    least = max(x.sum().item(), 1)
    return torch.tensor([2]) * least, type(least)


def test_a_logarithm_to_another_base_is_left_to_the_program():
    def program(x):
        return x * math.log(x.sum().item(), 3)

    assert torch.equal(stator.compile(program, backend="eager")(X), program(X))


@pytest.mark.parametrize(
    ("program", "number"),
    [
        (of_logarithm, 0.0),
        (of_logarithm, -1.0),
        (of_root, -1.0),
        (of_exponential, 1000.0),
        (of_whole, math.inf),
        (of_whole, math.nan),
        (of_floor, -math.inf),
        (of_remainder, 0.0),
        (of_least, 0.25),
        (of_least, 1.0),
        (of_least, math.nan),
    ],
)
def test_where_python_goes_another_way(program, number):
    def outcome(function, value):
        try:
            return str(function(torch.tensor([value])))
        except (ValueError, OverflowError, ZeroDivisionError) as error:
            return type(error), str(error)

    compiled = stator.compile(program, backend="eager")
    for value in (2.5, number, 3.5):
        assert outcome(compiled, value) == outcome(program, value)
