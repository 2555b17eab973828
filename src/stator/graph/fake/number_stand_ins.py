"""Stand-ins, while tracing, for Python numbers that a graph takes as inputs or reads from tensors.

To torch they are `torch.SymFloat`s and `SymInt`s, so that they reach operators as numbers and promote types as numbers
do. In traced graphs each is a zero-dim float64 or int64 tensor on the CPU. A table of rules says which operators take
them; any other operator reads the value. Control flow and sizes never use them.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.errors import Unsupported, UserPlace
from stator.base.registry import Registry
from stator.prims.decompositions import creation
from stator.prims.decompositions.decomposition_decorator import cast, conform
from stator.prims.foreach import FOREACH
from stator.prims.record import record
from stator.prims.type_promotion import common_dtype, computation_dtype, is_integral, number_dtype
from stator.shapes.conditions import compare
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


FOREACH_BY_TARGET = {entry.target: entry for entry in FOREACH}

# Implements an operator on numbers by operators on tensors; called with the operator's own arguments.
Rule = Callable[..., Any]
rules: Registry[OpOverload, Rule] = Registry("operator on numbers")


class Number:
    """The node of a SymFloat or SymInt. `tensor`: the zero-dim tensor that holds the number in a traced graph, else
    None.

    ask: returns the value and relies on it from then on; None if the value is unknown. whole: whether the number is an
        int. known: the number as an expression over inputs, of which capture asks questions. of_input: whether the
        number is computed from inputs alone, so that capture has asked all questions about it. plain: the value of a
        number of the code.
    """

    __slots__ = ("ask", "known", "of_input", "plain", "tensor", "whole")
    constant = None  # torch reads this attribute

    def __init__(
        self,
        tensor: torch.Tensor | None = None,
        ask: Callable[[], Any] | None = None,
        whole: bool = False,
        known: SymbolicNode | None = None,
        of_input: bool = False,
        plain: float | None = None,
    ) -> None:
        self.tensor = tensor
        self.plain = plain
        self.ask = ask if plain is None else lambda: plain
        self.whole = whole if tensor is None else not tensor.dtype.is_floating_point
        self.known = known
        self.of_input = of_input

    # -- torch's interface of symbolic nodes; see torch/csrc/utils/python_symnode.h --
    def is_int(self) -> bool:
        return self.whole

    def is_float(self) -> bool:
        return not self.whole

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return self.ask is not None

    def maybe_as_int(self) -> None:
        return None

    def maybe_as_float(self) -> None:
        return None

    def clone(self) -> Number:
        return self

    def __str__(self) -> str:
        return "a number"

    str = __repr__ = _graph_repr = __str__

    @property
    def hint(self) -> float:
        return self.value()

    def value(self) -> float:
        if self.ask is None:
            raise DataDependent(
                "data-dependent",
                "a Python number that depends on data is needed while tracing",
                hint="keep it in a tensor, or compute with it outside of the compiled region",
            )
        return self.ask()

    def guard_float(self, file: Any, line: Any) -> float:
        return self.value()

    def guard_int(self, file: Any, line: Any) -> int:
        return int(self.value())

    def guard_bool(self, file: Any, line: Any) -> bool:
        return bool(self.value())

    float_ = value

    def sym_float(self) -> Number:
        return self

    def wrap_int(self, value: int) -> Number:
        return _constant(value)

    wrap_float = wrap_bool = wrap_int

    def is_between(self, low: float, high: float) -> bool:
        """Whether the number lies between two others, which it does not equal. Capture relies on it where it is so;
        a traced graph comes from a capture that has relied on it."""
        if self.known is None:
            return self.of_input
        environment = self.known.environment
        relations: list[Any] = [
            compare(relation, self.known.value, bound)
            for relation, bound in ((">", low), ("<", high))
            if abs(bound) != math.inf
        ]
        holding = all(one.holds(environment.hints) for one in relations)
        return holding and all(map(environment.decide, relations))

    def __getattr__(self, name: builtins.str) -> Any:
        """Arithmetic: in tensors of a traced graph, or of values which nothing relies on until they are needed."""
        if name.startswith("__"):
            raise AttributeError(name)
        function = _FUNCTIONS.get(name)
        if function is None or (self.ask is None and self.tensor is None):
            raise DataDependent("data-dependent", f"{name} of a Python number that is not known while tracing")
        return lambda *others: _computed(name, function, (self, *map(_as_number, others)))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "neg", "pow")},
    **{"float_truediv": operator.truediv, "float_pow": operator.pow, "sqrt": math.sqrt},
}


def _constant(value: float) -> Number:
    return Number(whole=type(value) is int, of_input=True, plain=value)


def _as_number(node: Number | SymbolicNode) -> Number:
    """A size, which torch combines with numbers, as a number."""
    if isinstance(node, Number):
        return node
    return Number(ask=lambda: node.environment.specialize(node.value), whole=node.is_int(), known=node, of_input=True)


def _computed(name: str, function: Callable[..., Any], numbers: tuple[Number, ...]) -> Number:
    of_input = all(number.of_input for number in numbers)
    if any(number.tensor is not None for number in numbers):
        return Number(_in_tensors(function, numbers), of_input=of_input)
    if function is operator.pow:  # whose type depends on the values
        return _constant(function(*[number.value() for number in numbers]))
    whole = all(number.whole for number in numbers) and function not in (operator.truediv, math.sqrt)
    return Number(
        ask=lambda: function(*[number.value() for number in numbers]),
        whole=whole,
        known=_known(name, numbers),
        of_input=of_input,
    )


def _known(name: str, numbers: tuple[Number, ...]) -> SymbolicNode | None:
    if name not in _EXPRESSED or any(number.known is None and number.plain is None for number in numbers):
        return None
    first = next((number.known for number in numbers if number.known is not None), None)
    operands = [number.known or _wrapped(first, number.plain) for number in numbers]
    return getattr(operands[0], name)(*operands[1:])  # type: ignore[no-any-return]


def _wrapped(node: Any, value: Any) -> SymbolicNode:
    return node.wrap_int(value) if type(value) is int else node.wrap_float(value)  # type: ignore[no-any-return]


_EXPRESSED = frozenset(("add", "sub", "mul", "truediv", "float_truediv", "neg"))


def _in_tensors(function: Callable[..., Any], numbers: tuple[Number, ...]) -> torch.Tensor:
    """Python's function of floats in float64, which has Python's bits. Ints of Python have no largest one."""
    if function is not operator.truediv and all(number.whole for number in numbers):
        raise DataDependent("data-dependent", "arithmetic of ints that are not known while tracing")
    operands = [_operand_of_tensors(number) for number in numbers]
    if function is operator.neg or function is math.sqrt:
        return (aten.neg if function is operator.neg else aten.sqrt).default(operands[0])  # type: ignore[no-any-return]
    if not isinstance(operands[0], torch.Tensor):
        operands[0] = aten.full_like.default(operands[1], operands[0])
    if function not in _OF_TENSORS:
        raise DataDependent("data-dependent", f"{function.__name__} of numbers that are not known while tracing")
    return _OF_TENSORS[function](*operands)  # type: ignore[no-any-return]


def _operand_of_tensors(number: Number) -> Any:
    if number.tensor is not None:
        return cast(number.tensor, torch.float64)
    if number.known is None:
        return float(number.value())
    kind = torch.SymInt if number.whole else torch.SymFloat
    return aten.scalar_tensor.default(kind(number.known), dtype=torch.float64)


_OF_TENSORS: dict[Callable[..., Any], OpOverload] = {
    **{operator.add: aten.add.Tensor, operator.sub: aten.sub.Tensor, operator.mul: aten.mul.Tensor},
    operator.truediv: aten.div.Tensor,
}


def symbolic(tensor: torch.Tensor, of_input: bool = False) -> Any:
    """Return the number in a zero-dim tensor as an argument of operators: in a traced graph, its node."""
    if not tensor.dtype.is_floating_point:
        return torch.SymInt(Number(cast(tensor, torch.int64), of_input=of_input))
    return torch.SymFloat(Number(cast(tensor, torch.float64), of_input=of_input))


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
    return number.value() if number.tensor is None else number.tensor


def in_tensors(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of an operator that traced graphs hold with numbers, first for its shape rule, then with tensors
    for the numbers; None for another operator."""
    if func not in LEFT_WITH_NUMBERS:
        return None
    return tuple((replace_numbers(args, by), replace_numbers(kwargs, by)) for by in (stand_in, held))


def number_from_tensor(tensor: torch.Tensor) -> Any:
    """Read the number in a zero-dim tensor. Captured graphs call this function on a Python float that they take as a
    tensor."""
    return symbolic(tensor, of_input=True) if hasattr(tensor, "fake_mode") else tensor.item()


def takes_unknown_numbers(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a traced graph can hold this call while the values of its numbers are unknown."""
    if target in LEFT_WITH_NUMBERS:
        return True
    if target not in rules and (target not in FOREACH_BY_TARGET or FOREACH_BY_TARGET[target].single not in rules):
        return False
    dtypes = _dtypes((args, tuple(kwargs.values())))
    single = FOREACH_BY_TARGET[target].single if target in FOREACH_BY_TARGET else target
    if single in _IN_TENSORS_DTYPE and any(map(is_integral, dtypes)):
        return False
    if single in _ELEMENTS and is_integral(args[0].dtype):
        return False
    if single in _POWERS and all(map(is_integral, dtypes)):  # eager refuses negative exponents of integers
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


def _registers(*targets: OpOverload) -> Callable[[Rule], Rule]:
    """Register a rule; its result is cast and laid out by the operator's shape rule."""

    def decorate(rule: Rule) -> Rule:
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
    return 1 if number.whole else 0.5


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


@_registers(aten.clamp.default)
def _clamp(self: Any, min: Any = None, max: Any = None) -> Any:
    operands = (self, *(bound for bound in (min, max) if bound is not None))
    wide = computation_dtype(common_dtype(operands))
    result = cast(self, wide)
    for bound, combine in ((min, aten.maximum.default), (max, aten.minimum.default)):
        if is_number(bound):
            result = combine(result, _operand(bound, wide))
        elif bound is not None:
            result = (aten.clamp_min if combine is aten.maximum.default else aten.clamp_max).default(result, bound)
    return result


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


# activations whose decompositions calculate with their numbers by operators that have rules
for _name in ("leaky_relu", "elu", "softplus", "hardtanh", "threshold", "hardshrink"):
    for _target in (getattr(aten, _name).default, getattr(aten, f"{_name}_backward").default):
        _rule = record(_target).decompose
        assert _rule is not None, _target
        _registers(_target)(_rule)


def _of_tensors(rule: Rule) -> Rule:
    """A rule that takes tensors in place of numbers, which it rounds itself."""
    return lambda *args, **kwargs: rule(*replace_numbers(args, held), **replace_numbers(kwargs, held))


_registers(aten.linspace.default)(_of_tensors(creation.linspace))
_registers(aten.logspace.default)(_of_tensors(creation.logspace))


@_registers(aten.index_fill.int_Scalar)
def _index_fill(self: Any, dim: int, index: Any, value: Any) -> Any:
    return aten.index_fill.int_Tensor(self, dim, index, _operand(value, self.dtype))


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


@_registers(aten.where.ScalarSelf)
def _number_where(condition: Any, self: Any, other: Any) -> Any:
    return aten.where.self(condition, _operand(self, other.dtype), other)


@_registers(aten.masked_fill.Scalar)
def _masked_fill(self: Any, mask: Any, value: Any) -> Any:
    return aten.where.self(mask, cast(value.node.tensor, self.dtype), self)


def _filled(number: Any, size: Any, dtype: Any, device: Any) -> Any:
    value = cast(number.node.tensor, number_dtype(number) if dtype is None else dtype)
    if device is not None:
        value = _on(torch.device(device), value)
    return aten.clone.default(aten.expand.default(value, list(size)), memory_format=torch.contiguous_format)


@_registers(aten.full.default)
def _full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _filled(fill_value, size, dtype, device)


@_registers(aten.scalar_tensor.default)
def _scalar_tensor(s: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _filled(s, (), dtype, device)


@_registers(aten.full_like.default)
def _full_like(self: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _filled(fill_value, self.shape, dtype or self.dtype, device or self.device)


@_registers(aten.new_full.default)
def _new_full(self: Any, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _filled(fill_value, size, dtype or self.dtype, device or self.device)


@_registers(aten.fill.Scalar)
def _fill(self: Any, value: Any) -> Any:
    return _filled(value, self.shape, self.dtype, self.device)
