"""Arithmetic on the terms of polynomials with integer coefficients: monomials (sorted tuples of atoms) and numbers.

Terms only; expressions and their canonical forms live in `expr.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Monomial = tuple[Any, ...]
Term = tuple[Monomial, int]
Terms = dict[Monomial, int]


def sort_key(atom: Any) -> str:
    return atom._sort


def term_key(term: Term) -> tuple[bool, list[str]]:
    return not term[0], [atom._sort for atom in term[0]]


def add_terms(left: Iterable[Term], right: Iterable[Term]) -> Terms:
    total = dict(left)
    for monomial, value in right:
        total[monomial] = total.get(monomial, 0) + value
    return total


def accumulate(total: Terms, terms: Iterable[Term], factor: int) -> None:
    """Add `factor` times `terms` to `total`, in place."""
    for monomial, value in terms:
        total[monomial] = total.get(monomial, 0) + value * factor


def multiply_terms(left: Iterable[Term], right: tuple[Term, ...]) -> Terms:
    total: Terms = {}
    for monomial, value in left:
        for other, factor in right:
            merged = tuple(sorted(monomial + other, key=sort_key))
            total[merged] = total.get(merged, 0) + value * factor
    return total


def common_factor(terms: Iterable[Term], number: int) -> int:
    """The greatest common divisor of `number` and all coefficients except the constant."""
    factor = number
    for monomial, value in terms:
        if monomial:
            factor = math.gcd(factor, value)
            if factor == 1:
                break
    return factor


def divide_by_number(terms: Iterable[Term], divisor: int) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """(q, r) with terms == divisor * q + r, with all divisible terms in q; both keep the order of the terms."""
    exact: list[Term] = []
    rest: list[Term] = []
    for monomial, value in terms:
        quotient, remainder = divmod(value, divisor)
        if remainder == 0:
            exact.append((monomial, quotient))
        elif not monomial or abs(value) >= abs(divisor):
            if quotient:
                exact.append((monomial, quotient))
            rest.append((monomial, remainder))
        else:
            rest.append((monomial, value))
    return tuple(exact), tuple(rest)


def divide(dividend: Iterable[Term], divisor: Iterable[Term]) -> tuple[Terms, Terms]:
    """(q, r) with dividend == q * divisor + r, by long division on the divisor's leading term.

    The order of monomials, by degree and then by name, is compatible with multiplication, so the loop terminates.
    """
    others = dict(divisor)
    lead = max(others, key=_order)
    factor = others.pop(lead)
    left = dict(dividend)
    quotient: Terms = {}
    rest: Terms = {}
    while left:
        monomial = max(left, key=_order)
        value = left.pop(monomial)
        if not value:
            continue
        cofactor = _without(monomial, lead)
        if cofactor is None or value % factor:
            rest[monomial] = value
            continue
        count = value // factor
        quotient[cofactor] = quotient.get(cofactor, 0) + count
        for other, coefficient in others.items():
            product = tuple(sorted(other + cofactor, key=sort_key))
            left[product] = left.get(product, 0) - count * coefficient
    return quotient, rest


def _order(monomial: Monomial) -> tuple[int, list[str]]:
    return len(monomial), [atom._sort for atom in monomial]


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """The monomial without these factors; None if a factor is missing."""
    remaining = list(monomial)
    for atom in factors:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining)
