"""Guards on facts about sizes: programs for the stack machine of csrc/guard_sizes.c, and the text of failures.
ir/input_sizes.py chooses the facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from stator.dynamo.host.native_status import native as _native
from stator.shapes.conditions import Comparison, Conjunction, text_of
from stator.shapes.expr import Constant, Expr, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min

from .guard import Guard, GuardedFact, GuardKind, SizeFacts
from .guard_tree import GuardTreeBuilder, accessors, checkers, describers
from .source import SizeSource, Source, StrideSource


class _NoProgram(Exception):
    """The stack machine has no operations for a fact, such as one with floats."""


@checkers.register(GuardKind.SIZES)
def _check_sizes(builder: GuardTreeBuilder, guard: Guard) -> None:
    expected: SizeFacts = guard.expected
    inputs = tuple(_input(builder, source) for source in expected.sources)
    places = {symbol: at for at, symbol in enumerate(expected.symbols)}
    program: list[int] = []
    for fact in expected.facts:
        program += _frequent(fact.condition, places) or [*_condition(fact.condition, places), _native.SIZE_RELY]
    builder.tree.add_sizes((inputs, tuple(program)), builder.ordinal)


def _input(builder: GuardTreeBuilder, source: Source) -> tuple[int, int]:
    """The slot of a tensor or int, and the place of the number in it as csrc/guard_sizes.c takes it."""
    if isinstance(source, SizeSource):
        return builder.tree.save(builder.node(source.base)), source.dim
    if isinstance(source, StrideSource):
        return builder.tree.save(builder.node(source.base)), -2 - source.dim
    return builder.tree.save(builder.node(source)), -1


def condition_holds(condition: Any, values: Mapping[Symbol, int]) -> bool:
    """Whether numbers satisfy a condition; they do not where it divides by zero."""
    try:
        return bool(condition.holds(values))
    except ArithmeticError:
        return False


# ---- programs ----


def has_program(condition: Any) -> bool:
    """Whether the stack machine has operations for a fact."""
    try:
        _condition(condition, dict.fromkeys(condition.symbols, 0))
    except _NoProgram:
        return False
    return True


_RELATIONS = {"==": "SIZE_IS_ZERO", "!=": "SIZE_IS_NOT_ZERO", ">=": "SIZE_IS_NOT_NEGATIVE"}
_MOST_DEPTH = 16  # of nested operations, each of which keeps at most three numbers on the stack


def _frequent(condition: Any, places: Mapping[Symbol, int]) -> list[int] | None:
    """The operations for the equality of two numbers, and for a bound of one; None for other facts."""
    expr = condition.expr if isinstance(condition, Comparison) else None
    if expr is None:
        return None
    symbols = [atom for atom in expr.atoms if isinstance(atom, Symbol)]
    factors = [expr.coefficient(symbol) for symbol in symbols]
    offset, relation = expr.offset, condition.relation
    if len(symbols) != len(expr.atoms) or abs(offset) >= 1 << 62:
        return None
    if relation == "==" and not offset and factors in ([1, -1], [-1, 1]):
        return [_native.SIZE_SAME, *(places[symbol] for symbol in symbols)]
    if len(symbols) != 1 or factors[0] not in (1, -1):
        return None
    at_least = [_native.SIZE_AT_LEAST, places[symbols[0]], -offset * factors[0]]
    at_most = [_native.SIZE_AT_MOST, places[symbols[0]], -offset * factors[0]]
    if relation == "==":
        return at_least + at_most
    return (at_least if factors[0] == 1 else at_most) if relation == ">=" else None


def _condition(condition: Any, places: Mapping[Symbol, int]) -> list[int]:
    if isinstance(condition, Comparison):
        return [*_expression(condition.expr, places, 0), getattr(_native, _RELATIONS[condition.relation])]
    first, *others = (_condition(part, places) for part in condition.parts)
    joined = _native.SIZE_AND if isinstance(condition, Conjunction) else _native.SIZE_OR
    return first + [word for part in others for word in (*part, joined)]


def _expression(value: Expr | int, places: Mapping[Symbol, int], depth: int) -> list[int]:
    if depth > _MOST_DEPTH:
        raise _NoProgram
    if isinstance(value, (int, Constant)):
        return _constant(value if isinstance(value, int) else value.value)
    words: list[int] = []
    for monomial, factor in value.terms().items():
        parts = [_atom(atom, places, depth + 1) for atom in monomial]
        if factor != 1 or not parts:
            parts.insert(0, _constant(factor))
        product = parts[0] + [word for part in parts[1:] for word in (*part, _native.SIZE_MULTIPLY)]
        words += product if not words else [*product, _native.SIZE_ADD]
    return words


def _constant(number: int) -> list[int]:
    if abs(number) >= 1 << 62:
        raise _NoProgram
    return [_native.SIZE_CONSTANT, number]


def _atom(atom: Any, places: Mapping[Symbol, int], depth: int) -> list[int]:
    if isinstance(atom, Symbol):
        return [_native.SIZE_INPUT, places[atom]]
    made = _ATOMS.get(type(atom))
    if made is None:
        raise _NoProgram
    name, operands = made
    first, *others = (_expression(one, places, depth) for one in operands(atom))
    operation = getattr(_native, name)
    return first + [word for other in others for word in (*other, operation)]


_ATOMS: dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    FloorDiv: ("SIZE_QUOTIENT", lambda atom: (atom.numerator, atom.denominator)),
    Mod: ("SIZE_REMAINDER", lambda atom: (atom.numerator, atom.denominator)),
    Min: ("SIZE_LEAST", lambda atom: atom.args),
    Max: ("SIZE_LARGEST", lambda atom: atom.args),
}


# ---- sizes by themselves ----


def size(tensor: torch.Tensor, dim: int) -> int:
    """The size of a dimension, read past any `__torch_function__`."""
    with torch._C.DisableTorchFunction():
        return tensor.shape[dim]


def stride(tensor: torch.Tensor, dim: int) -> int:
    """The stride of a dimension, read past any `__torch_function__`."""
    with torch._C.DisableTorchFunction():
        return tensor.stride(dim)


@accessors.register(SizeSource, StrideSource)
def _access(builder: GuardTreeBuilder, source: SizeSource | StrideSource) -> int:
    """The size as the result of a call, for functions of sizes that only Python computes."""
    read = size if isinstance(source, SizeSource) else stride
    dim = builder.child(0, _native.ACCESS_CONSTANT, source.dim, identity=id(source.dim))
    slots = (builder.tree.save(builder.node(source.base)), builder.tree.save(dim))
    return builder.child(0, _native.ACCESS_CALL, (read, slots), identity=(id(read), slots))


# ---- explanations ----


@describers.register(GuardKind.SIZES)
def _describe_sizes(guard: Guard, found: object) -> str:
    expected: SizeFacts = guard.expected
    if type(found) is not tuple or len(found) != len(expected.symbols):
        return "sizes cannot be read any more"
    values = dict(zip(expected.symbols, found, strict=True))
    failed = next((fact for fact in expected.facts if not condition_holds(fact.condition, values)), None)
    if failed is None:
        return "sizes are too large to compute with"
    return f"{fact_text(expected, failed)} no longer holds: {_shown(expected, failed, values)}"


_NAME = re.compile(r"\b[a-z]\d+\b")


def fact_text(facts: SizeFacts, fact: GuardedFact) -> str:
    """A fact about sizes as the user would write it, with the line that needed it."""
    names = {str(symbol): str(source) for symbol, source in zip(facts.symbols, facts.sources, strict=True)}
    text = _NAME.sub(lambda found: names.get(found.group(), found.group()), text_of(fact.condition))
    return f"{text} ({fact.place})" if fact.place is not None else text


def _shown(facts: SizeFacts, fact: GuardedFact, values: Mapping[Symbol, int]) -> str:
    names = dict(zip(facts.symbols, facts.sources, strict=True))
    symbols = sorted(fact.condition.symbols, key=str)  # type: ignore[union-attr]
    return ", ".join(f"{names[symbol]} is {values[symbol]}" for symbol in symbols)
