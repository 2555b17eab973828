"""Division of polynomials with integer coefficients, each a mapping from monomials (sorted tuples of atoms) to numbers.

Pure arithmetic on terms; expressions and their canonical forms live in `expr.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Terms = dict[tuple[Any, ...], int]


def divide(dividend: Iterable[tuple[tuple[Any, ...], int]], divisor: Iterable[tuple[tuple[Any, ...], int]]) -> tuple[
    Terms, Terms
]:  # fmt: skip
    """(q, r) with dividend == q * divisor + r, by long division on the divisor's leading term.

    Monomials are ordered by degree, then by name, which multiplication preserves, so that the loop ends.
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
            product = tuple(sorted(other + cofactor, key=_name))
            left[product] = left.get(product, 0) - count * coefficient
    return quotient, rest


def _name(atom: Any) -> str:
    return atom._sort


def _order(monomial: tuple[Any, ...]) -> tuple[int, list[str]]:
    return len(monomial), [atom._sort for atom in monomial]


def _without(monomial: tuple[Any, ...], factors: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The monomial with these factors taken out; None when it does not have them all."""
    remaining = list(monomial)
    for atom in factors:
        if atom not in remaining:
            return None
        remaining.remove(atom)
    return tuple(remaining)
