"""Prints index expressions as C++: int64_t for scalars, vi64 for vectors of lanes. Symbolic sizes are arguments of the
kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stator.base.errors import CompileError
from stator.inductor.codegen.index_printer import IndexPrinter
from stator.shapes.expr import Atom, Expr, ExprLike, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min

_SIZE = 16  # smaller numbers are often steps and windows of operators, larger ones sizes of tensors


class CppIndexPrinter(IndexPrinter):
    """Scalars of int64_t. Large factors and offsets are size arguments, so that layers that differ in their sizes alone
    share a kernel: no instruction of a kernel depends on them."""

    divisions: ClassVar = {FloorDiv: "/", Mod: "%"}
    functions: ClassVar = {FloorDiv: "op_floor_div", Mod: "op_mod", Min: "op_minimum", Max: "op_maximum"}

    def number(self, value: int) -> str:
        return str(value) if value < _SIZE else self.arguments.name(value)

    def bound(self, size: ExprLike) -> str:
        return self.size(size) if isinstance(size, Expr) else self.arguments.name(size)

    def operand(self, text: str) -> str:
        return f"(int64_t){text}"


@dataclass(frozen=True, slots=True)
class VectorIndexContext:
    """The context of vector indices. `symbol`: the loop variable that counts lanes; `vectors`: symbols that are
    vectors already (vi64); `narrow`: print 32-bit indices, which suffice when every index and partial result is known
    to be small."""

    symbol: Symbol | None
    vectors: Mapping[Symbol, str]
    narrow: bool
    printer: IndexPrinter

    @property
    def scalar(self) -> str:
        return "int32_t" if self.narrow else "int64_t"

    def vary(self, atom: Expr) -> bool:
        return self.symbol in atom.symbols or not atom.symbols.isdisjoint(self.vectors)


def print_vector_index(expr: Expr, lanes: VectorIndexContext) -> str:
    """One index for each lane."""
    scalar, printer = lanes.scalar, lanes.printer
    if lanes.symbol is not None and expr.symbols.isdisjoint(lanes.vectors):
        step = expr.coefficient(lanes.symbol)
        if step is not None:
            start, distance = printer.index(expr), printer.size(step)
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
                term = f"(splat(({scalar}){printer.number(value)}) * {term})"
            text = f"{text} + {term}" if text else term
        else:
            product = [
                *([printer.number(value)] if value != 1 or not monomial else []),
                *(printer.atom(atom) for atom in monomial),
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
        return f"splat(({lanes.scalar}){lanes.printer.atom(atom)})"
    if not lanes.vary(atom):
        return f"splat(({lanes.scalar}){lanes.printer.atom(atom)})"
    if isinstance(atom, FloorDiv | Mod) and isinstance(atom.denominator, Expr):
        parts = [print_vector_index(part, lanes) for part in (atom.numerator, atom.denominator)]
        return f"op_{'floor_div' if isinstance(atom, FloorDiv) else 'mod'}({', '.join(parts)})"
    if isinstance(atom, FloorDiv | Mod):
        top, bottom = print_vector_index(atom.numerator, lanes), str(atom.denominator)
        if atom.numerator.bounds(lanes.printer.ranges)[0] >= 0:
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
