"""Type promotion gives what `torch.result_type` and eager operators give, for every pair of operand kinds."""

from __future__ import annotations

import itertools

import pytest
import torch

from stator.prims.type_promotion import Kind, common_dtype, computation_dtype, result_dtype

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
NUMBERS = (True, 3, 2.5, 1j)


def operands() -> list[object]:
    """Every dtype with and without dimensions, and every kind of number."""
    tensors = [torch.ones(shape, dtype=dtype) for dtype in DTYPES for shape in ((2,), ())]
    return [*tensors, *NUMBERS]


PAIRS = [pair for pair in itertools.product(operands(), repeat=2) if any(isinstance(x, torch.Tensor) for x in pair)]


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_common_dtype_equals_result_type(default: torch.dtype) -> None:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for first, second in PAIRS:
            assert common_dtype((first, second)) is torch.result_type(first, second), (first, second)
    finally:
        torch.set_default_dtype(previous)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_three_operands_promote_by_category_not_by_order() -> None:
    for first, second, third in itertools.product(operands()[::3], repeat=3):
        if not all(isinstance(x, torch.Tensor) for x in (first, second, third)):
            continue
        expected = torch.where(first.to(torch.bool), second, third).dtype
        assert common_dtype((second, third)) is expected
        if not any(x.dtype is torch.bool for x in (first, second, third)):
            assert common_dtype((first, second, third)) is torch.addcmul(first, second, third).dtype


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        (Kind.DEFAULT, torch.mul),
        (Kind.INT_TO_FLOAT, torch.true_divide),
        (Kind.ALWAYS_BOOL, torch.eq),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_kind_equals_an_eager_operator_of_that_kind(kind: Kind, operator: object) -> None:
    for first, second in PAIRS:
        if isinstance(first, torch.Tensor) and torch.result_type(first, second) is not torch.complex32:
            assert result_dtype(first, second, kind=kind) is operator(first, second).dtype, (first, second)


def test_kind_equals_an_eager_operator_of_one_operand() -> None:
    for dtype in DTYPES[1:]:
        tensor = torch.ones(2, dtype=dtype)
        assert result_dtype(tensor, kind=Kind.COMPLEX_TO_FLOAT) is tensor.abs().dtype
        assert result_dtype(tensor, kind=Kind.BOOL_TO_LONG) is tensor.sum().dtype


def test_keep_ignores_the_other_operands() -> None:
    half = torch.ones(2, dtype=torch.float16)
    assert result_dtype(half, torch.ones(2, dtype=torch.float64), 1j, kind=Kind.KEEP) is torch.float16


def test_half_floats_are_computed_in_float32() -> None:
    assert computation_dtype(torch.float16) is torch.float32
    assert computation_dtype(torch.bfloat16) is torch.float32
    assert computation_dtype(torch.float64) is torch.float64
    assert computation_dtype(torch.int8) is torch.int8


def test_something_that_is_no_operand_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a tensor or a number, got str"):
        common_dtype((torch.ones(2), "x"))
