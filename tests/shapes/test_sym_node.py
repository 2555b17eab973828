"""`torch.SymInt` over our expressions: arithmetic, values and comparisons recorded, tensors that carry it."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stator.base.errors import Unsupported
from stator.shapes.environment import Environment
from stator.shapes.sym_node import SymbolicNode, storage_bytes, to_expression, to_sym_float, to_sym_int


def sizes(*hints: int) -> tuple[Environment, list[Any]]:
    environment = Environment()
    return environment, [to_sym_int(environment, environment.size(f"s{n}", hint)) for n, hint in enumerate(hints)]


def test_arithmetic_gives_canonical_expressions_and_asks_nothing() -> None:
    environment, (a, b) = sizes(6, 4)
    assert str(a * b + 2 * b - b) == "s0*s1 + s1"
    assert to_expression(a * b) is to_expression(b * a)
    assert (a * b // b).node.value is to_expression(a)
    assert str(7 - a) == "-s0 + 7"
    assert a - a == 0 and type(a - a) is int
    assert not environment.facts


def test_comparisons_that_ranges_answer_are_plain() -> None:
    environment, (a,) = sizes(6)
    assert (a == 0) is False and (a != 0) is True and (a >= 1) is True and (a < 1) is False
    assert not environment.facts


def test_other_comparisons_are_symbols_until_their_truth_is_asked() -> None:
    environment, (a, b) = sizes(6, 4)
    larger = a > b
    assert isinstance(larger, torch.SymBool) and not environment.facts
    assert bool(larger) and [str(fact) for fact in environment.facts] == ["s0 - s1 - 1 >= 0"]


def test_asking_for_the_value_makes_it_constant() -> None:
    environment, (a,) = sizes(6)
    assert int(a) == 6 and list(range(a)) == list(range(6))
    assert [str(fact) for fact in environment.facts] == ["s0 - 6 == 0"]


INTEGER = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, torch.sym_min, torch.sym_max)
COMPARISON = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
numbers = st.integers(2, 50)


def plain(value: Any) -> Any:
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


@given(st.sampled_from(INTEGER + COMPARISON), numbers, numbers, st.sampled_from(("left", "right", "both")))
def test_integer_operations_are_those_of_ints(function: Any, first: int, second: int, where: str) -> None:
    _, (a, b) = sizes(first, second)
    operands = (first if where == "right" else a, second if where == "left" else b)
    if where == "right" and function in (torch.sym_min, torch.sym_max):
        operands = (a, b)
    assert plain(function(*operands)) == function(first, second)


@given(st.sampled_from((operator.add, operator.sub, operator.mul, operator.truediv)), numbers, st.floats(0.01, 100.0))
def test_float_operations_are_those_of_floats(function: Any, size: int, factor: float) -> None:
    environment, (a,) = sizes(size)
    for rounding in (math.floor, math.ceil, math.trunc):
        assert plain(rounding(function(a, factor))) == rounding(function(size, factor))
        assert plain(rounding(function(factor, a))) == rounding(function(factor, size))
    assert not environment.constants()


def test_powers_and_roots() -> None:
    environment, (a,) = sizes(6)
    assert str(a**2) == "s0*s0" and plain(a**-1) == 6**-1 and plain(a**0.5) == 6**0.5
    assert plain(-a) == -6 and plain(abs(-a)) == 6
    assert plain(a / 4) == 1.5 and plain(torch.sym_float(a)) == 6.0
    assert not environment.constants()


def test_a_rounded_size_is_a_size_of_its_own() -> None:
    environment, (a,) = sizes(6)
    half = math.floor(a * 0.5)
    assert to_expression(half) is to_expression(math.floor(a * 0.5))
    assert plain(half + a) == 9
    assert environment.simplify(to_expression(half)).evaluate({next(iter(environment.hints)): 9}) == 4


def test_logic_of_conditions() -> None:
    environment, (a, b) = sizes(6, 4)
    either = (a == 5) | (b == 4)
    assert isinstance(either, torch.SymBool) and not environment.facts
    assert bool(either) and not bool((a == 5) & (b == 4))
    assert bool(torch.sym_not(a == 5))
    # torch.sym_ite itself takes only torch's own kind of node; C++ takes ours
    assert (a > b).node.sym_ite(a.node, b.node).value is to_expression(a)


def test_floats_compare_and_are_recorded() -> None:
    environment, (a,) = sizes(6)
    assert a * 0.5 > 2.5
    assert not (a * 0.5 < 0.5) and len(environment.facts) == 1
    assert environment.holds({next(iter(environment.hints)): 7})
    assert not environment.holds({next(iter(environment.hints)): 5})


def test_a_symbol_without_a_hint() -> None:
    environment = Environment()
    count = to_sym_int(environment, environment.symbol("count", None, 0))
    assert not count.node.has_hint()
    assert count.node.ge(count.node.wrap_int(3)).guard_or_false("", 0) is False
    assert count.node.ge(count.node.wrap_int(3)).guard_or_true("", 0) is True
    with pytest.raises(Unsupported):
        bool(count > 3)


class Wrapper(torch.Tensor):
    """A tensor with symbolic sizes and nothing behind them."""

    @staticmethod
    def __new__(cls, shape: Any, strides: Any, offset: Any = 0) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[no-any-return]
            cls, shape, strides=strides, storage_offset=offset, dtype=torch.float32
        )

    def __init__(self, *_layout: Any) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


def test_a_tensor_carries_symbolic_sizes() -> None:
    environment, (a, b) = sizes(6, 4)
    tensor = Wrapper((a, b, 3), (b * 3, 3, 1))
    assert [str(size) for size in tensor.shape] == ["s0", "s1", "3"]
    assert type(tensor.shape[2]) is int
    assert str(tensor.numel()) == "3*s0*s1" and [str(step) for step in tensor.stride()] == ["3*s1", "3", "1"]
    assert isinstance(tensor.shape[0].node, SymbolicNode)
    assert not environment.facts


def test_bytes_of_a_storage_are_those_of_cplusplus() -> None:
    _, (a, b) = sizes(6, 4)
    for shape, strides, offset in (((a, b, 3), (b * 3, 3, 1), 0), ((b, a), (1, 2 * b), a + 1), ((a, 0), (1, 1), 0)):
        tensor = Wrapper(shape, strides, offset)
        assert str(storage_bytes(shape, strides, offset, 4)) == str(tensor.untyped_storage().nbytes())
    assert storage_bytes((6, 4), (4, 1), 0, 4) is None


def test_cplusplus_tells_layouts_of_symbolic_sizes() -> None:
    environment, (n, c, h, w) = sizes(6, 4, 5, 7)
    rows = Wrapper((n, c, h, w), (c * h * w, h * w, w, 1))
    channels = Wrapper((n, c, h, w), (c * h * w, 1, c * w, c))
    gaps = Wrapper((n, c, h, w), (2 * c * h * w, 2 * h * w, 2 * w, 2))
    assert rows.is_contiguous() and channels.is_contiguous(memory_format=torch.channels_last)
    assert not environment.facts
    assert torch.ops.aten.is_non_overlapping_and_dense(channels)
    for tensor, expected in ((rows, (True, False)), (channels, (False, True)), (gaps, (False, False))):
        asked = tensor.is_contiguous(), tensor.is_contiguous(memory_format=torch.channels_last)
        assert asked == expected
    assert not torch.ops.aten.is_non_overlapping_and_dense(gaps)
    symbols = [to_expression(size) for size in (n, c, h, w)]
    assert environment.holds(dict(zip(symbols, (2, 2, 3, 2), strict=True)))
    assert not environment.holds(dict(zip(symbols, (6, 1, 5, 7), strict=True)))  # in both orders at once


def test_floats_of_symbols_are_symbolic() -> None:
    environment, (a,) = sizes(6)
    half = to_expression(a * 0.5)
    assert str(to_sym_float(environment, half)) == "(float(s0) * 0.5)" and to_sym_float(environment, 2.5) == 2.5
