"""Immutable, hash-consed integer expressions in canonical polynomial form.

An expression is a sum of integer multiples of monomials; a monomial is a product of atoms (Symbol, FloorDiv and Mod
here, others in neighbouring files). Two expressions with equal canonical forms are one object, so equality and hashing
go by identity. `//` and `%` are Python's (rounding towards minus infinity). Never here: simplification under ranges,
facts about tensors, code printing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from .intervals import UNBOUNDED, Bound, floor_by, floor_quotient, plus, product_of, times
from .polynomial import accumulate, add_terms, common_factor, divide, divide_by_number, multiply_terms, term_key

Monomial = tuple["Atom", ...]
Ranges = Mapping["Symbol", tuple[Bound, Bound]]  # inclusive bounds; an absent symbol is unbounded
ExprLike = Union["Expr", int]

# Interned for the life of the process: there are few distinct index expressions, and a plain dict is faster than a weak
# dict. `setdefault` keeps interning atomic between threads.
_table: dict[object, Expr] = {}
# Sums and products by operands: a compilation computes each of them about twenty times.
_sums: dict[tuple[Expr, ExprLike], Expr] = {}
_products: dict[tuple[Expr, ExprLike], Expr] = {}


class Expr:
    """A polynomial with integer coefficients. Build with operators from Symbols and ints."""

    __slots__ = ("_simplified", "_terms", "_text", "symbols")

    _terms: tuple[tuple[Monomial, int], ...]
    _text: str | None
    _simplified: tuple[tuple[tuple[Bound, Bound], ...], Expr] | None
    symbols: frozenset[Symbol]

    def __add__(self, other: ExprLike) -> Expr:
        if other.__class__ is int:
            if other == 0:
                return self
        elif not isinstance(other, Expr):
            return NotImplemented
        found = _sums.get((self, other))
        if found is None:
            terms = other._terms if isinstance(other, Expr) else (((), other),)
            found = _sums[self, other] = from_terms(add_terms(self._terms, terms))
        return found

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: ExprLike) -> Expr:
        return self + (-other if other.__class__ is int else other * -1)

    def __rsub__(self, other: ExprLike) -> Expr:
        return self * -1 + other

    def __mul__(self, other: ExprLike) -> Expr:
        if other.__class__ is int:
            if other == 1:
                return self
            if other == 0:
                return ZERO
        elif not isinstance(other, Expr):
            return NotImplemented
        found = _products.get((self, other))
        if found is None:
            found = _products[self, other] = self._product(other)
        return found

    def _product(self, other: ExprLike) -> Expr:
        if not isinstance(other, Expr):
            return from_sorted(tuple([(m, c * other) for m, c in self._terms]))
        if other.constant is not None:
            return self * other.constant
        return from_terms(multiply_terms(self._terms, other._terms))

    __rmul__ = __mul__

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floor_div(self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return floor_div(other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        return modulo(self, other)

    def __rmod__(self, other: ExprLike) -> Expr:
        return modulo(other, self)

    def __bool__(self) -> bool:
        if self.constant is None:
            raise TypeError(f"the truth of the symbolic expression {self} is not known")
        return self.constant != 0

    @property
    def constant(self) -> int | None:
        """The value of an expression without symbols; else None."""
        return None

    def terms(self) -> dict[Monomial, int]:
        """Maps each monomial (a sorted tuple of atoms, empty for the constant) to its coefficient."""
        return dict(self._terms)

    @property
    def atoms(self) -> frozenset[Atom]:
        """The outermost atoms (without those inside a FloorDiv)."""
        return frozenset(atom for monomial, _ in self._terms for atom in monomial)

    @property
    def offset(self) -> int:
        """The constant term."""
        last = self._terms[-1] if self._terms else None
        return last[1] if last and not last[0] else 0

    def coefficient(self, symbol: Symbol) -> ExprLike | None:
        """The c with self == c*symbol + (an expression free of symbol), an int if it is one; None if there is no c free
        of symbol."""
        if symbol not in self.symbols:
            return 0
        found: ExprLike | None = None
        for monomial, value in self._terms:
            if len(monomial) == 1 and monomial[0] is symbol:
                found = value if found is None else found + value
            elif any(symbol in atom.symbols for atom in monomial):
                others = tuple([atom for atom in monomial if symbol not in atom.symbols])
                if len(others) + 1 != len(monomial) or symbol not in monomial:
                    return None
                found = from_sorted(((others, value),)) + (0 if found is None else found)
        return found

    def substitute(self, replacements: Mapping[Symbol, ExprLike]) -> Expr:
        """Replace symbols, all at once."""
        replaced = replacements.symbols if type(replacements) is Replaced else replacements
        if not self.symbols or self.symbols.isdisjoint(replaced):
            return self
        total: dict[Monomial, int] = {}
        for monomial, value in self._terms:
            kept = tuple([atom for atom in monomial if atom.symbols.isdisjoint(replaced)])
            if len(kept) == len(monomial):
                total[monomial] = total.get(monomial, 0) + value
                continue
            product = from_sorted(((kept, 1),)) if kept else None
            for atom in monomial:
                if atom not in kept:
                    if type(atom) is not Symbol and type(replacements) is not Replaced:
                        replacements = Replaced(replacements)
                    factor = as_expr(replacements[atom])  # type: ignore[index]
                    product = factor if product is None else product * factor
            accumulate(total, product._terms, value)  # type: ignore[union-attr]
        return from_terms(total)

    def evaluate(self, values: Mapping[Symbol, int]) -> int:
        """The value at a point. Raises KeyError for a symbol without a value. Works elementwise on arrays, too."""
        total = 0
        for monomial, value in self._terms:
            product = value
            for atom in monomial:
                product = product * atom._value(values)
            total = total + product
        return total

    def bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        """Inclusive bounds by interval arithmetic."""
        if type(ranges) is not KnownBounds:
            ranges = KnownBounds(ranges)
        low: Bound = 0
        high: Bound = 0
        for monomial, value in self._terms:
            if len(monomial) == 1:
                a, b = ranges[monomial[0]]
            else:
                a, b = 1, 1
                for atom in monomial:
                    a, b = product_of(a, b, *ranges[atom])
            a, b = (times(value, a), times(value, b)) if value > 0 else (times(value, b), times(value, a))
            low, high = plus(low, a), plus(high, b)
        return low, high

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._format()
        return self._text

    def _format(self) -> str:
        text = ""
        for monomial, value in self._terms:
            factors = [atom._factor() for atom in monomial]
            if abs(value) != 1 or not factors:
                factors.insert(0, str(abs(value)))
            sign = ("-" if value < 0 else "") if not text else (" - " if value < 0 else " + ")
            text += sign + "*".join(factors)
        return text or "0"

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return from_terms, (dict(self._terms),)


class Replaced(dict[Any, ExprLike]):
    """What stands for `symbols`, and for all other atoms met so far."""

    def __init__(self, replacements: Mapping[Symbol, ExprLike]) -> None:
        super().__init__(replacements)
        self.symbols = frozenset(replacements)

    def __missing__(self, atom: Atom) -> ExprLike:
        found = self[atom] = atom._replaced(self)
        return found


class KnownBounds(dict[Any, tuple[Bound, Bound]]):
    """Ranges of symbols, and the bounds of all other atoms met so far: quotients of quotients, as of an image that is
    halved many times, have the same parts again and again."""

    def __missing__(self, atom: Atom) -> tuple[Bound, Bound]:
        found = self[atom] = atom._atom_bounds(self)
        return found


class Constant(Expr):
    """An integer as an expression; equal to that int."""

    __slots__ = ("value",)
    value: int

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)

    @property
    def constant(self) -> int:
        return self.value

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __reduce__(self) -> tuple[object, ...]:
        return constant, (self.value,)


class Atom(Expr):
    """An expression that is neither a sum nor a product."""

    __slots__ = ("_sort",)
    _sort: str

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        raise NotImplementedError

    def _value(self, values: Mapping[Symbol, int]) -> int:
        raise NotImplementedError

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        raise NotImplementedError

    def _factor(self) -> str:
        return str(self)


class Symbol(Atom):
    """A named integer. A name has one symbol object."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Symbol:
        found = _table.get(name)
        if found is None:
            symbol = object.__new__(cls)
            symbol.name = name
            found = interned_atom(symbol, name, name, frozenset((symbol,)))
        return found  # type: ignore[return-value]

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        return replacements.get(self, self)

    def _value(self, values: Mapping[Symbol, int]) -> int:
        return values[self]

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        return ranges.get(self, UNBOUNDED)

    def __reduce__(self) -> tuple[object, ...]:
        return Symbol, (self.name,)


class _Quotient(Atom):
    """The common part of FloorDiv and Mod: a numerator, and a denominator that is an int or an expression."""

    __slots__ = ("denominator", "numerator")
    numerator: Expr
    denominator: ExprLike
    _sign = ""

    @classmethod
    def _of(cls, numerator: Expr, denominator: ExprLike) -> Atom:
        key = (cls, numerator, denominator)
        found = _table.get(key)
        if found is None:
            atom = object.__new__(cls)
            atom.numerator, atom.denominator = numerator, denominator
            top = numerator._factor() if isinstance(numerator, Atom) else f"({numerator})"
            bottom = (
                denominator
                if not isinstance(denominator, Expr) or isinstance(denominator, Symbol)
                else f"({denominator})"
            )
            symbols = numerator.symbols | (denominator.symbols if isinstance(denominator, Expr) else frozenset())
            found = interned_atom(atom, key, f"{top} {cls._sign} {bottom}", symbols)
        return found  # type: ignore[return-value]

    def _factor(self) -> str:
        return f"({self})"

    def _parts(self, replacements: Mapping[Symbol, ExprLike]) -> tuple[Expr, ExprLike]:
        bottom = self.denominator
        return self.numerator.substitute(replacements), bottom.substitute(replacements) if isinstance(
            bottom, Expr
        ) else bottom

    def _values(self, values: Mapping[Symbol, int]) -> tuple[int, int]:
        bottom = self.denominator
        return self.numerator.evaluate(values), bottom.evaluate(values) if isinstance(bottom, Expr) else bottom


class FloorDiv(_Quotient):
    """numerator // denominator that canonicalization cannot divide out."""

    __slots__ = ()
    _sign = "//"

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        return floor_div(*self._parts(replacements))

    def _value(self, values: Mapping[Symbol, int]) -> int:
        top, bottom = self._values(values)
        return top // bottom

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        bottom = self.denominator
        if not isinstance(bottom, int):
            low, high = self.numerator.bounds(ranges)
            least, most = as_expr(bottom).bounds(ranges)
            if least < 1:
                return UNBOUNDED
            return floor_quotient(low, most if low >= 0 else least), floor_quotient(high, least if high >= 0 else most)
        low, high = (floor_by(bound, bottom) for bound in self.numerator.bounds(ranges))
        return (low, high) if bottom > 0 else (high, low)

    def __reduce__(self) -> tuple[object, ...]:
        return floor_div, (self.numerator, self.denominator)


class Mod(_Quotient):
    """numerator % denominator that canonicalization cannot reduce."""

    __slots__ = ()
    _sign = "%"

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        return modulo(*self._parts(replacements))

    def _value(self, values: Mapping[Symbol, int]) -> int:
        top, bottom = self._values(values)
        return top % bottom

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        bottom = self.denominator
        if not isinstance(bottom, int):
            low, high = as_expr(bottom).bounds(ranges)
            return (0, high - 1) if low >= 1 else UNBOUNDED
        if bottom < 0:
            return bottom + 1, 0
        low, high = self.numerator.bounds(ranges)
        return (0, min(bottom - 1, high)) if low >= 0 else (0, bottom - 1)

    def __reduce__(self) -> tuple[object, ...]:
        return modulo, (self.numerator, self.denominator)


_LONG = 10**600  # CPython may refuse to write longer ints in decimal digits


def constant(value: int) -> Constant:
    found = _table.get(value)
    if found is None:
        expr = object.__new__(Constant)
        expr.value = value
        expr._terms = (((), value),) if value else ()
        expr._text = str(value) if abs(value) < _LONG else hex(value)
        expr._simplified = None
        expr.symbols = frozenset()
        found = _table.setdefault(value, expr)
    return found  # type: ignore[return-value]


def symbols(names: str) -> tuple[Symbol, ...]:
    """Symbols from names separated by blanks."""
    return tuple(Symbol(name) for name in names.split())


def floor_div(numerator: ExprLike, denominator: ExprLike) -> Expr:
    """numerator // denominator in canonical form: exact parts are divided out, nested divisions merged."""
    top, bottom = as_expr(numerator), as_int(denominator)
    if bottom is None:
        shared, top, denominator = _without_shared_factors(top, denominator)  # type: ignore[arg-type]
        if shared is not ONE:
            return floor_div(top, denominator)
        quotient, rest = divided(top, denominator)  # type: ignore[arg-type]
        return quotient if rest is ZERO else quotient + FloorDiv._of(rest, denominator)
    if bottom == 0:
        raise ZeroDivisionError(f"{numerator} // 0")
    if bottom == 1:
        return top
    if top.constant is not None:
        return constant(top.constant // bottom)
    quotient, rest = divided_terms(top, bottom)
    if rest.constant is not None:
        return quotient + rest.constant // bottom
    if bottom > 0:
        step = common_factor(rest._terms, bottom)
        if step > 1:
            coarse, fine = divided_terms(rest, step)
            return quotient + floor_div(coarse + fine.offset // step, bottom // step)
        inner = rest._terms[0][0][0] if rest._terms[0][1] == 1 else None
        if isinstance(inner, FloorDiv) and isinstance(inner.denominator, int) and inner.denominator > 0:
            above = rest - inner
            if above.constant is not None:  # (n//d + k) // b
                return quotient + floor_div(inner.numerator + above * inner.denominator, inner.denominator * bottom)
        if divided_terms(_without_inner_mods(rest, bottom), bottom)[1] is ZERO:  # n + -n % b
            return quotient + floor_div(_without_mods(rest), bottom)
        if all(value < 0 for monomial, value in rest._terms if monomial):
            return quotient - floor_div(bottom - 1 - rest, bottom)
    return quotient + FloorDiv._of(rest, bottom)


def modulo(numerator: ExprLike, denominator: ExprLike) -> Expr:
    """numerator % denominator in canonical form: multiples are dropped, common factors pulled out."""
    top, bottom = as_expr(numerator), as_int(denominator)
    if bottom is None:
        shared, top, denominator = _without_shared_factors(top, denominator)  # type: ignore[arg-type]
        if shared is not ONE:
            return modulo(top, denominator) * shared
        rest = divided(top, denominator)[1]  # type: ignore[arg-type]
        return ZERO if rest is ZERO else Mod._of(rest, denominator)
    if bottom == 0:
        raise ZeroDivisionError(f"{numerator} % 0")
    if bottom in (1, -1):
        return ZERO
    rest = divided_terms(top, bottom)[1]
    if bottom > 0:
        rest = _without_inner_mods(rest, bottom)
        step = common_factor(rest._terms, bottom)
        if step > 1:
            coarse, fine = divided_terms(rest, step)
            outside = fine.offset % step
            return modulo(coarse + fine.offset // step, bottom // step) * step + outside
    if rest.constant is not None:
        return constant(rest.constant % bottom)
    return Mod._of(rest, bottom)


def _without_shared_factors(top: Expr, bottom: Expr) -> tuple[Expr, Expr, Expr]:
    """(f, t, b) with top == f*t and bottom == f*b: f is the product of the atoms that all terms of both share."""
    shared: list[Atom] | None = None
    for monomial, _ in (*top._terms, *bottom._terms):
        if shared is None:
            shared = list(monomial)
            continue
        left, common = list(monomial), []
        for atom in shared:
            if atom in left:
                left.remove(atom)
                common.append(atom)
        shared = common
    if not shared:
        return ONE, top, bottom
    factor: Expr = ONE
    for atom in shared:
        factor = factor * atom
    return factor, divided(top, factor)[0], divided(bottom, factor)[0]


def _without_inner_mods(expr: Expr, bottom: int) -> Expr:
    """Under `% bottom`, c * (x % a) may be written c * x when bottom divides c * a."""
    for monomial, value in expr._terms:
        if len(monomial) == 1 and isinstance(monomial[0], Mod):
            inner = monomial[0]
            if isinstance(inner.denominator, int) and value * inner.denominator % bottom == 0:
                replaced = expr - inner * value + inner.numerator * value
                return _without_inner_mods(divided_terms(replaced, bottom)[1], bottom)
    return expr


def _without_mods(expr: Expr) -> Expr:
    """With x - a * (x // a) in place of terms x % a."""
    for monomial, value in expr._terms:
        if len(monomial) == 1 and isinstance(monomial[0], Mod):
            inner = monomial[0]
            whole = floor_div(inner.numerator, inner.denominator) * inner.denominator
            expr = expr + (inner.numerator - whole - inner) * value
    return expr


def divided(top: Expr, bottom: Expr) -> tuple[Expr, Expr]:
    """(q, r) with top == q*bottom + r, by division of polynomials."""
    if top is bottom:
        return ONE, ZERO
    quotient, rest = divide(top._terms, bottom._terms)
    return from_terms(quotient), from_terms(rest)


def divided_terms(expr: Expr, divisor: int) -> tuple[Expr, Expr]:
    """(q, r) with expr == divisor*q + r, with all divisible terms in q."""
    exact, rest = divide_by_number(expr._terms, divisor)
    return (from_sorted(exact), from_sorted(rest)) if exact else (ZERO, expr)


def interned(key: object) -> Expr | None:
    """The expression that was interned under this key, if any."""
    return _table.get(key)


def interned_atom(atom: Atom, key: object, text: str, symbols: frozenset[Symbol]) -> Expr:
    atom._terms = (((atom,), 1),)
    atom._text = atom._sort = text
    atom._simplified = None
    atom.symbols = symbols
    return _table.setdefault(key, atom)


def from_terms(total: dict[Monomial, int]) -> Expr:
    terms = [term for term in total.items() if term[1]]
    if len(terms) > 1:
        terms.sort(key=term_key)
    return from_sorted(tuple(terms))


def from_sorted(terms: tuple[tuple[Monomial, int], ...]) -> Expr:
    found = _table.get(terms)
    if found is not None:
        return found
    if not terms:
        return ZERO
    monomial, value = terms[0]
    if len(terms) == 1:
        if not monomial:
            return constant(value)
        if value == 1 and len(monomial) == 1:
            return monomial[0]
    expr = object.__new__(Expr)
    expr._terms = terms
    expr._text = None
    expr._simplified = None
    if len(terms) == 1 and len(monomial) == 1:
        expr.symbols = monomial[0].symbols
    else:
        expr.symbols = frozenset().union(*[atom.symbols for monomial, _ in terms for atom in monomial])
    return _table.setdefault(terms, expr)


def as_expr(value: ExprLike) -> Expr:
    return value if isinstance(value, Expr) else constant(int(value))


def as_int(value: ExprLike) -> int | None:
    return value.constant if isinstance(value, Expr) else int(value)


ZERO = constant(0)
ONE = constant(1)
