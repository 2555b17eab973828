"""Scalar elementwise lowerings against eager: values, dtypes, broadcasting, layouts, special values."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers, loop_nodes

import stator

SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 1e-30, -1e30, math.inf, -math.inf, math.nan])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


UNARY = [
    torch.neg, torch.abs, torch.sign, torch.exp, torch.exp2, torch.expm1, torch.log, torch.log2, torch.log10,
    torch.log1p, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.sin, torch.cos, torch.tan, torch.asin, torch.acos,
    torch.atan, torch.sinh, torch.cosh, torch.tanh, torch.asinh, torch.acosh, torch.atanh, torch.erf, torch.erfc,
    torch.sigmoid, torch.floor, torch.ceil, torch.trunc, torch.round, torch.isnan, torch.isinf, torch.logical_not,
    torch.relu, F.relu6, F.silu, F.hardswish, F.hardsigmoid, F.hardtanh, F.leaky_relu, F.elu, F.softplus,
    F.mish, torch.square, torch.nan_to_num,
]  # fmt: skip


@pytest.mark.parametrize("function", UNARY, ids=lambda f: f.__name__)
def test_unary_on_special_and_random_values(function):
    x = torch.cat([SPECIAL, torch.randn(50) * 3])
    assert_lowers(function, x)


def test_float_floor_division():
    numbers = torch.cat(
        [torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, math.inf, -math.inf, math.nan]), torch.randn(8)]
    )
    assert_lowers(torch.floor_divide, numbers[:, None].expand(18, 18).contiguous(), numbers.expand(18, 18).contiguous())


DIVISIONS = {
    "floor_divide": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "by what wraps around to zero": lambda x, y: x.byte() // (y + 255).byte(),
    "by a number that does": lambda x, y: x.byte() % (256 if y.dim() else 7),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_divided_by_zero_are_eagers_error(name):
    function = DIVISIONS[name]
    compiled = stator.compile(lambda x, y: function(x, y) + 1)
    x = torch.arange(40) - 20
    other = torch.tensor(7) if name == "by a number that does" else x.abs() * 2 + 3
    assert torch.equal(compiled(x, other), function(x, other) + 1)
    with pytest.raises(RuntimeError) as expected:
        function(x, torch.arange(40))
    with pytest.raises(RuntimeError) as actual:
        compiled(x, torch.arange(40))
    assert str(actual.value) == str(expected.value)


BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2,
    torch.hypot, torch.copysign, torch.fmod, torch.remainder, torch.eq, torch.ne, torch.lt, torch.le, torch.gt,
    torch.ge, torch.logical_and, torch.logical_or, torch.logical_xor, torch.pow,
    lambda a, b: torch.add(a, b, alpha=2), lambda a, b: torch.sub(a, b, alpha=0.5),
    lambda a, b: torch.div(a, b, rounding_mode="trunc"), lambda a, b: torch.lerp(a, b, 0.3),
    lambda a, b: torch.addcmul(a, a, b, value=0.5), lambda a, b: torch.addcdiv(a, a, b, value=0.5),
]  # fmt: skip


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_binary_on_all_pairs_of_special_values(function):
    x = torch.cat([SPECIAL, torch.randn(6)])
    assert_lowers(function, x[:, None].expand(18, 18).contiguous(), x.expand(18, 18).contiguous())


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a // 7 + b // -3,
        lambda a, b: a % 7 + b % -3,
        lambda a, b: torch.div(a, 7, rounding_mode="trunc") - b,
        lambda a, b: torch.fmod(a, 7) - torch.fmod(b, -3),
        torch.bitwise_and,
        torch.bitwise_or,
        torch.bitwise_xor,
        lambda a, b: a << b.abs(),
        lambda a, b: a >> b.abs(),
        lambda a, b: a / b,
    ],
)
def test_integer_binary(function):
    a = torch.randint(-50, 50, (60,))
    b = torch.tensor([-3, -2, -1, 1, 2, 5]).repeat(10)
    assert_lowers(function, a, b)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 5).t(),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(4, 6)[:, ::2],
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    ],
)
def test_results_have_eager_strides_for_strided_inputs(make):
    x = make()
    assert_lowers(lambda x: (x + 1, x.exp() * x, (x * 2).sum(0)), x)


@pytest.mark.parametrize("low,high", [(None, 0.5), (-0.5, None), (-0.5, 0.5), (0.5, -0.5)])
def test_clamp_with_nan(low, high):
    assert_lowers(lambda x: torch.clamp(x, low, high), SPECIAL)


@pytest.mark.parametrize("eps", [0.1, 0.5, 0.9])
def test_logit_between_bounds_that_cross(eps):
    assert_lowers(lambda x: torch.logit(x, eps), torch.tensor([0.0, 0.05, 0.3, 0.7, 0.95, 1.0, math.nan]))


def test_bfloat16_chain_is_computed_in_float32_and_rounded_at_the_store():
    x = torch.randn(1000).bfloat16()
    lowered = assert_lowers(lambda x: (x * 1.5 + 0.25).exp(), x, tolerance=2e-2)
    (node,) = loop_nodes(lowered)
    arithmetic = {op.dtype for op in node.body.ops if op.name in ("mul", "add", "exp")}
    assert arithmetic == {torch.float32}


def test_explicit_rounding_to_bfloat16_is_kept():
    assert_lowers(lambda x: x.bfloat16().float() - x, torch.randn(100), tolerance=0)


def test_a_chain_is_one_loop_nest():
    lowered = assert_lowers(lambda x, y: ((x + y).tanh() * y - 1).sigmoid(), torch.randn(4, 5), torch.randn(5))
    assert len(loop_nodes(lowered)) == 1


def test_contiguous_loops_are_merged():
    (node,) = loop_nodes(assert_lowers(lambda x: x + 1, torch.randn(4, 5, 6)))
    assert node.body.ranges == (120,)


@pytest.mark.parametrize("function", [torch.sign, torch.sgn, torch.nan_to_num, torch.floor, torch.positive])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_results_equal_to_their_operand_have_memory_of_their_own_where_eager_gives_them_some(function, dtype):
    x = torch.tensor([1, 0, 1]).to(dtype)
    if dtype is torch.bool and function in (torch.floor, torch.positive):
        return  # eager refuses these
    result, expected = stator.compile(function)(x), function(x)
    assert torch.equal(result, expected)
    assert (result.data_ptr() == x.data_ptr()) is (expected.data_ptr() == x.data_ptr())
