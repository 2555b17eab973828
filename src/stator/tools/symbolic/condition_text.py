"""Conditions on sizes as a person would write them: `seq <= 512` instead of `-seq + 512 >= 0`."""

from __future__ import annotations

from stator.shapes.conditions import Comparison, Condition, Conjunction, Disjunction
from stator.shapes.expr import Expr, as_expr

from .solver import divisibility

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
