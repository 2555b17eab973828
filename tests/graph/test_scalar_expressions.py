"""Numbers in tensors without dimensions that follow from sizes: expressions equal eager's numbers at every size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.fake.scalar_expressions import scalar_of
from stator.shapes.environment import LARGEST_SIZE, Environment
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr, functions_of
from stator.shapes.sym_node import to_sym_int

N = Symbol("n")
SIZES = (*range(1, 400), 1023, 4095, 4096, 4097, 65535, 65536, 99_999, 2**20 + 7, 2**21 - 1, 2**21)
# where floats of 32 bits round whole numbers
LARGE = (2**24 + 1, 2**24 + 3, 2**25 + 5, 2**31 - 1, 2**31 + 9, 2**40 - 1)

Program = Callable[[Any, torch.Tensor], torch.Tensor]
INTS: dict[str, Program] = {
    "sum": lambda n, k: k + n + 1,
    "difference": lambda n, k: n - k,
    "product": lambda n, k: k * n - 3,
    "negative": lambda n, k: -(k + n),
    "quotient": lambda n, k: (k + n) // 3,
    "backward quotient": lambda n, k: (n - k) // k,
    "remainder": lambda n, k: (-(k + n)) % k,
    "divided downwards": lambda n, k: torch.div(k * n, k + 2, rounding_mode="floor"),
    "clamped": lambda n, k: torch.clamp(k - n, min=0) + torch.clamp(k + n, 2, 40),
    "largest": lambda n, k: torch.maximum(k, k * 0 + n) - torch.minimum(k + n, k * 9),
    "smaller type": lambda n, k: (k + n % 7).to(torch.int32) * 2,
}
PADDINGS: dict[str, Program] = {
    "ceil of a float": lambda n, k: torch.ceil((n - k + 2) / k + 1).to(torch.int64) - 1,
    "floor of a float": lambda n, k: torch.floor((n + k) / 5).to(torch.int64),
    "ceil of doubles": lambda n, k: torch.ceil((n - k.double()) / 7 + 2).long(),
    "trunc": lambda n, k: ((k + n) / k).to(torch.int64),
    "to the next multiple": lambda n, k: torch.ceil((n + k) / k).long() * k - n,
}
FLOATS: dict[str, Program] = {
    "float": lambda n, k: (k + n) / k,
    "product of floats": lambda n, k: (k + n) * 0.7 - 0.1,
    "sum of floats": lambda n, k: (n - k) / 3 + 0.3,
    "double": lambda n, k: (k.double() + n) / 3,
    "rounded up": lambda n, k: torch.ceil((k + n) * 0.3),
}
TRUTHS: dict[str, Program] = {
    "less": lambda n, k: k + n < 100,
    "at least": lambda n, k: n - k >= 5,
    "equal": lambda n, k: (k + n) % 4 == 2,
}


def followed(program: Program, hint: int, kernel: int = 10) -> tuple[Any, Environment]:
    environment = Environment()
    size = to_sym_int(environment, environment.size("n", hint))
    environment.limits[N] = LARGEST_SIZE
    with FakeMode():
        made = program(size, torch.tensor(kernel))
        scalar = scalar_of(made)
    assert scalar is not None
    return scalar.expression, environment


def number(expression: Any, size: int) -> Any:
    if isinstance(expression, Expr | FloatExpr):
        return expression.evaluate({N: size})
    return expression.holds({N: size})


@pytest.mark.parametrize("kernel", [1, 5, 10])
@pytest.mark.parametrize("name", [*INTS, *PADDINGS, *FLOATS, *TRUTHS])
def test_expressions_give_the_numbers_of_eager(name: str, kernel: int) -> None:
    program = (INTS | PADDINGS | FLOATS | TRUTHS)[name]
    expression, environment = followed(program, 7, kernel)
    low, high = environment.ranges[N]
    for size in (*SIZES, *LARGE):
        if low <= size <= high:
            expected = program(size, torch.tensor(kernel)).item()
            assert number(expression, size) == expected, (str(expression), size)


@pytest.mark.parametrize("name", [*FLOATS, *PADDINGS])
def test_large_sizes_round_as_in_eager(name: str) -> None:
    program = (PADDINGS | FLOATS)[name]
    for hint in LARGE:
        expression, environment = followed(program, hint)
        low, high = environment.ranges[N]
        for size in LARGE:
            if low <= size <= high:
                assert number(expression, size) == program(size, torch.tensor(10)).item(), (str(expression), size)


@pytest.mark.parametrize("name", PADDINGS)
def test_roundings_are_expressions_of_ints(name: str) -> None:
    expression, _ = followed(PADDINGS[name], 1000)
    assert not functions_of(expression), str(expression)


@pytest.mark.parametrize(
    "program",
    [
        lambda n, k: (k + n).to(torch.int8),  # may overflow
        lambda n, k: (k + n) // (k - n),  # may divide by zero
        lambda n, k: torch.sqrt((k + n).double()),
        lambda n, k: (k + n).bfloat16() / 3,
        lambda n, k: torch.add(k + n, k, alpha=2),
        lambda n, k: (k + n).reshape(1).repeat(3),
    ],
)
def test_other_numbers_are_not_followed(program: Program) -> None:
    environment = Environment()
    size = to_sym_int(environment, environment.size("n", 7))
    with FakeMode():
        made = program(size, torch.tensor(10))
        assert scalar_of(made) is None
    assert not environment.facts


def test_a_write_ends_it() -> None:
    environment = Environment()
    size = to_sym_int(environment, environment.size("n", 7))
    environment.limits[N] = LARGEST_SIZE
    with FakeMode():
        made = torch.tensor(10) + size
        other = made.detach()
        assert scalar_of(other) is not None
        made.mul_(2)
        assert scalar_of(made) is None
        assert scalar_of(other) is None


def test_floats_round_on_their_side_of_each_integer() -> None:
    """Quotients and sums of 32 bits, at the ends of the range in which they count as exact."""
    top = 1 << 21
    for divisor in (3, 5, 7, 10, 320, 999):
        n = torch.cat([torch.arange(top - 20_000, top), torch.arange(20_000)])
        rounded = torch.ceil(n / divisor + 1).to(torch.int64)
        assert torch.equal(rounded, -(-n // divisor) + 1)
    assert math.ceil(torch.tensor(2**24 + 1).float().item()) == 2**24
