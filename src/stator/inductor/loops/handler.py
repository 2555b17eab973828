"""The protocol of define-by-run bodies, and the handler that records a closure as a frozen `LoopBody`.

A body under construction is a closure that calls methods of a handler, named as in vocabulary.py: `ops.load(...)`,
`ops.add(a, b)`. The recorder turns these calls into SSA, merges common subexpressions, folds constants and infers
dtypes. Never here: buffers, printing, scheduling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.shapes.expr import Expr, ExprLike, Symbol, as_expr
from stator.shapes.simplify import add_index, lies_below, simplify

from .body import IndexRef, LoopBody, Op, Ref
from .float8 import is_float8, narrowed, widened
from .folding import (
    LARGEST_INTEGERS,
    NARROW_INTEGERS,
    Number,
    arithmetic,
    as_dtype,
    fold,
    is_exact_conversion,
)
from .vocabulary import ELEMENTWISE, NORMAL_DTYPES, REDUCTIONS, SCANS, STORE_MODES, VOCABULARY, reduction_dtype

INDIRECT = "indirect"


class LoopRecorder:
    """Records operations. Values are `Ref`s; `ops.dtype(ref)` gives their dtype.

    Elementwise operations of the vocabulary are methods: `ops.exp(x)`, `ops.where(c, a, b)`. Builders of closures use
    `memo` to evaluate a shared closure once.
    """

    def __init__(
        self, dtype_of: Callable[[str], torch.dtype], ranges: dict[Symbol, Any], sizes: SizeKnowledge = NUMBERS_ONLY
    ) -> None:
        self._dtype_of = dtype_of
        self.ranges = ranges.copy()
        self.sizes = sizes
        self.ops: list[Op] = []
        self._numbers: dict[object, Ref] = {}
        self.indices: list[Expr] = []
        self._index_refs: dict[Expr, IndexRef] = {}
        self.mask: Ref | None = None
        self._unused_checks: dict[Symbol, int] = {}  # checked indices that no store or reduction depends on yet
        self.memo: dict[object, Any] = {}

    def dtype(self, value: Ref) -> torch.dtype:
        return self.ops[value.position].dtype  # type: ignore[return-value]

    def elementwise(self, name: str, *args: Ref) -> Ref:
        operations = [self.ops[arg.position] for arg in args]
        dtype = operations[-1].dtype
        folded = fold(name, operations, dtype)
        if folded is not None:
            return args[folded[1]] if folded[0] == "argument" else self.constant(folded[1], folded[2])
        chosen = self._fold_choice(name, args, operations) if len(args) == 2 else None
        return chosen or self._append(name, args, torch.bool if name in _GIVES_BOOL else dtype)

    def _fold_choice(self, name: str, args: tuple[Ref, ...], operations: list[Op]) -> Ref | None:
        """Rewrite arithmetic on a constant and a choice between constants as a choice between two other constants. A
        scaled mask is such a choice."""
        for which in (0, 1):
            other, choice = operations[1 - which], self._choice(operations[which])
            if other.name != "constant" or choice is None:
                continue
            dtype: Any = operations[which].dtype
            values = []
            for value in choice[1:]:
                pair = (value, other.args[0]) if which == 0 else (other.args[0], value)
                values.append(arithmetic(name, pair[0], pair[1], dtype))  # type: ignore[arg-type]
            if None not in values:
                return self.elementwise("where", choice[0], *[self.constant(value, dtype) for value in values])  # type: ignore[arg-type]
        return None

    def _choice(self, operation: Op) -> tuple[Ref, Number, Number] | None:
        """(condition, constant if true, constant if false) for an operation that chooses between constants."""
        condition: Any = operation.args[0]
        if operation.name == "to_dtype":
            return (condition, 1, 0) if self.dtype(condition) is torch.bool else None
        if operation.name != "where":
            return None
        one, other = (self.ops[arg.position] for arg in operation.args[1:])  # type: ignore[union-attr]
        if one.name != "constant" or other.name != "constant":
            return None
        return condition, one.args[0], other.args[0]  # type: ignore[return-value]

    def constant(self, value: Number | Expr, dtype: torch.dtype) -> Ref:
        """A number, or a symbolic size as a number, of `dtype`."""
        if isinstance(value, Expr):
            return self.to_dtype(self.index_value(value, torch.int64), dtype)
        value = as_dtype(value, dtype)
        # repr distinguishes 0.0 from -0.0 and 1 from True, and makes NaN equal to itself
        return self._append("constant", (value, dtype), dtype, key=(repr(value), dtype))

    def to_dtype(self, value: Ref, dtype: torch.dtype) -> Ref:
        operation = self.ops[value.position]
        if operation.dtype is dtype:
            return value
        if is_float8(operation.dtype):
            return self.to_dtype(widened(self, value), dtype)
        if is_float8(dtype):
            return narrowed(self, self.to_dtype(value, torch.float32), dtype)
        if operation.name == "constant":
            number = operation.args[0]
            if operation.dtype is torch.float16 or operation.dtype is torch.bfloat16 or abs(number) < 2**31:  # type: ignore
                return self.constant(number, dtype)  # type: ignore[arg-type]
        if operation.name == "to_dtype":
            inner: Ref = operation.args[0]  # type: ignore[assignment]
            if is_exact_conversion(self.dtype(inner), operation.dtype) or self._fits(inner, operation.dtype):
                return self.to_dtype(inner, dtype)
        if operation.name == "index_value" and dtype in (torch.int32, torch.int64):
            return self._append("index_value", (operation.args[0], dtype), dtype)
        return self._append("to_dtype", (value, dtype), dtype)

    def _fits(self, value: Ref, half: torch.dtype | None) -> bool:
        """True for integers, as numbers of float32, that a half float has room for: quantized numbers without their
        zero points. Rounding them takes longer than the arithmetic around it."""
        if half not in LARGEST_INTEGERS or self.dtype(value) is not torch.float32:
            return False
        least, largest = self._integers(value) or (-math.inf, math.inf)
        return max(-least, largest) <= LARGEST_INTEGERS[half]

    def _integers(self, value: Ref) -> tuple[float, float] | None:
        """The range of a number of float32 that is a narrow integer, or a difference of such integers."""
        operation = self.ops[value.position]
        source: Any = operation.args[0]
        if operation.name == "to_dtype":
            return NARROW_INTEGERS.get(self.dtype(source))
        if operation.name == "constant" and float(source).is_integer():
            return float(source), float(source)
        if operation.name != "sub":
            return None
        first, second = (self._integers(each) for each in operation.args)  # type: ignore[arg-type]
        return None if first is None or second is None else (first[0] - second[1], first[1] - second[0])

    def bitcast(self, value: Ref, dtype: torch.dtype) -> Ref:
        return value if self.dtype(value) is dtype else self._append("bitcast", (value, dtype), dtype)

    def index_value(self, index: ExprLike, dtype: torch.dtype) -> Ref:
        expr = simplify(index, self.ranges)
        if expr.constant is not None:
            return self.constant(expr.constant, dtype)
        return self._append("index_value", (self._index(expr), dtype), dtype)

    def load(self, buffer: str, index: ExprLike, other: Number = 0) -> Ref:
        """Load an element. In a `masked` region, masked-off lanes read nothing and give `other`."""
        dtype = self._dtype_of(buffer)
        other = as_dtype(other, dtype) if self.mask is not None else 0
        position = self._index(simplify(index, self.ranges))
        key = ("load", buffer, position.position, self.mask, repr(other))
        return self._append("load", (buffer, position, self.mask, other), dtype, key=key)

    def masked(self, mask: Ref, body: Callable[[], Ref], other: Number, dtype: torch.dtype) -> Ref:
        """The value of `body()`, of `dtype`, where the mask is true; elsewhere `other`."""
        operation = self.ops[mask.position]
        if operation.name == "constant":
            return body() if operation.args[0] else self.constant(other, dtype)
        outer = self.mask
        self.mask = mask if outer is None else self.elementwise("bitwise_and", outer, mask)
        try:
            value = body()
            produced = self.ops[value.position]
            if produced.name == "load" and produced.args[2] == self.mask and outer is None:
                buffer, index = produced.args[0], produced.args[1]
                return self.load(buffer, self.indices[index.position], other)  # type: ignore
        finally:
            self.mask = outer
        return self.elementwise("where", mask, value, self.constant(other, dtype))

    def unmasked(self, body: Callable[[], Ref]) -> Ref:
        """The value of `body()`, computed for all lanes of a `masked` region. Its loads are within bounds in all."""
        outer, self.mask = self.mask, None
        try:
            return body()
        finally:
            self.mask = outer

    def indirect(self, value: Ref, size: ExprLike, check: bool = True, wraps: bool = True) -> Expr:
        """The value as an index: a Symbol with the range [0, size), or the index expression behind the value."""
        operation = self.ops[value.position]
        number: Any = operation.args[0] if operation.name == "constant" else None
        if number is not None and (wraps or number >= 0) and self._lies_within(number, size):
            return as_expr(number if number >= 0 else number + size)
        if operation.name == "index_value":
            expr = self.indices[operation.args[0].position]  # type: ignore[union-attr]
            if lies_below(expr, size, self.ranges):
                return expr
        if self.mask is not None and operation.name != "step":
            # The bounds check must not fail for masked-off lanes.
            value = self.elementwise("where", self.mask, value, self.constant(0, self.dtype(value)))
        result = self._append(INDIRECT, (value, size, check, wraps), torch.int64)
        symbol = Symbol(f"{INDIRECT}{result.position}")
        if check and symbol not in self.ranges:
            self._unused_checks[symbol] = result.position
        add_index(self.ranges, symbol, size)
        return symbol

    def _with_checks(self, value: Ref, *used: Ref | IndexRef) -> Ref:
        """The value, which now depends on all checks of indices so far. A kernel makes those checks alone that its
        results depend on, but the index of an expanded dimension, of one element or of a constant decides nothing."""
        pending: list[Any] = [value, *used] if self._unused_checks else []
        seen: set[Any] = set()
        while pending:
            part = pending.pop()
            if part in seen:
                continue
            seen.add(part)
            if isinstance(part, Ref):
                pending += self.ops[part.position].args
            elif isinstance(part, IndexRef):
                symbols = self.indices[part.position].symbols
                pending += [Ref(self._unused_checks.pop(one)) for one in symbols if one in self._unused_checks]
        for symbol in self._unused_checks:
            at = self._append("index_value", (self._index(symbol), torch.int64), torch.int64)
            valid = self._append("ge", (at, self.constant(0, torch.int64)), torch.bool)
            value = self._append("where", (valid, value, value), self.dtype(value))  # not folded: always true
        self._unused_checks.clear()
        return value

    def _lies_within(self, number: Any, size: ExprLike) -> bool:
        return self.sizes.known(">", size, number) and self.sizes.known(">=", number, -size)

    def reduce(self, kind: str, value: Ref) -> Ref:
        if kind not in REDUCTIONS:
            raise ValueError(f"unknown reduction {kind!r}; known: {', '.join(REDUCTIONS)}")
        value = self._with_checks(value)
        return self._append("reduce", (kind, value), reduction_dtype(kind, self.dtype(value)))

    def scan(self, kind: str, value: Ref) -> Ref:
        if kind not in SCANS:
            raise ValueError(f"unknown scan {kind!r}; known: {', '.join(SCANS)}")
        return self._append("scan", (kind, value), self.dtype(value))

    def welford(self, value: Ref) -> tuple[Ref, Ref, Ref]:
        """The mean, the sum of squared deviations, and the count."""
        dtype = self.dtype(value)
        whole = self._append("welford", (self._with_checks(value),), dtype)
        return tuple(self._append("get", (whole, part), dtype) for part in range(3))  # type: ignore[return-value]

    def step(self, count: int) -> Ref:
        """The number of an iteration of a loop of its own, whose values `total` adds up."""
        return self._append("step", (count,), torch.int64)

    def total(self, step: Ref, value: Ref) -> Ref:
        return self._append("total", (step, value), self.dtype(value))

    def random(self, seed: Ref, stream: Ref, draw: int, index: ExprLike) -> Ref:
        """32 random bits, as int32, for the element of a stream at a (contiguous, linear) index."""
        expr = simplify(index, self.ranges)
        return self._append("random", (seed, stream, draw, self._index(expr)), torch.int32)

    def normal(self, bits: Ref) -> Ref:
        return self._append("normal", (bits,), NORMAL_DTYPES[self.dtype(bits)])

    def store(self, buffer: str, index: ExprLike, value: Ref, mode: str | None = None, mask: Ref | None = None) -> None:
        if mode not in STORE_MODES:
            raise ValueError(f"unknown store mode {mode!r}")
        position = self._index(simplify(index, self.ranges))
        value = self._with_checks(value, position, *(() if mask is None else (mask,)))
        self.ops.append(Op("store", (buffer, position, value, mode, mask), None))

    def _index(self, expr: Expr) -> IndexRef:
        found = self._index_refs.get(expr)
        if found is None:
            found = self._index_refs[expr] = IndexRef(len(self.indices))
            self.indices.append(expr)
        return found

    def _append(self, name: str, args: tuple[Any, ...], dtype: torch.dtype | None, key: object = None) -> Ref:
        if key is None:
            key = (name, args)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = Ref(len(self.ops))
            self.ops.append(Op(name, args, dtype))
        return found


def _method(name: str) -> Callable[..., Ref]:
    def call(self: LoopRecorder, *args: Ref) -> Ref:
        return self.elementwise(name, *args)

    call.__name__ = name
    call.__doc__ = VOCABULARY[name].meaning
    return call


for _name in ELEMENTWISE:
    setattr(LoopRecorder, _name, _method(_name))

_GIVES_BOOL = frozenset(name for name, info in VOCABULARY.items() if info.result == "bool")


def freeze(
    function: Callable[[Any], None],
    variables: tuple[Symbol, ...],
    ranges: tuple[ExprLike, ...],
    reduction_variables: tuple[Symbol, ...],
    reduction_ranges: tuple[ExprLike, ...],
    dtype_of: Callable[[str], torch.dtype],
    sizes: SizeKnowledge = NUMBERS_ONLY,
) -> LoopBody:
    """Record `function(ops)`, which must end in stores, as a loop body without dead operations."""
    limits = sizes.ranges((*variables, *reduction_variables), (*ranges, *reduction_ranges))
    recorder = LoopRecorder(dtype_of, limits, sizes)
    function(recorder)
    indices, ops = _without_dead_code(recorder.indices, recorder.ops)
    return LoopBody(variables, ranges, reduction_variables, reduction_ranges, indices, ops)


def _without_dead_code(indices: list[Expr], ops: list[Op]) -> tuple[tuple[Expr, ...], tuple[Op, ...]]:
    """Keep the operands of stores alone, and renumber positions and the symbols of indirect indices."""
    by_symbol = {Symbol(f"{INDIRECT}{at}"): at for at, op in enumerate(ops) if op.name == INDIRECT}
    live = [op.name == "store" for op in ops]
    for at in range(len(ops) - 1, -1, -1):
        if not live[at]:
            continue
        for arg in ops[at].args:
            if isinstance(arg, Ref):
                live[arg.position] = True
            elif by_symbol and isinstance(arg, IndexRef):
                for symbol in indices[arg.position].symbols:
                    if symbol in by_symbol:
                        live[by_symbol[symbol]] = True
    positions: dict[int, Ref] = {}
    kept: list[Op] = []
    new_indices: dict[Expr, IndexRef] = {}
    renamed: dict[Symbol, Expr] = {}
    for at, op in enumerate(ops):
        if not live[at]:
            continue
        args: list[Any] = []
        for arg in op.args:
            if isinstance(arg, Ref):
                arg = positions[arg.position]
            elif isinstance(arg, IndexRef):
                expr = indices[arg.position].substitute(renamed)  # type: ignore[arg-type]
                arg = new_indices.setdefault(expr, IndexRef(len(new_indices)))
            args.append(arg)
        if op.name == INDIRECT:
            renamed[Symbol(f"{INDIRECT}{at}")] = Symbol(f"{INDIRECT}{len(kept)}")
        positions[at] = Ref(len(kept))
        kept.append(Op(op.name, tuple(args), op.dtype))
    return tuple(new_indices), tuple(kept)
