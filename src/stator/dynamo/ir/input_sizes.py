"""Sizes and ints of inputs as symbols with example values: which of them are symbols, the layouts made of them, and the
facts about them that the compiled frame relies on.

A size is a symbol if it differed between calls. Each size has a symbol of its own: that two of them are equal is a fact
like others, relied on where the program needs it. Never here: numbers that only the running graph knows, and nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stator.base.errors import ConstraintViolation, UserPlace
from stator.dynamo.guards.guard import ExtentOf, FreeSize, Guard, GuardedFact, GuardKind, SizeFacts
from stator.dynamo.guards.size_guards import condition_holds, fact_text, has_program
from stator.dynamo.guards.source import (
    FunctionSource,
    LocalSource,
    SizeSource,
    Source,
    StrideSource,
    is_member,
    variable_of,
)
from stator.dynamo.guards.tensor_guards import extents_of, innermost_first, may_read_sizes
from stator.dynamo.host.size_marks import Kind, SizeMark, size_marks
from stator.prims.layout import always_equal
from stator.prims.record import TensorMeta
from stator.shapes.conditions import Comparison, compare
from stator.shapes.environment import LARGEST_SIZE, SMALLEST_SIZE, Environment
from stator.shapes.expr import Expr, Symbol
from stator.shapes.sym_node import to_sym_int

from .size_expressions import size_source

_MOST_IN_A_GUARD = 64  # symbols
_MOST_TRIED = 1 << 14  # sizes of a promised range, beside the ends
_LARGEST = 1 << 62  # C code compares smaller numbers
_SEVERAL = 2  # the least size, or stride, that no version has to itself for being so small


@dataclass(slots=True)
class InputSizes:
    """The symbols of one capture: `sources` tells what each stands for.

    dynamic: the user's choice: True makes all sizes symbols, False none, None those that change. fixed: there are no
        symbols at all. changed: sources that differed between calls. met: tensors of earlier versions. constants:
        sources that are no symbols, with the line that needs it. held: the sizes at such sources. lengths: sources of
        ints of the program that are sizes of tensors which the frame makes. numbers: the symbols of numbers of the
        program on which no size depends. varying: tensors of which all sizes likely change. asks_examples: a graph
        that asks nothing about marked sizes assumes larger ones than those of this call.
    """

    environment: Environment
    dynamic: bool | None = None
    fixed: bool = False
    changed: Collection[Source] = ()
    met: Collection[Source] = ()
    constants: Mapping[Source, UserPlace | None] = field(default_factory=dict)
    asks_examples: bool = False
    sources: dict[Symbol, Source] = field(default_factory=dict)
    held: dict[Source, int] = field(default_factory=dict)
    lengths: set[Source] = field(default_factory=set)
    numbers: set[Symbol] = field(default_factory=set)
    varying: set[Source] = field(default_factory=set)
    _by_source: dict[Source, Symbol] = field(default_factory=dict)
    _marks: dict[Symbol, SizeMark] = field(default_factory=dict)
    _places: dict[Symbol, UserPlace] = field(default_factory=dict)  # of symbols without marks: the line that made them

    # -- symbols --

    def layout(self, tensor: torch.Tensor, source: Source) -> TensorMeta | None:
        """The layout of an input with symbols in it; None if all of its sizes are constants."""
        if self.fixed or not may_read_sizes(type(tensor)):
            return None
        if isinstance(tensor, torch.nn.Parameter) or tensor.layout is not torch.strided or tensor.is_quantized:
            return None
        marks = size_marks(tensor)
        shape = tuple(
            self._size(SizeSource(source, dim), size, marks.get(dim)) for dim, size in enumerate(tensor.shape)
        )
        extents = extents_of(tensor.shape, tensor.stride())
        strides: dict[int, Any] = {}
        for dim in innermost_first(tensor.stride()):
            inner = extents[dim]
            own, stride = StrideSource(source, dim), tensor.stride(dim)
            if inner is None or self._is_free_stride(own, stride):
                strides[dim] = self._stride(own, stride)
            else:
                strides[dim] = shape[inner] * strides[inner]
        found = tuple(strides[dim] for dim in range(len(shape)))
        if all(type(number) is int for number in (*shape, *found)):
            return None
        return TensorMeta(shape, found, tensor.dtype, tensor.device, tensor.storage_offset())

    def _size(self, source: SizeSource, size: int, mark: SizeMark | None) -> Any:
        if mark is not None and mark.low == size == mark.high:  # the only size that calls promise
            mark = SizeMark(Kind.STATIC)
        if source in self.constants:
            if mark is not None and mark.kind is Kind.DYNAMIC:
                raise _must_be(source, size, self.constants[source])
            self.held[source] = size
            return size
        if mark is not None and mark.kind is Kind.UNBACKED:
            if not self.asks_examples:
                return to_sym_int(self.environment, self._symbol(source, None, mark))
            free, mark = size >= _SEVERAL, None
        elif mark is None:
            free = size >= SMALLEST_SIZE and self._is_free(source)
        else:  # sizes of 0 and 1 outside of a marked range have versions of their own
            free = mark.kind is not Kind.STATIC and size >= (SMALLEST_SIZE if mark.low <= size else _SEVERAL)
        free = free and size <= LARGEST_SIZE
        return to_sym_int(self.environment, self._symbol(source, size, mark)) if free else size

    def _stride(self, source: StrideSource, stride: int) -> Any:
        """A stride that does not follow from sizes, or did not in every call."""
        free = self._is_free_stride(source, stride)
        return to_sym_int(self.environment, self._symbol(source, stride, low=_SEVERAL)) if free else stride

    def _is_free_stride(self, source: StrideSource, stride: int) -> bool:
        free = stride >= _SEVERAL and self.dynamic is not False and source in self.changed
        return free and source not in self.constants

    def _is_free(self, source: SizeSource) -> bool:
        """Whether a size without a mark is a symbol. Where sizes change, a leading dimension of what a call gets is
        likely a batch, whose last one is smaller: it is a symbol before it changes. So are the sizes of a tensor that
        earlier versions did not meet, such as a cache that the first call made. A size of a buffer is one once it has
        changed."""
        if is_member(source.base):
            return self.dynamic is not False and source in self.changed
        if self.dynamic is not None:
            return self.dynamic
        if source in self.changed or source.base in self.varying:
            return True
        if source.base not in self.met:
            return bool(self.met)
        given = source.dim == 0 and variable_of(source) is not None  # and no table of a global or closure
        return given and any(type(one) is SizeSource for one in self.changed)

    def _symbol(self, source: Source, example: Any, mark: SizeMark | None = None, low: float = SMALLEST_SIZE) -> Symbol:
        """`example`: None if nothing may depend on the value. `low`: the least value that the symbol stands for."""
        found = self._by_source.get(source)
        if found is None:
            low = 0 if example is None else low
            high = math.inf
            if mark is not None:
                low, high = max(low, mark.low), mark.high
                if example is not None and not low <= example <= high:
                    raise ConstraintViolation(
                        f"{source} is {example}, and not {_interval(mark)}", hint="mark the range that calls need"
                    )
            found = self.environment.symbol(f"s{len(self.sources)}", example, low, high)
            self._by_source[source], self.sources[found] = found, source
            if self._checked_high(found, source) < high:
                self.environment.limits[found] = LARGEST_SIZE
            if mark is not None:
                self._marks[found] = mark
            elif self.environment.locate is not None:
                self._places[found] = self.environment.locate()
        return found

    def number(self, source: Source, example: Any) -> Symbol:
        """The symbol of a number of the program, on which no size depends so far."""
        if source not in self._by_source:
            self.numbers.add(self._symbol(source, example, low=-math.inf))
        return self._by_source[source]

    def may_be_size(self, number: Symbol) -> bool:
        """Whether sizes may depend on a number of the program."""
        free = not self.fixed and self.dynamic is not False and self.sources[number] not in self.constants
        return free and abs(self.environment.hints[number]) < _LARGEST

    @property
    def has_symbols(self) -> bool:
        """Whether any size is a symbol."""
        return len(self.sources) > len(self.numbers)

    def at_entry(self, source: SizeSource | StrideSource) -> Symbol:
        """The symbol of a size or stride."""
        return self._by_source[source]

    def are_inputs(self, value: Any) -> bool:
        """Whether an expression or condition depends on these symbols alone."""
        return bool(value.symbols <= self.sources.keys())

    # -- facts --

    def guards(self) -> list[Guard]:
        """Guards on the facts that capture, or the backend, relied on, as few as possible."""
        known = self._known_facts()
        compared = [fact for fact in known if self._is_of_small_ints(fact)]
        evaluated = [
            Guard(size_source(fact.condition, self.sources), GuardKind.EQUALS, True, fact.place)
            for fact in known
            if fact not in compared
        ]
        return [*map(self._guard, _in_parts(compared)), *evaluated]

    def _known_facts(self) -> list[GuardedFact]:
        return list(dict.fromkeys((*self._ranges(), *self._relations())))

    def _is_of_small_ints(self, fact: GuardedFact) -> bool:
        """Whether C code compares the numbers; it calls Python's functions of others."""
        hints = [self.environment.hints.get(symbol, 0) for symbol in _symbols(fact)]
        return has_program(fact.condition) and all(type(hint) is int and abs(hint) < _LARGEST for hint in hints)

    def _guard(self, facts: Sequence[GuardedFact]) -> Guard:
        symbols = tuple(sorted({one for fact in facts for one in _symbols(fact)}, key=list(self.sources).index))
        sources = tuple(self.sources[symbol] for symbol in symbols)
        place = next((fact.place for fact in facts if fact.place is not None), None)
        return Guard(FunctionSource(), GuardKind.SIZES, SizeFacts(symbols, sources, tuple(facts)), place)

    def _ranges(self) -> Iterator[GuardedFact]:
        """The values and ends of the ranges, as far as the guards on tensors do not check them."""
        environment = self.environment
        for symbol, source in self.sources.items():
            number = environment.simplify(symbol).constant
            if number is not None:
                yield GuardedFact(compare("==", symbol, number), self._place_of_value(symbol))
                continue
            low, high = environment.ranges[symbol]
            if low > self._checked_low(symbol, source):
                yield GuardedFact(compare(">=", symbol, int(low)), self._place_of_end(symbol, "low"))
            if high < self._checked_high(symbol, source):
                yield GuardedFact(compare("<=", symbol, int(high)), self._place_of_end(symbol, "high"))

    def _checked_low(self, symbol: Symbol, source: Source) -> float:
        """The least number that guards on types and tensors let pass."""
        if type(source) is not SizeSource:
            return -math.inf
        return SMALLEST_SIZE if symbol in self.environment.hints else 0

    def _checked_high(self, symbol: Symbol, source: Source) -> float:
        return LARGEST_SIZE if type(source) is SizeSource and symbol in self.environment.hints else math.inf

    def _place_of_value(self, symbol: Symbol) -> UserPlace | None:
        """The line of the fact that left one value."""
        about = (fact for fact in self.environment.facts if symbol in fact.condition.symbols)
        equations = (fact.origin for fact in about if _is_equation(fact.condition))
        return next(equations, None) or self._place_of_end(symbol, "low") or self._place_of_end(symbol, "high")

    def _place_of_end(self, symbol: Symbol, end: str) -> UserPlace | None:
        """The line of the fact that ended the range, or the line that made a symbol of a number; None if a mark
        did."""
        fact = self.environment.narrowed.get((symbol, end))
        return self._places.get(symbol) if fact is None else fact.origin

    def _relations(self) -> Iterator[GuardedFact]:
        """The facts that do not follow from the ranges."""
        environment = self.environment
        for fact in environment.facts:
            if not self.are_inputs(fact.condition):
                continue  # the graph checks it
            if _is_equation(fact.condition) and len(fact.condition.symbols) > 1:
                yield GuardedFact(fact.condition, fact.origin)
                continue
            condition = fact.condition.substitute(environment.replacements)
            if _follows(condition, environment):
                continue
            yield GuardedFact(condition, fact.origin)

    def pinned_ints(self) -> dict[Source, UserPlace | None]:
        """The ints of the program of which the facts leave one value, with the line that needs it: those on which sizes
        depend, and the state of objects (a cache that is empty). Other arguments, such as the turn of a loop, may have
        many values, one after the other."""
        return {
            source: self._place_of_value(symbol)
            for symbol, source in self.sources.items()
            if not isinstance(source, SizeSource | StrideSource)
            and (symbol not in self.numbers or not isinstance(source, LocalSource))
            and source not in self.constants
            and self.environment.simplify(symbol).constant is not None
        }

    @property
    def has_promises(self) -> bool:
        """Whether the program's marks say of a symbol that its size changes."""
        return any(mark.kind in (Kind.DYNAMIC, Kind.UNBACKED) for mark in self._marks.values())

    def check_promises(self) -> None:
        """Raises ConstraintViolation if the facts leave less than the program's marks promise."""
        for symbol, mark in self._marks.items():
            if mark.kind not in (Kind.DYNAMIC, Kind.UNBACKED):
                continue
            number = self.environment.simplify(symbol).constant
            if number is not None:
                raise _must_be(self.sources[symbol], number, self._place_of_value(symbol))
            self._check_range(symbol, mark)

    def _check_range(self, symbol: Symbol, mark: SizeMark) -> None:
        """A mark without a range promises several sizes, but not all."""
        stand_in = self.environment.simplify(symbol)  # of an equal size
        if not isinstance(stand_in, Symbol):
            return  # a relation between sizes
        low, high = self.environment.ranges[stand_in]
        if low > max(mark.low, _SEVERAL) and mark.low > -math.inf:
            raise self._refuses(symbol, mark, int(low) - 1, self._place_of_end(stand_in, "low"))
        if high < mark.high < math.inf:
            raise self._refuses(symbol, mark, int(high) + 1, self._place_of_end(stand_in, "high"))
        if mark.low == -math.inf and mark.high == math.inf:
            return
        first = int(max(low, mark.low, _SEVERAL))
        sizes = range(first, int(min(high, mark.high, first + _MOST_TRIED)) + 1)
        for fact in self._relations():
            if _symbols(fact) == {stand_in}:
                refused = next((size for size in sizes if not condition_holds(fact.condition, {stand_in: size})), None)
                if refused is not None:
                    raise self._refuses(symbol, mark, refused, fact.place)

    def _refuses(self, symbol: Symbol, mark: SizeMark, size: int, place: UserPlace | None) -> ConstraintViolation:
        return ConstraintViolation(
            f"{self.sources[symbol]} must not be {size}, and is promised to be {_interval(mark)}",
            place=place,
            hint="mark a narrower range, or make the code independent of this size",
        )

    def describe(self) -> list[str]:
        """A line for each symbol that stayed free, each that became a constant, and each other fact."""
        sizes = {symbol: source for symbol, source in self.sources.items() if symbol not in self.numbers}
        free = [source for symbol, source in sizes.items() if self.environment.simplify(symbol).constant is None]
        lines = [f"for many values of {', '.join(map(str, free))}"] if free else []
        lines += [f"only where {source} == {size} ({self.constants[source]})" for source, size in self.held.items()]
        names = SizeFacts(tuple(self.sources), tuple(self.sources.values()), ())
        return lines + [f"only where {fact_text(names, fact)}" for fact in self._known_facts()]


def _must_be(source: Source, number: int, place: UserPlace | None) -> ConstraintViolation:
    hint = "make the code independent of this size, or use stator.maybe_mark_dynamic"
    return ConstraintViolation(f"{source} has to be {number}", place=place, hint=hint)


def _interval(mark: SizeMark) -> str:
    if mark.high == math.inf:
        return f"at least {max(mark.low, SMALLEST_SIZE)}"
    return f"between {max(mark.low, SMALLEST_SIZE)} and {mark.high}"


def _symbols(fact: GuardedFact) -> frozenset[Symbol]:
    return fact.condition.symbols  # type: ignore[union-attr]


def _is_equation(condition: Any) -> bool:
    return isinstance(condition, Comparison) and condition.relation == "=="


def _follows(condition: Any, environment: Environment) -> bool:
    """Whether a condition, in which known symbols are replaced, holds for all sizes in the ranges."""
    if isinstance(condition, bool):
        return condition
    if not isinstance(condition, Comparison) or not isinstance(condition.expr, Expr):
        return False
    low, high = environment.simplify(condition.expr).bounds(environment.ranges)
    if condition.relation == ">=":
        return low >= 0
    if condition.relation == "==":
        return low == high == 0
    return condition.relation == "!=" and (low > 0 or high < 0)


def _in_parts(facts: Sequence[GuardedFact]) -> Iterator[list[GuardedFact]]:
    """The facts in parts that a guard can take."""
    part: list[GuardedFact] = []
    symbols: frozenset[Symbol] = frozenset()
    for fact in facts:
        if part and len(symbols | _symbols(fact)) > _MOST_IN_A_GUARD:
            yield part
            part, symbols = [], frozenset()
        part.append(fact)
        symbols |= _symbols(fact)
    if part:
        yield part


# ---- strides ----


def guarded_layout(tensor: torch.Tensor, layout: TensorMeta | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The sizes and strides of a tensor for a guard: what the symbolic layout leaves free, or computes, is marked."""
    if layout is None:
        return tuple(tensor.shape), tensor.stride()
    shape = tuple(size if type(size) is int else _free(size) for size in layout.shape)
    extents = extents_of(tensor.shape, tensor.stride())
    stride = tuple(
        number
        if type(number) is int
        else ExtentOf(inner)
        if inner is not None and _follows_from(inner, number, layout)
        else None
        for number, inner in zip(layout.stride, extents, strict=True)
    )
    return shape, stride


def _follows_from(inner: int, stride: Any, layout: TensorMeta) -> bool:
    return always_equal(stride, layout.shape[inner] * layout.stride[inner])


def _free(size: Any) -> FreeSize | None:
    return FreeSize.NOT_EMPTY if size.node.has_hint() else None
