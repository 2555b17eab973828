"""Index expressions as text, as all printers of kernels need them, and bounds on their values.

A printer is a language's subclass of `IndexPrinter`. The parts of an expression that no loop changes are size arguments
of the kernel, which the host computes. Never here: lanes, loops, dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

from stator.base.errors import CompileError
from stator.inductor.sizes import product
from stator.shapes.expr import ZERO, Atom, Expr, ExprLike, FloorDiv, Mod, Ranges, Symbol, as_expr
from stator.shapes.extrema import Max, Min
from stator.shapes.simplify import SymbolicRanges


class SizeArguments:
    """The size arguments of a kernel, in order of their first use: the parts of indices that no loop changes, and
    numbers that a language makes arguments. Kernels of equal structure get equal text, whatever their sizes are."""

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}  # of atoms, and of numbers

    def name(self, size: Atom | int) -> str:
        return self.names.setdefault(size, f"s{len(self.names)}")


class IndexPrinter:
    """Prints expressions of one kernel. Loop variables appear under their own names.

    divisions: the operators for operands that are not negative. functions: those that round and compare as Python does.
    """

    divisions: ClassVar[dict[type[Atom], str]]
    functions: ClassVar[dict[type[Atom], str]]

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.arguments = SizeArguments()

    def number(self, value: int) -> str:
        return str(value)

    def bound(self, size: ExprLike) -> str:
        """The bound of a loop, or another number that no text depends on."""
        return self.size(size)

    def operand(self, text: str) -> str:
        """An expression as an operand of a function."""
        return text

    def size(self, size: ExprLike) -> str:
        """A size as an operand."""
        if not isinstance(size, Expr):
            return str(size)
        text = self.index(size)
        return text if isinstance(size, Atom) else f"({text})"

    def index(self, expr: Expr) -> str:
        text = ""
        for monomial, value in expr.terms().items():
            if len(monomial) > 1:  # sizes come first, so that their product is computed before the loops
                monomial = tuple(sorted(monomial, key=lambda atom: not is_size(atom, self.ranges)))
            factors = [self.atom(atom) for atom in monomial]
            if abs(value) != 1 or not factors:
                factors.insert(0, self.number(abs(value)))
            sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
            text += sign + "*".join(factors)
        return text or "0"

    def atom(self, atom: Atom) -> str:
        if is_size(atom, self.ranges):
            return self.arguments.name(atom)
        if isinstance(atom, Symbol):
            return atom.name
        if isinstance(atom, FloorDiv | Mod):
            top, bottom = self.index(atom.numerator), self.size(atom.denominator)
            if atom.numerator.bounds(self.ranges)[0] >= 0:
                return f"(({top}) {self.divisions[type(atom)]} {bottom})"
            return self._call(type(atom), f"({top})", bottom)
        if isinstance(atom, Min | Max):
            parts = [f"({self.index(arg)})" for arg in atom.args]
            return functools.reduce(lambda one, other: self._call(type(atom), one, other), parts)
        raise CompileError("inductor", f"cannot print the index expression {atom}")

    def _call(self, kind: type[Atom], one: str, other: str) -> str:
        return f"{self.functions[kind]}({self.operand(one)}, {self.operand(other)})"


def is_size(atom: Expr, ranges: Ranges) -> bool:
    """True if no loop changes the expression."""
    return isinstance(ranges, SymbolicRanges) and ranges.is_size(atom)


def fits_32_bits(expr: Expr, ranges: Ranges) -> bool:
    """True if the index and all of its partial results are less than 2**31 in absolute value."""
    return all(bound.bounds(ranges)[1] < 2**31 for bound in magnitudes(expr, ranges))


def magnitudes(expr: Expr, ranges: Ranges) -> Iterator[Expr]:
    """Bounds, in terms of sizes, on the absolute values of an index and of its partial results. A bound with other
    symbols is no bound."""
    for atom in expr.atoms:
        if not is_size(atom, ranges):
            for part in _parts(atom):
                yield from magnitudes(part, ranges)
    yield _magnitude(expr, ranges)


def _magnitude(expr: Expr, ranges: Ranges) -> Expr:
    total: Expr = ZERO
    for monomial, value in expr.terms().items():
        total = total + abs(value) * product([_atom_magnitude(atom, ranges) for atom in monomial])
    return total


def _atom_magnitude(atom: Atom, ranges: Ranges) -> ExprLike:
    low, high = atom.bounds(ranges)
    if is_size(atom, ranges):
        return atom if low >= 0 else Max.of(atom, -atom)
    if isinstance(ranges, SymbolicRanges) and isinstance(atom, Symbol) and atom in ranges.extents:
        return ranges.extents[atom]
    largest = max(abs(low), abs(high))
    if isinstance(largest, int):
        return largest
    if isinstance(atom, Mod):
        return _magnitude(as_expr(atom.denominator), ranges)
    parts = [_magnitude(part, ranges) for part in _parts(atom)[: 1 if isinstance(atom, FloorDiv) else None]]
    return sum(parts) if parts else atom


def _parts(atom: Atom) -> tuple[Expr, ...]:
    if isinstance(atom, FloorDiv | Mod):
        return atom.numerator, as_expr(atom.denominator)
    return atom.args if isinstance(atom, Min | Max) else ()
