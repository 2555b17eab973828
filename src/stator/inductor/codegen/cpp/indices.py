"""Prints index expressions as C++: int64_t for scalars, vi64 for vectors of lanes. Symbolic sizes are arguments of the
kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stator.base.errors import CompileError
from stator.shapes.expr import Atom, Expr, ExprLike, FloorDiv, Mod, Ranges, Symbol
from stator.shapes.extrema import Max, Min
from stator.shapes.simplify import SymbolicRanges


class SizeArguments:
    """The size arguments of a kernel, in order of their first use: the parts of indices that no loop changes. Kernels
    of equal structure get equal text, whatever their sizes are called."""

    def __init__(self) -> None:
        self.names: dict[Atom, str] = {}

    def name(self, atom: Atom) -> str:
        return self.names.setdefault(atom, f"s{len(self.names)}")


def is_size(atom: Expr, ranges: Ranges) -> bool:
    """True if no loop changes the expression."""
    return isinstance(ranges, SymbolicRanges) and ranges.is_size(atom)


def print_size(size: ExprLike, ranges: Ranges, sizes: SizeArguments) -> str:
    """A size as an operand."""
    if not isinstance(size, Expr):
        return str(size)
    text = print_index(size, ranges, sizes)
    return text if isinstance(size, Atom) else f"({text})"


def print_index(expr: Expr, ranges: Ranges, sizes: SizeArguments) -> str:
    """A scalar expression. Loop variables appear under their own names."""
    text = ""
    for monomial, value in expr.terms().items():
        if len(monomial) > 1:  # sizes come first, so that their product is computed before the loops
            monomial = tuple(sorted(monomial, key=lambda atom: not is_size(atom, ranges)))
        factors = [_atom(atom, ranges, sizes) for atom in monomial]
        if abs(value) != 1 or not factors:
            factors.insert(0, f"{abs(value)}ll" if abs(value) >= 2**31 else str(abs(value)))
        sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
        text += sign + "*".join(factors)
    return text or "0"


def _atom(atom: Atom, ranges: Ranges, sizes: SizeArguments) -> str:
    if is_size(atom, ranges):
        return sizes.name(atom)
    if isinstance(atom, Symbol):
        return atom.name
    if isinstance(atom, FloorDiv | Mod):
        top, bottom = print_index(atom.numerator, ranges, sizes), print_size(atom.denominator, ranges, sizes)
        if atom.numerator.bounds(ranges)[0] >= 0:
            return f"(({top}) {'/' if isinstance(atom, FloorDiv) else '%'} {bottom})"
        return f"op_{'floor_div' if isinstance(atom, FloorDiv) else 'mod'}((int64_t)({top}), (int64_t){bottom})"
    if isinstance(atom, Min | Max):
        function = "op_minimum" if isinstance(atom, Min) else "op_maximum"
        text = f"(int64_t)({print_index(atom.args[0], ranges, sizes)})"
        for arg in atom.args[1:]:
            text = f"{function}({text}, (int64_t)({print_index(arg, ranges, sizes)}))"
        return text
    raise CompileError("inductor", f"cannot print the index expression {atom}")


@dataclass(frozen=True, slots=True)
class VectorIndexContext:
    """The context of vector indices. `symbol`: the loop variable that counts lanes; `vectors`: symbols that are
    vectors already (vi64); `narrow`: print 32-bit indices, which suffice when every index and partial result is known
    to be small."""

    symbol: Symbol | None
    vectors: Mapping[Symbol, str]
    ranges: Ranges
    narrow: bool
    sizes: SizeArguments

    @property
    def scalar(self) -> str:
        return "int32_t" if self.narrow else "int64_t"

    def vary(self, atom: Expr) -> bool:
        return self.symbol in atom.symbols or not atom.symbols.isdisjoint(self.vectors)


def fits_32_bits(expr: Expr, ranges: Ranges) -> bool:
    """True if the absolute values of an index's terms add up to less than 2**31."""
    total: float = 0
    for monomial, value in expr.terms().items():
        size: float = abs(value)
        for atom in monomial:
            low, high = atom.bounds(ranges)
            size *= max(abs(low), abs(high))
            inner = getattr(atom, "numerator", None)
            if inner is not None and not fits_32_bits(inner, ranges):
                return False
            if isinstance(atom, Min | Max) and not all(fits_32_bits(arg, ranges) for arg in atom.args):
                return False
        total += size
    return total < 2**31


def print_vector_index(expr: Expr, lanes: VectorIndexContext) -> str:
    """One index for each lane."""
    scalar, ranges, sizes = lanes.scalar, lanes.ranges, lanes.sizes
    if lanes.symbol is not None and expr.symbols.isdisjoint(lanes.vectors):
        step = expr.coefficient(lanes.symbol)
        if step is not None:
            start, distance = print_index(expr, ranges, sizes), print_size(step, ranges, sizes)
            return f"arange_{'i32' if lanes.narrow else 'i64'}({start}, {distance})"
    scalars: list[str] = []
    text = ""
    for monomial, value in expr.terms().items():
        if any(lanes.vary(atom) for atom in monomial):
            factors = [_vector_atom(atom, lanes) for atom in monomial]
            term = factors[0]
            for factor in factors[1:]:
                term = f"({term} * {factor})"
            if value != 1:
                term = f"(splat(({scalar}){value}) * {term})"
            text = f"{text} + {term}" if text else term
        else:
            product = [
                *([str(value)] if value != 1 or not monomial else []),
                *(_atom(atom, ranges, sizes) for atom in monomial),
            ]
            scalars.append("*".join(product))
    if scalars:
        rest = f"splat(({scalar})({' + '.join(scalars)}))"
        text = f"{text} + {rest}" if text else rest
    return f"({text})" if text else f"splat(({scalar})0)"


def _vector_atom(atom: Atom, lanes: VectorIndexContext) -> str:
    if isinstance(atom, Symbol):
        if atom in lanes.vectors:
            name = lanes.vectors[atom]
            return f"convert_i32({name})" if lanes.narrow else name
        if atom is lanes.symbol:
            return f"arange_{'i32' if lanes.narrow else 'i64'}({atom.name}, 1)"
        return f"splat(({lanes.scalar}){_atom(atom, lanes.ranges, lanes.sizes)})"
    if not lanes.vary(atom):
        return f"splat(({lanes.scalar}){_atom(atom, lanes.ranges, lanes.sizes)})"
    if isinstance(atom, FloorDiv | Mod) and isinstance(atom.denominator, Expr):
        parts = [print_vector_index(part, lanes) for part in (atom.numerator, atom.denominator)]
        return f"op_{'floor_div' if isinstance(atom, FloorDiv) else 'mod'}({', '.join(parts)})"
    if isinstance(atom, FloorDiv | Mod):
        top, bottom = print_vector_index(atom.numerator, lanes), str(atom.denominator)
        if atom.numerator.bounds(lanes.ranges)[0] >= 0:
            return f"index_{'div' if isinstance(atom, FloorDiv) else 'mod'}<{bottom}>({top})"
        function = "op_floor_div" if isinstance(atom, FloorDiv) else "op_mod"
        return f"{function}({top}, splat(({lanes.scalar}){bottom}))"
    if isinstance(atom, Min | Max):
        function = "op_minimum" if isinstance(atom, Min) else "op_maximum"
        text = print_vector_index(atom.args[0], lanes)
        for arg in atom.args[1:]:
            text = f"{function}({text}, {print_vector_index(arg, lanes)})"
        return text
    raise CompileError("inductor", f"cannot print the index expression {atom}")
