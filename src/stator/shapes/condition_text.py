"""Conditions on sizes as a person would write them: `seq <= 512` instead of `-seq + 512 >= 0`."""

from __future__ import annotations

from typing import Any

from .conditions import Comparison, Condition, Conjunction, Disjunction
from .expr import Expr, FloorDiv, Mod, as_expr

_TURNED = {">=": "<=", "==": "==", "!=": "!="}


def text_of(condition: Condition) -> str:
    """A comparison with positive terms on both sides; parts of compounds in parentheses."""
    if isinstance(condition, (Conjunction, Disjunction)):
        return f" {condition.word} ".join(f"({text_of(part)})" for part in condition.parts)
    found = divisibility(condition)
    if found is not None:
        number, divisor, relation = found
        return f"{_factor(number)} % {_factor(as_expr(divisor))} {relation} 0"
    if isinstance(condition, Comparison) and isinstance(condition.expr, Expr):
        return _comparison(condition.relation, condition.expr)
    return str(condition)


def _comparison(relation: str, expr: Expr) -> str:
    left, right = as_expr(0), as_expr(0)
    for monomial, value in expr.terms().items():
        if monomial:
            term = as_expr(abs(value))
            for atom in monomial:
                term = term * atom
            left, right = (left + term, right) if value > 0 else (left, right + term)
    offset = expr.offset
    if not right.symbols:
        return f"{left} {relation} {-offset}"
    if not left.symbols:
        return f"{right} {_TURNED[relation]} {offset}"
    if relation == ">=" and offset == -1:
        return f"{left} > {right}"
    return f"{left + offset} {relation} {right}" if offset > 0 else f"{left} {relation} {right + -offset}"


def _factor(expr: Expr) -> str:
    return str(expr) if len(expr.terms()) == 1 else f"({expr})"


def divisibility(condition: Condition) -> tuple[Expr, Any, str] | None:
    """(x, n, relation) of a condition `x % n == 0` or `x % n != 0`, in one of its forms."""
    if not isinstance(condition, Comparison) or condition.relation not in ("==", "!="):
        return None
    if not isinstance(condition.expr, Expr):
        return None
    for monomial, value in condition.expr.terms().items():
        for atom in monomial:
            if isinstance(atom, Mod) and len(condition.expr.terms()) == 1 and monomial == (atom,):
                return atom.numerator, atom.denominator, condition.relation
            if isinstance(atom, FloorDiv):
                whole = as_expr(value)
                for factor in monomial:
                    whole = whole * factor
                for sign in (1, -1):
                    product = atom * as_expr(atom.denominator) * sign
                    if whole == product and condition.expr - whole == atom.numerator * -sign:
                        return atom.numerator, atom.denominator, condition.relation
    return None
