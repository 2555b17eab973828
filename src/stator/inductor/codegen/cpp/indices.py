"""Index expressions as C++ text: int64_t for scalars, vi64 for vectors of lanes."""

from __future__ import annotations

from collections.abc import Mapping

from stator.base.errors import CompileError
from stator.shapes.expr import Atom, Expr, FloorDiv, Max, Min, Mod, Ranges, Symbol


def print_index(expr: Expr, ranges: Ranges) -> str:
    """A scalar expression; symbols stand under their own names."""
    text = ""
    for monomial, value in expr.terms().items():
        factors = [_atom(atom, ranges) for atom in monomial]
        if abs(value) != 1 or not factors:
            factors.insert(0, f"{abs(value)}ll" if abs(value) >= 2**31 else str(abs(value)))
        sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
        text += sign + "*".join(factors)
    return text or "0"


def _atom(atom: Atom, ranges: Ranges) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    if isinstance(atom, FloorDiv | Mod):
        top, bottom = print_index(atom.numerator, ranges), _constant(atom)
        if atom.numerator.bounds(ranges)[0] >= 0:
            return f"(({top}) {'/' if isinstance(atom, FloorDiv) else '%'} {bottom})"
        return f"op_{'floor_div' if isinstance(atom, FloorDiv) else 'mod'}((int64_t)({top}), (int64_t){bottom})"
    if isinstance(atom, Min | Max):
        function = "op_minimum" if isinstance(atom, Min) else "op_maximum"
        text = f"(int64_t)({print_index(atom.args[0], ranges)})"
        for arg in atom.args[1:]:
            text = f"{function}({text}, (int64_t)({print_index(arg, ranges)}))"
        return text
    raise CompileError("inductor", f"cannot print the index expression {atom}")


def print_vector_index(expr: Expr, ranges: Ranges, lane: Symbol | None, vectors: Mapping[Symbol, str]) -> str:
    """One index per lane. `lane`: the loop variable that counts lanes; `vectors`: symbols that hold a vi64 already."""
    if lane is not None and expr.symbols.isdisjoint(vectors):
        step = expr.coefficient(lane)
        if step is not None:
            return f"arange_i64({print_index(expr, ranges)}, {step})"
    scalars: list[str] = []
    text = ""
    for monomial, value in expr.terms().items():
        if any(_varies(atom, lane, vectors) for atom in monomial):
            factors = [_vector_atom(atom, ranges, lane, vectors) for atom in monomial]
            term = factors[0]
            for factor in factors[1:]:
                term = f"({term} * {factor})"
            if value != 1:
                term = f"(splat((int64_t){value}) * {term})"
            text = f"{text} + {term}" if text else term
        else:
            factor = "*".join([f"(int64_t){value}", *(_atom(atom, ranges) for atom in monomial)])
            scalars.append(factor)
    if scalars:
        text = (
            f"{text} + splat((int64_t)({' + '.join(scalars)}))" if text else f"splat((int64_t)({' + '.join(scalars)}))"
        )
    return f"({text})" if text else "vi64{}"


def _varies(atom: Atom, lane: Symbol | None, vectors: Mapping[Symbol, str]) -> bool:
    return lane in atom.symbols or not atom.symbols.isdisjoint(vectors)


def _vector_atom(atom: Atom, ranges: Ranges, lane: Symbol | None, vectors: Mapping[Symbol, str]) -> str:
    if isinstance(atom, Symbol):
        if atom in vectors:
            return vectors[atom]
        return f"arange_i64({atom.name}, 1)" if atom is lane else f"splat((int64_t){atom.name})"
    if isinstance(atom, FloorDiv | Mod):
        function = "op_floor_div" if isinstance(atom, FloorDiv) else "op_mod"
        top = print_vector_index(atom.numerator, ranges, lane, vectors)
        return f"{function}({top}, splat((int64_t){_constant(atom)}))"
    if isinstance(atom, Min | Max):
        function = "op_minimum" if isinstance(atom, Min) else "op_maximum"
        text = print_vector_index(atom.args[0], ranges, lane, vectors)
        for arg in atom.args[1:]:
            text = f"{function}({text}, {print_vector_index(arg, ranges, lane, vectors)})"
        return text
    raise CompileError("inductor", f"cannot print the index expression {atom}")


def _constant(atom: FloorDiv | Mod) -> int:
    if not isinstance(atom.denominator, int):
        raise CompileError("inductor", f"division by a symbolic size in the index {atom}", hint="use static shapes")
    return atom.denominator
