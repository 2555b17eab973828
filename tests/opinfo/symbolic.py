"""Arguments of an operator with symbolic sizes, and a dispatch mode that runs each shape rule on them.

Each distinct size above one is a symbol, each stride is an expression of sizes where it can be, else a symbol of its
own, and so is each integer argument that the schema calls a SymInt.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from recorder import ShapeRuleCheck, describe
from torch.utils._pytree import tree_flatten, tree_leaves

from stator.prims.record import TensorMeta, records
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, Symbol
from stator.shapes.sym_node import rely_on_elements, to_expression, to_sym_int

LARGEST = 2**31  # larger arguments mean "to the end"


class Description:
    """What a shape rule sees of a tensor."""

    def __init__(self, shape: Any, stride: Any, offset: Any, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self._stride, self._offset, self.dtype, self.device = (
            tuple(shape),
            tuple(stride),
            offset,
            dtype,
            device,
        )

    def stride(self) -> tuple[Any, ...]:
        return self._stride

    def storage_offset(self) -> Any:
        return self._offset

    def __repr__(self) -> str:
        return f"{str(self.dtype)[6:]}{list(self.shape)}@{list(self._stride)}"


class Symbols:
    """Turns numbers into symbols of one environment; `shared` gives the same number the same symbol."""

    def __init__(self, shared: bool) -> None:
        self.environment = Environment()
        self.shared = shared
        self._symbols: dict[tuple[str, int], Any] = {}

    def of(self, prefix: str, value: int, low: int = 1) -> Any:
        if not self.shared:
            return self.environment.symbol(f"{prefix}{value}_{len(self.environment.ranges)}", value, low)
        key = (prefix, value)
        if key not in self._symbols:
            self._symbols[key] = self.environment.symbol(f"{prefix}{value}", value, low)
        return self._symbols[key]

    def size(self, value: int) -> Any:
        return value if value < 2 else self.of("s", value)

    def layout(self, tensor: torch.Tensor) -> tuple[list[Any], list[Any], Any]:
        """Expressions of shape, strides and offset."""
        shape = [self.size(size) for size in tensor.shape]
        strides: list[Any] = list(tensor.stride())
        order = sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), tensor.shape[dim], -dim))
        known: dict[int, Any] = {0: 0, 1: 1}
        for dim in order:
            number = tensor.stride(dim)
            if number not in known:
                known[number] = self.of("t", number)
            strides[dim] = known[number]
            if tensor.shape[dim] > 1:
                known.setdefault(number * tensor.shape[dim], known[number] * shape[dim])
        offset = tensor.storage_offset()
        return shape, strides, self.of("o", offset, 0) if offset > 1 else offset

    def integer(self, value: Any) -> Any:
        return self.size(value) if type(value) is int and value < LARGEST else value


@functools.cache
def symbolic_arguments(func: Any) -> frozenset[str]:
    """The arguments that the schema, as text (its objects say int), calls SymInt; for `arange`, also the numbers.

    But not dimensions, which some Fourier transforms declare so.
    """
    kinds = "SymInt|Scalar" if func._schema.name == "aten::arange" else "SymInt"
    return frozenset(re.findall(rf"(?:{kinds})[^ (]* (\w+)", str(func._schema).rpartition("->")[0])) - {"dim"}


class Arguments:
    """One operator call with symbolic sizes, which can be told for any values of the symbols."""

    def __init__(self, func: Any, args: Any, kwargs: Any, shared: bool = True) -> None:
        self.symbols = Symbols(shared)
        self.environment = self.symbols.environment
        names = symbolic_arguments(func)
        self.args = tuple(
            self._convert(value, parameter.name in names)
            for value, parameter in zip(args, func._schema.arguments, strict=False)
        )
        self.kwargs = {name: self._convert(value, name in names) for name, value in kwargs.items()}

    def _convert(self, value: Any, symbolic_integers: bool) -> Any:
        if isinstance(value, torch.Tensor):
            return Description(*self.symbols.layout(value), value.dtype, value.device)
        if isinstance(value, (tuple, list)):
            return type(value)(self._convert(item, symbolic_integers) for item in value)
        return self.symbols.integer(value) if symbolic_integers else value

    def symbolic(self) -> tuple[Any, Any]:
        return self._mapped(lambda value: to_sym_int(self.environment, value))

    def at(self, values: dict[Symbol, int]) -> tuple[Any, Any]:
        return self._mapped(lambda value: value.evaluate(values) if isinstance(value, Expr) else value)

    def _mapped(self, change: Any) -> tuple[Any, Any]:
        def convert(value: Any) -> Any:
            if isinstance(value, Description):
                return Description(
                    map(change, value.shape), map(change, value.stride()), change(value.storage_offset()),
                    value.dtype, value.device,
                )  # fmt: skip
            if isinstance(value, (tuple, list)):
                return type(value)(convert(item) for item in value)
            if isinstance(value, dict):
                return {name: convert(item) for name, item in value.items()}
            return change(value)

        return convert(self.args), convert(self.kwargs)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether sizes, strides and dtype say all: no sparse tensor, none that is conjugated lazily."""
    return tensor.layout is torch.strided and not tensor.is_conj()


def evaluated(result: Any, values: dict[Symbol, int]) -> Any:
    """A rule's result with numbers for the symbols."""
    if isinstance(result, TensorMeta):
        return replace(
            result,
            shape=tuple(evaluated(size, values) for size in result.shape),
            stride=tuple(evaluated(step, values) for step in result.stride),
            offset=evaluated(result.offset, values),
        )
    if isinstance(result, (tuple, list)):
        return tuple(evaluated(item, values) for item in result)
    value = to_expression(result)
    return value.evaluate(values) if isinstance(value, Expr) else value


def significant(result: Any) -> Any:
    """A rule's result on numbers without the strides of dimensions of one element, which mean nothing. Nor do those of
    other dimensions that follow from these where there are no elements."""
    if isinstance(result, TensorMeta):
        strides, empty = zip(result.shape, result.stride, strict=True), {0, 1} <= {*result.shape}
        return replace(result, stride=tuple(None if size == 1 or empty else stride for size, stride in strides))
    return tuple(map(significant, result)) if isinstance(result, tuple) else result


def beside_ones(result: Any, symbolic: Any) -> Any:
    """A rule's result on numbers without the strides of dimensions whose symbolic size is 1 in the example: those are
    as for several."""
    if isinstance(result, TensorMeta) and isinstance(symbolic, TensorMeta):
        strides = [
            None if is_symbolic_one(size) else step for size, step in zip(symbolic.shape, result.stride, strict=True)
        ]
        return replace(result, stride=tuple(strides))
    if isinstance(result, tuple) and isinstance(symbolic, (tuple, list)):
        return tuple(map(beside_ones, result, symbolic))
    return result


def is_symbolic_one(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and int(size.node.hint) == 1


def settled(result: Any) -> Any:
    """A rule's result on numbers, in the form that `evaluated` gives."""
    return evaluated(result, {})


class SymbolicRuleCheck(ShapeRuleCheck):
    """Also runs every rule with symbolic sizes.

    `specialised`: operators whose rule left a symbol only one value, with an example. `generalised`: how often the
    result was also right at other sizes than the sample's.
    """

    def __init__(self, alternatives: int = 2, shared: bool = True) -> None:
        super().__init__()
        self.alternatives = alternatives
        self.shared = shared
        self.symbolically: Counter[str] = Counter()
        self.specialised: dict[str, str] = {}
        self.generalised: Counter[str] = Counter()
        self.random = random.Random(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entry = records.get(func)
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        if entry is not None and entry.shape is not None and all(map(is_plain, leaves)):
            self.check(func, entry.shape, args, kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def check(self, func: Any, rule: Any, args: Any, kwargs: Any) -> None:
        try:
            expected = settled(rule(*args, **kwargs))
        except Exception:  # the comparison with eager judges that
            return
        arguments = Arguments(func, args, kwargs, self.shared)
        problem = self.problem(func, rule, arguments, expected)
        if problem:
            found = self.mismatches.setdefault(str(func), [])
            if len(found) < 3:
                found.append(
                    f"symbolic: {problem}\n      called with {describe(args)} {describe(kwargs)}\n"
                    f"      that is {arguments.args} {arguments.kwargs}"
                )

    def problem(self, func: Any, rule: Any, arguments: Arguments, expected: Any) -> str | None:
        environment = arguments.environment
        symbolic_args, symbolic_kwargs = arguments.symbolic()
        try:
            result = rule(*symbolic_args, **symbolic_kwargs)
        except Exception as error:
            return f"the rule raised {type(error).__name__}: {error}"
        if result is NotImplemented:
            return None if expected is NotImplemented else "the rule declined symbolic sizes only"
        for meta in tree_leaves(result):
            if isinstance(meta, TensorMeta):
                rely_on_elements(meta.shape)
        self.symbolically[str(func)] += 1
        found = evaluated(result, environment.hints)
        if beside_ones(found, result) != beside_ones(expected, result):
            return f"the rule returned {result}, which is {found}, not {expected}"
        constants = environment.constants()
        if constants:
            facts = "; ".join(map(str, environment.facts))
            self.specialised.setdefault(str(func), f"{facts}\n      called with {arguments.args} {arguments.kwargs}")
        for values in self.other_values(environment):
            again_args, again_kwargs = arguments.at(values)
            try:
                numbers = settled(rule(*again_args, **again_kwargs))
            except Exception as error:
                return f"at {values} the facts {environment.facts} hold, but {type(error).__name__}: {error}"
            if significant(numbers) != significant(evaluated(result, values)):
                return f"at {values} {result} is {evaluated(result, values)}, not {numbers}"
            self.generalised[str(func)] += 1
        return None

    def size(self, hint: int) -> int:
        """Often 1, which broadcasts, and makes strides meaningless."""
        return self.random.choice((1, self.random.randint(2, hint * 2 + 3), self.random.randint(2, hint * 2 + 3)))

    def other_values(self, environment: Environment) -> list[dict[Symbol, int]]:
        """Values other than the hints for which the facts hold."""
        free = [symbol for symbol in environment.hints if symbol not in environment.replacements]
        found: list[dict[Symbol, int]] = []
        for _ in range(8 if free else 0):
            values = {symbol: self.size(environment.hints[symbol]) for symbol in free}
            for symbol, value in environment.replacements.items():
                values[symbol] = value.evaluate(values)
            if values != environment.hints and environment.holds(values):
                found.append(values)
            if len(found) == self.alternatives:
                break
        return found
