"""Python numbers beyond the range of a dtype: eager's errors, not numbers that have wrapped around."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator.prims.type_promotion import check_factor, check_range

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
INTEGERS = [
    sign * (2**bits + offset) for bits in (0, 7, 8, 15, 16, 31, 32, 53) for offset in (-1, 0, 1) for sign in (1, -1)
]
FLOATS = [
    sign * number
    for number in (0.0, 0.5, 255.5, 65504.0, 65504.5, 1e6, 3.3e38, 3.4e38, 3.5e38, 1e300, 2.0**63, 2.0**64)
    for sign in (1, -1)
]
NUMBERS = [*INTEGERS, *FLOATS, 2**63 - 1, -(2**63), True, float("inf"), float("-inf"), float("nan")]


def eager_takes(dtype: torch.dtype, number: float) -> bool:
    try:
        torch.empty(3, dtype=dtype).fill_(number)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_are_refused_where_eager_refuses_to_fill_a_tensor_with_them(dtype: torch.dtype) -> None:
    different = []
    for number in NUMBERS:
        try:
            check_range(dtype, number)
        except RuntimeError:
            takes = False
        else:
            takes = True
        if takes != eager_takes(dtype, number):
            different.append(number)
    assert different == []


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.int32, 2.0), (torch.float32, True), (torch.uint8, 300), (torch.float16, 1e6)], ids=str
)
def test_factors_are_refused_as_by_eager(dtype: torch.dtype, factor: float) -> None:
    x = torch.ones(2, dtype=dtype)
    with pytest.raises(RuntimeError):
        torch.add(x, x, alpha=factor)
    with pytest.raises(RuntimeError):
        check_factor(dtype, factor)


OPERATORS_WITH_NUMBERS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "leaky_relu": torch.nn.functional.leaky_relu,
    "elu": torch.nn.functional.elu,
    "celu": torch.celu,
    "softplus": lambda x, number: torch.nn.functional.softplus(x, 1.0, number),
    "hardshrink": torch.hardshrink,
    "softshrink": torch.nn.functional.softshrink,
    "index_add": lambda x, number: x.index_add(0, torch.tensor([0]), x[:1], alpha=number),
    "linspace": lambda x, number: x + torch.linspace(0.0, number, 3, dtype=x.dtype),
}


@pytest.mark.parametrize("number", [0.5, 1e5, 1e39, -1.0], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", OPERATORS_WITH_NUMBERS)
def test_compiled_operators_refuse_the_numbers_that_eager_refuses(name: str, dtype: torch.dtype, number: float) -> None:
    operator, x = OPERATORS_WITH_NUMBERS[name], torch.ones(3, dtype=dtype)
    compiled = stator.compile(lambda x: operator(x, number))
    try:
        expected = operator(x, number)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as caught:
            compiled(x)
        assert ("without overflow" in str(error)) == ("without overflow" in str(caught.value))
    else:
        torch.testing.assert_close(compiled(x), expected, equal_nan=True)
