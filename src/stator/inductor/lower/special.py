"""Lowerings of special functions: the formulas of `prims/special_functions.py` as scalar arithmetic of a loop body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.inductor.loops.body import Ref
from stator.prims.shape_rules.operands import overloads
from stator.prims.special_functions import binary_formulas, polygamma, unary_formulas
from stator.prims.type_promotion import Kind

from .builder import Builder
from .pointwise import Operand, elementwise
from .registry import lowerings, lowers
from .tensor import Tensor

aten = torch.ops.aten


class Value:
    """A value of a loop body that overloads arithmetic. Numbers take the dtype of the value they meet."""

    __slots__ = ("ops", "ref")

    def __init__(self, ops: Any, ref: Ref) -> None:
        self.ops, self.ref = ops, ref

    def __neg__(self) -> Value:
        return Value(self.ops, self.ops.neg(self.ref))

    def lifted(self, other: Any) -> Ref:
        return other.ref if isinstance(other, Value) else self.ops.constant(other, self.ops.dtype(self.ref))


def _operator(operation: str, reflected: bool = False) -> Callable[[Value, Any], Value]:
    def apply(self: Value, other: Any) -> Value:
        pair = (self.lifted(other), self.ref) if reflected else (self.ref, self.lifted(other))
        return Value(self.ops, self.ops.elementwise(operation, *pair))

    return apply


for _name, _operation in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div")):
    setattr(Value, f"__{_name}__", _operator(_operation))
    setattr(Value, f"__r{_name}__", _operator(_operation, reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(_name))
for _name, _operation in (("and", "bitwise_and"), ("or", "bitwise_or")):
    setattr(Value, f"__{_name}__", _operator(_operation))


class LoopFunctions:
    """The elementary functions that formulas call, named as in the vocabulary of loops."""

    def __getattr__(self, name: str) -> Callable[..., Value]:
        def call(first: Value, *others: Value) -> Value:
            return Value(first.ops, first.ops.elementwise(name, first.ref, *(other.ref for other in others)))

        return call

    @staticmethod
    def where(condition: Value, x: Any, y: Any, like: Value | None = None) -> Value:
        known = next(value for value in (x, y, like) if isinstance(value, Value))
        return Value(known.ops, known.ops.where(condition.ref, known.lifted(x), known.lifted(y)))


FUNCTIONS = LoopFunctions()


def formula_of_loops(formula: Callable[..., Value]) -> Callable[..., Ref]:
    """A formula as a function of the handler and of loop values, for `elementwise`."""

    def function(ops: Any, *values: Ref) -> Ref:
        return formula(FUNCTIONS, *[Value(ops, value) for value in values]).ref

    return function


def _register(name: str, formula: Callable[..., Value], variants: str) -> None:
    function = formula_of_loops(formula)

    def lowering(builder: Builder, *operands: Operand) -> Tensor:
        return elementwise(builder, function, operands, Kind.INT_TO_FLOAT, heavy=True)

    for target in overloads(" ".join(name + variant for variant in variants.split(","))):
        lowerings.add(target, lowering)


for _name in unary_formulas:
    _register(_name, unary_formulas[_name], "")
for _name in binary_formulas:
    _register(
        _name,
        binary_formulas[_name],
        ",.x_scalar,.n_scalar" if "polynomial" in _name else ",.self_scalar,.other_scalar",
    )


@lowers(aten.polygamma.default)
def _polygamma(builder: Builder, n: int, x: Tensor) -> Tensor:
    function = formula_of_loops(lambda m, value: polygamma(m, n, value))
    return elementwise(builder, function, [x], Kind.INT_TO_FLOAT, heavy=True)
