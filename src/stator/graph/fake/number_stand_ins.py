"""Stand-ins, while tracing, for Python numbers that a graph takes as inputs or reads from tensors.

To torch they are `torch.SymFloat`s and `SymInt`s, so that they reach operators as numbers and promote types as numbers
do. In traced graphs each is a zero-dim float64 or int64 tensor on the CPU. A table of rules says which operators take
them; any other operator reads the value. Control flow and sizes never use them.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.errors import Unsupported, UserPlace
from stator.base.registry import Registry
from stator.prims.decompositions import creation
from stator.prims.decompositions.decomposition_decorator import cast, conform
from stator.prims.record import record
from stator.prims.type_promotion import common_dtype, computation_dtype, is_integral, number_dtype
from stator.shapes.environment import Environment
from stator.shapes.expr import as_expr
from stator.shapes.floats import FloatExpr, quotient
from stator.shapes.sym_node import SymbolicNode

aten = torch.ops.aten


class DataDependent(Unsupported):
    """The program needs a Python value or a shape that depends on the data of a tensor.

    autograd_node: the sequence number of the autograd node whose formula needs the data, if a backward runs.
    """

    def __init__(self, kind: str, reason: str, *, place: UserPlace | None = None, hint: str | None = None) -> None:
        super().__init__(kind, reason, place=place, hint=hint)
        running = torch._C._current_autograd_node()
        self.autograd_node = None if running is None else running._sequence_nr()

    def at(self, place: UserPlace) -> DataDependent:
        return self if self.place else DataDependent(self.kind, self.reason, place=place, hint=self.hint)


# Implements an operator on numbers by operators on tensors; called with the operator's own arguments.
Rule = Callable[..., Any]
rules: Registry[OpOverload, Rule] = Registry("operator on numbers")


class Number(SymbolicNode):
    """The node of a number that operators take as a tensor: `tensor`, without dimensions, in a traced graph; None in a
    capture, whose environment fixes the value where an operator needs it."""

    __slots__ = ("tensor",)

    def __init__(self, environment: Environment, value: Any, kind: type, tensor: torch.Tensor | None = None) -> None:
        super().__init__(environment, value, kind)
        self.tensor = tensor

    @classmethod
    def unknown(cls, tensor: torch.Tensor | None = None) -> Number:
        """A number that depends on data."""
        environment = Environment()
        symbol = environment.symbol(f"traced{next(_names)}", None)
        if tensor is not None and not tensor.dtype.is_floating_point:
            return cls(environment, symbol, int, tensor)
        return cls(environment, FloatExpr(None, (symbol,)), float, tensor)

    @property
    def argument(self) -> Any:
        """The number as an argument of operators."""
        return torch.SymInt(self) if self.kind is int else torch.SymFloat(self)

    def read(self) -> Any:
        """The value, which is relied on from then on."""
        known = self._number()
        if known is not None:
            return known
        if self.tensor is not None or self.environment.fix is None or not self.has_hint():
            raise DataDependent(
                "data-dependent",
                "a Python number that depends on data is needed while tracing",
                hint="keep it in a tensor, or compute with it outside of the compiled region",
            )
        return self.environment.fix(self.value)

    def guard_float(self, file: Any, line: Any) -> float:
        return float(self.read())

    def int_(self) -> int:
        return int(self.read())

    def bool_(self) -> bool:
        return bool(self.read())

    def wrap_int(self, number: int) -> Number:
        return Number(self.environment, as_expr(number), int)

    def wrap_float(self, number: float) -> Number:
        return Number(self.environment, number, float)

    def pow(self, other: Any) -> Number:
        """Python decides by the values which type a power has."""
        power = self.read() ** other.read()
        return self.wrap_int(power) if type(power) is int else self.wrap_float(power)

    float_pow = pow_by_natural = pow

    def combined(self, function: Callable[..., Any], nodes: Sequence[SymbolicNode]) -> SymbolicNode:
        node = super().combined(function, nodes)
        if node.kind is not bool:
            return Number(node.environment, node.value, node.kind, _in_tensors(function, nodes))
        if not node.has_hint():
            raise DataDependent("data-dependent", "a question about a number that is not known while tracing")
        return node


_names = itertools.count()


def _in_tensors(function: Callable[..., Any], nodes: Sequence[Any]) -> torch.Tensor | None:
    """Python's function of floats in float64, which has Python's bits. Ints of Python have no largest one."""
    tensors = [getattr(node, "tensor", None) for node in nodes]
    if not any(isinstance(one, torch.Tensor) for one in tensors):
        return None
    made = _OF_TENSORS.get(function)
    if made is None or (function not in (operator.truediv, float) and all(node.kind is int for node in nodes)):
        raise DataDependent("data-dependent", f"{function.__name__} of numbers that are not known while tracing")
    operands = [
        _without_tensor(node) if tensor is None else cast(tensor, torch.float64)
        for node, tensor in zip(nodes, tensors, strict=True)
    ]
    if not isinstance(operands[0], torch.Tensor):
        operands[0] = aten.full_like.default(operands[1], float(operands[0]))
    return made(*operands)  # type: ignore[no-any-return]


def _without_tensor(node: SymbolicNode) -> Any:
    """A number without a tensor: a size is one by its symbol, so that nothing relies on its value."""
    if isinstance(node, Number) or not node.is_symbolic():
        return node.int_() if node.kind is int else node.guard_float(None, 0)
    size = torch.SymInt(node) if node.kind is int else torch.SymFloat(node)
    return aten.scalar_tensor.default(size, dtype=torch.float64)


_OF_TENSORS: dict[Any, Callable[..., Any]] = {
    **{operator.add: aten.add.Tensor, operator.sub: aten.sub.Tensor, operator.mul: aten.mul.Tensor},
    **{operator.truediv: aten.div.Tensor, quotient: aten.div.Tensor, operator.neg: aten.neg.default},
    **{math.sqrt: aten.sqrt.default, float: lambda one: one},
}


def symbolic(tensor: torch.Tensor, known: Any = None) -> Any:
    """Return the number in a zero-dim tensor as an argument of operators: in a traced graph, its node. `known`: the
    node that the capture of the graph had for it."""
    whole = not tensor.dtype.is_floating_point
    tensor = cast(tensor, torch.int64 if whole else torch.float64)
    if not isinstance(known, Number):
        return Number.unknown(tensor).argument
    return Number(known.environment, known.value, known.kind, tensor).argument


SYMBOLIC = (torch.SymFloat, torch.SymInt)


def is_number(value: Any) -> bool:
    return type(value) in SYMBOLIC and isinstance(value.node, Number)


def holds_numbers(value: Any) -> bool:
    kind = type(value)
    if kind in SYMBOLIC:
        return isinstance(value.node, Number)
    if kind is list or kind is tuple:
        return any(map(holds_numbers, value))
    return False


def replace_numbers(value: Any, by: Callable[[Number], Any]) -> Any:
    """Replace each number in the arguments by `by(number)`."""
    kind = type(value)
    if kind in SYMBOLIC and isinstance(value.node, Number):
        return by(value.node)
    if kind is list or kind is tuple:
        return kind([replace_numbers(item, by) for item in value])
    if kind is dict:
        return {name: replace_numbers(item, by) for name, item in value.items()}
    return value


def held(number: Number) -> Any:
    """Return the tensor that holds a number in a traced graph, or the value of another number."""
    return number.read() if number.tensor is None else number.tensor


def in_tensors(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of an operator that traced graphs hold with numbers, first for its shape rule, then with tensors
    for the numbers; None for another operator."""
    if func not in LEFT_WITH_NUMBERS:
        return None
    return tuple((replace_numbers(args, by), replace_numbers(kwargs, by)) for by in (stand_in, held))


def number_from_tensor(tensor: torch.Tensor, known: Any = None) -> Any:
    """Read the number in a zero-dim tensor. Captured graphs call this function on a Python float that they take as a
    tensor. `known`: see `symbolic`."""
    return symbolic(tensor, known) if hasattr(tensor, "fake_mode") else tensor.item()


def takes_unknown_numbers(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a traced graph can hold this call while the values of its numbers are unknown."""
    if target in LEFT_WITH_NUMBERS:
        return True
    if target not in rules:
        return False
    dtypes = _dtypes((args, tuple(kwargs.values())))
    if target in _IN_TENSORS_DTYPE and any(map(is_integral, dtypes)):
        return False
    if target in _ELEMENTS and is_integral(args[0].dtype):
        return False
    if target in _POWERS and all(map(is_integral, dtypes)):  # eager refuses negative exponents of integers
        return False
    return not any(dtype.is_complex for dtype in dtypes) and _only_numbers_are_numbers(target, args, kwargs)


# Random operators, whose floats decide about values alone. Traced graphs hold them with tensors for their numbers.
LEFT_WITH_NUMBERS = frozenset(
    (
        *(aten.bernoulli.p, aten.native_dropout.default, aten.normal_functional.default, aten.uniform.default),
        *(aten.exponential.default, aten.cauchy.default, aten.log_normal.default, aten.geometric.default),
        *(aten.normal.float_float, aten.normal.Tensor_float, aten.normal.float_Tensor),
    )
)
_POWERS = frozenset((aten.pow.Tensor_Scalar, aten.pow.Scalar))


def _only_numbers_are_numbers(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the numbers stand only for numbers or tensors of the schema, not for sizes or dimensions."""
    named = dict(zip((argument.name for argument in target._schema.arguments), args, strict=False)) | kwargs
    kinds = {argument.name: str(argument.type) for argument in target._schema.arguments}
    return all("number" in kinds[name] or "Tensor" in kinds[name] for name, it in named.items() if holds_numbers(it))


# Operators whose number eager converts to the tensors' dtype, even if that drops its fraction.
_IN_TENSORS_DTYPE = frozenset((aten.addcmul.default, aten.addcdiv.default, aten.lerp.Scalar))
# ... to the dtype of the first tensor, of which it becomes an element
_ELEMENTS = frozenset((aten.index_fill.int_Scalar, aten.scatter.value, aten.constant_pad_nd.default))


def _dtypes(value: Any) -> list[torch.dtype]:
    if isinstance(value, torch.dtype):
        return [value]
    if isinstance(value, torch.Tensor):
        return [value.dtype]
    if isinstance(value, complex):
        return [torch.complex64]
    if isinstance(value, (tuple, list)):
        return [dtype for item in value for dtype in _dtypes(item)]
    return []


# ---- the rules ----


def _operands(values: tuple[Any, ...]) -> list[torch.Tensor]:
    """Convert tensors and numbers to eager's computation dtype. Numbers do not promote."""
    wide = computation_dtype(common_dtype(values))
    return [_operand(value, wide) for value in values]


def _operand(value: Any, wide: torch.dtype) -> Any:
    if is_number(value):
        return cast(value.node.tensor, wide)
    return cast(value, wide) if isinstance(value, torch.Tensor) else value


def _registers(*targets: OpOverload) -> Callable[[Any], Any]:
    """Register a rule; its result is cast and laid out by the operator's shape rule."""

    def decorate(rule: Any) -> Any:
        assert rule is not None, targets
        for target in targets:
            shape = record(target).shape
            assert shape is not None, target

            def conforming(*args: Any, _shape: Any = shape, **kwargs: Any) -> Any:
                expected = _shape(*replace_numbers(args, stand_in), **replace_numbers(kwargs, stand_in))
                return conform(rule(*args, **kwargs), expected)

            rules.add(target, conforming)
        return rule

    return decorate


def stand_in(number: Number) -> float:
    """Return a number of equal type, for shape rules, which only look at the type."""
    return 1 if number.kind is int else 0.5


def _elementwise(single: OpOverload) -> Rule:
    return lambda first, second: single(*_operands((first, second)))


for _name, _targets in {
    "mul.Tensor": (aten.mul.Tensor, aten.mul.Scalar),
    "div.Tensor": (aten.div.Tensor, aten.div.Scalar),
    "pow.Tensor_Tensor": (aten.pow.Tensor_Scalar, aten.pow.Scalar),
    "eq.Tensor": (aten.eq.Scalar,),
    "ne.Tensor": (aten.ne.Scalar,),
    "lt.Tensor": (aten.lt.Scalar,),
    "le.Tensor": (aten.le.Scalar,),
    "gt.Tensor": (aten.gt.Scalar,),
    "ge.Tensor": (aten.ge.Scalar,),
    "maximum.default": (aten.clamp_min.default,),
    "minimum.default": (aten.clamp_max.default,),
    "floor_divide.default": (aten.floor_divide.Scalar, aten.floor_divide.default),
}.items():
    _packet, _, _overload = _name.partition(".")
    _registers(*_targets)(_elementwise(getattr(getattr(aten, _packet), _overload)))


def _scaled(other: Any, alpha: Any) -> Any:
    return other if not is_number(alpha) and alpha == 1 else _product(other, alpha)


def _product(first: Any, second: Any) -> Any:
    if not isinstance(first, torch.Tensor) and not isinstance(second, torch.Tensor):
        return symbolic(aten.mul.Tensor(*(one.node.tensor if is_number(one) else one for one in (first, second))))
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return aten.mul.Tensor(first, second)
    tensor, number = (first, second) if isinstance(first, torch.Tensor) else (second, first)
    if is_number(number):
        return aten.mul.Tensor(*_operands((tensor, number)))
    return aten.mul.Tensor(cast(tensor, computation_dtype(common_dtype((tensor, number)))), number)


def _sum(combine: OpOverload, reverse: bool = False) -> Rule:
    def rule(self: Any, other: Any, alpha: Any = 1) -> Any:
        first, second = (other, self) if reverse else (self, other)
        return combine(*_operands((first, _scaled(second, alpha))))

    return rule


_registers(aten.add.Tensor, aten.add.Scalar)(_sum(aten.add.Tensor))
_registers(aten.sub.Tensor, aten.sub.Scalar)(_sum(aten.sub.Tensor))
_registers(aten.rsub.Tensor, aten.rsub.Scalar)(_sum(aten.sub.Tensor, reverse=True))


def _with_factor(combine: OpOverload) -> Rule:
    def rule(self: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Any:
        self, tensor1, tensor2, value = _operands((self, tensor1, tensor2, value))
        return aten.add.Tensor(self, combine(aten.mul.Tensor(tensor1, value), tensor2))

    return rule


_registers(aten.addcmul.default)(_with_factor(aten.mul.Tensor))
_registers(aten.addcdiv.default)(_with_factor(aten.div.Tensor))


@_registers(aten.lerp.Scalar)
def _lerp(self: Any, end: Any, weight: Any) -> Any:
    wide = computation_dtype(self.dtype)
    return aten.lerp.Tensor(*(_operand(value, wide) for value in (self, end, weight)))


def _of_rounded_number(single: OpOverload) -> Rule:
    """Eager rounds the number to the result's dtype first."""

    def rule(self: Any, other: Any) -> Any:
        dtype = common_dtype((self, other))
        return single(*(_operand(value, dtype) for value in (self, other)))

    return rule


_registers(aten.fmod.Scalar)(_of_rounded_number(aten.fmod.Tensor))
_registers(aten.remainder.Scalar)(_of_rounded_number(aten.remainder.Tensor))


@_registers(aten.div.Scalar_mode, aten.div.Tensor_mode)
def _divide_and_round(self: Any, other: Any, *, rounding_mode: str | None) -> Any:
    return aten.div.Tensor_mode(*_operands((self, other)), rounding_mode=rounding_mode)


# operators whose decompositions calculate with their numbers by operators that have rules
_registers(aten.clamp.default)(record(aten.clamp.default).decompose)
for _name in ("leaky_relu", "elu", "softplus", "hardtanh", "threshold", "hardshrink"):
    for _target in (getattr(aten, _name).default, getattr(aten, f"{_name}_backward").default):
        _registers(_target)(record(_target).decompose)


def _of_tensors(rule: Rule) -> Rule:
    """A rule that takes tensors in place of numbers, which it rounds itself."""
    return lambda *args, **kwargs: rule(*replace_numbers(args, held), **replace_numbers(kwargs, held))


_registers(aten.linspace.default)(_of_tensors(creation.linspace))
_registers(aten.logspace.default)(_of_tensors(creation.logspace))


@_registers(aten.scatter.value)
def _scatter(self: Any, dim: int, index: Any, value: Any) -> Any:
    source = aten.expand.default(_on(self.device, _operand(value, self.dtype)), list(index.shape))
    return aten.scatter.src(self, dim, index, source)


def _on(device: torch.device, tensor: Any) -> Any:
    return tensor if tensor.device == device else aten._to_copy.default(tensor, device=device)


@_registers(aten.constant_pad_nd.default)
def _pad(self: Any, pad: Any, value: Any) -> Any:
    inside = aten.constant_pad_nd.default(aten.ones_like.default(self, dtype=torch.bool), pad, False)
    padded = aten.constant_pad_nd.default(self, pad, 0)
    return aten.where.self(inside, padded, _operand(value, self.dtype))


def _filled(number: Any, size: Any, dtype: Any, device: Any) -> Any:
    value = cast(number.node.tensor, number_dtype(number) if dtype is None else dtype)
    if device is not None:
        value = _on(torch.device(device), value)
    return aten.clone.default(aten.expand.default(value, list(size)), memory_format=torch.contiguous_format)


_OF_NUMBERS: dict[OpOverload, Rule] = {
    aten.index_fill.int_Scalar: lambda self, dim, index, value: aten.index_fill.int_Tensor(
        self, dim, index, _operand(value, self.dtype)
    ),
    aten.where.ScalarSelf: lambda condition, self, other: aten.where.self(
        condition, _operand(self, other.dtype), other
    ),
    aten.masked_fill.Scalar: lambda self, mask, value: aten.where.self(mask, cast(value.node.tensor, self.dtype), self),
    aten.full.default: lambda size, fill_value, *, dtype=None, device=None, **_: _filled(
        fill_value, size, dtype, device
    ),
    aten.scalar_tensor.default: lambda s, *, dtype=None, device=None, **_: _filled(s, (), dtype, device),
    aten.full_like.default: lambda self, fill_value, *, dtype=None, device=None, **_: _filled(
        fill_value, self.shape, dtype or self.dtype, device or self.device
    ),
    aten.new_full.default: lambda self, size, fill_value, *, dtype=None, device=None, **_: _filled(
        fill_value, size, dtype or self.dtype, device or self.device
    ),
    aten.fill.Scalar: lambda self, value: _filled(value, self.shape, self.dtype, self.device),
}
for _target, _rule in _OF_NUMBERS.items():
    _registers(_target)(_rule)
