"""Immutable, hash-consed integer expressions in canonical polynomial form, and their simplification under ranges.

An expression is a sum of integer multiples of monomials; a monomial is a product of atoms (Symbol, FloorDiv, Mod, Min,
Max). Two expressions are the same object exactly when their canonical forms agree, so equality and hashing are those of
identity. `//` and `%` are Python's (rounding towards minus infinity). Never here: facts about tensors, code printing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Union

from .polynomial import divide

Monomial = tuple["Atom", ...]
Bound = Union[int, float]  # noqa: UP007 - an int, or +-math.inf where nothing is known
Ranges = Mapping["Symbol", tuple[Bound, Bound]]  # inclusive bounds; a symbol that is absent is unbounded
ExprLike = Union["Expr", int]

# Interned for the life of the process: the number of distinct index expressions stays small, and a plain dict is faster
# than a weak one. `setdefault` keeps interning atomic between threads.
_table: dict[object, Expr] = {}


class Expr:
    """A polynomial with integer coefficients. Build with operators from Symbols and ints."""

    __slots__ = ("_simplified", "_terms", "_text", "symbols")

    _terms: tuple[tuple[Monomial, int], ...]
    _text: str | None
    _simplified: tuple[tuple[tuple[Bound, Bound], ...], Expr] | None
    symbols: frozenset[Symbol]

    def __add__(self, other: ExprLike) -> Expr:
        if other.__class__ is int:
            return self if other == 0 else _from_terms(_added(self._terms, (((), other),)))  # type: ignore[arg-type]
        if isinstance(other, Expr):
            return _from_terms(_added(self._terms, other._terms))
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: ExprLike) -> Expr:
        return self + -other

    def __rsub__(self, other: ExprLike) -> Expr:
        return self * -1 + other

    def __mul__(self, other: ExprLike) -> Expr:
        if other.__class__ is int:
            if other == 1:
                return self
            if other == 0:
                return ZERO
            return _from_sorted(tuple([(m, c * other) for m, c in self._terms]))  # type: ignore[operator]
        if isinstance(other, Expr):
            if other.constant is not None:
                return self * other.constant
            return _product(self, other)
        return NotImplemented

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
        """The value, when no symbol occurs; else None."""
        return None

    def terms(self) -> dict[Monomial, int]:
        """Monomial (a sorted tuple of atoms, empty for the constant) to its coefficient."""
        return dict(self._terms)

    @property
    def atoms(self) -> frozenset[Atom]:
        """The outermost atoms (those inside a FloorDiv are not listed)."""
        return frozenset(atom for monomial, _ in self._terms for atom in monomial)

    @property
    def offset(self) -> int:
        """The constant term."""
        last = self._terms[-1] if self._terms else None
        return last[1] if last and not last[0] else 0

    def coefficient(self, symbol: Symbol) -> int | None:
        """The integer c with self == c*symbol + (something free of symbol); None when there is no such c."""
        if symbol not in self.symbols:
            return 0
        found = None
        for monomial, value in self._terms:
            if len(monomial) == 1 and monomial[0] is symbol:
                found = value
            elif any(symbol in atom.symbols for atom in monomial):
                return None
        return found

    def substitute(self, replacements: Mapping[Symbol, ExprLike]) -> Expr:
        """Replace symbols, all at once."""
        if not self.symbols or self.symbols.isdisjoint(replacements):
            return self
        total: dict[Monomial, int] = {}
        for monomial, value in self._terms:
            if len(monomial) == 1:
                _accumulate(total, _as_expr(monomial[0]._replaced(replacements))._terms, value)
            else:
                product: Expr = constant(value)
                for atom in monomial:
                    product = product * atom._replaced(replacements)
                _accumulate(total, product._terms, 1)
        return _from_terms(total)

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
        low: Bound = 0
        high: Bound = 0
        for monomial, value in self._terms:
            if len(monomial) == 1:
                a, b = monomial[0]._atom_bounds(ranges)
            else:
                a, b = 1, 1
                for atom in monomial:
                    a, b = _interval_product(a, b, *atom._atom_bounds(ranges))
            a, b = (_times(value, a), _times(value, b)) if value > 0 else (_times(value, b), _times(value, a))
            low, high = low + a, high + b
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
        return _from_terms, (dict(self._terms),)


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
    """What cannot be taken apart by addition and multiplication."""

    __slots__ = ("_sort",)
    _sort: str

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        raise NotImplementedError

    def _value(self, values: Mapping[Symbol, int]) -> int:
        raise NotImplementedError

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        raise NotImplementedError

    def _under(self, ranges: Ranges) -> Expr:
        """This atom simplified under ranges."""
        raise NotImplementedError

    def _factor(self) -> str:
        return str(self)


class Symbol(Atom):
    """A named integer. Symbols with one name are one object."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Symbol:
        found = _table.get(name)
        if found is None:
            symbol = object.__new__(cls)
            symbol.name = name
            found = _interned_atom(symbol, name, name, frozenset((symbol,)))
        return found  # type: ignore[return-value]

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        return replacements.get(self, self)

    def _value(self, values: Mapping[Symbol, int]) -> int:
        return values[self]

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        return ranges.get(self, _UNBOUNDED)

    def _under(self, ranges: Ranges) -> Expr:
        low, high = ranges.get(self, _UNBOUNDED)
        return constant(int(low)) if low == high else self

    def __reduce__(self) -> tuple[object, ...]:
        return Symbol, (self.name,)


class _Quotient(Atom):
    """What FloorDiv and Mod share: a numerator and a denominator that is an int or an expression."""

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
            found = _interned_atom(atom, key, f"{top} {cls._sign} {bottom}", symbols)
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

    def _simplified_parts(self, ranges: Ranges) -> tuple[Expr, ExprLike]:
        bottom = self.denominator
        bottom = simplify(bottom, ranges) if isinstance(bottom, Expr) else bottom
        return simplify(self.numerator, ranges), bottom if _int(bottom) is None else _int(bottom)  # type: ignore[return-value]


class FloorDiv(_Quotient):
    """numerator // denominator, which does not divide out."""

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
            least, most = _as_expr(bottom).bounds(ranges)
            if least < 1:
                return _UNBOUNDED
            return _floor_quotient(low, most if low >= 0 else least), _floor_quotient(
                high, least if high >= 0 else most
            )
        low, high = (_floor(bound, bottom) for bound in self.numerator.bounds(ranges))
        return (low, high) if bottom > 0 else (high, low)

    def _under(self, ranges: Ranges) -> Expr:
        top, bottom = self._simplified_parts(ranges)
        if not isinstance(bottom, int) or bottom <= 0:
            result = floor_div(top, bottom)
            low, high = result.bounds(ranges)
            return constant(int(low)) if low == high else result
        quotient, rest = _divide_terms(top, bottom)
        low, high = (_floor(bound, bottom) for bound in rest.bounds(ranges))
        if low == high:
            return quotient + int(low)
        for step in _steps(rest, bottom):
            coarse, fine = _divide_terms(rest, step)
            low, high = fine.bounds(ranges)
            if low >= 0 and high < step:
                return quotient + simplify(floor_div(coarse, bottom // step), ranges)
        return quotient + floor_div(rest, bottom)

    def __reduce__(self) -> tuple[object, ...]:
        return floor_div, (self.numerator, self.denominator)


class Mod(_Quotient):
    """numerator % denominator, which does not reduce."""

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
            low, high = _as_expr(bottom).bounds(ranges)
            return (0, high - 1) if low >= 1 else _UNBOUNDED
        if bottom < 0:
            return bottom + 1, 0
        low, high = self.numerator.bounds(ranges)
        return (0, min(bottom - 1, high)) if low >= 0 else (0, bottom - 1)

    def _under(self, ranges: Ranges) -> Expr:
        top, bottom = self._simplified_parts(ranges)
        if not isinstance(bottom, int) or bottom <= 0:
            result = modulo(top, bottom)
            if isinstance(result, Mod) and isinstance(bottom, Expr):
                whole = FloorDiv._of(result.numerator, bottom)._atom_bounds(ranges)
                if whole[0] == whole[1]:
                    return result.numerator - bottom * int(whole[0])
            return result
        _, rest = _divide_terms(top, bottom)
        low, high = rest.bounds(ranges)
        if _floor(low, bottom) == _floor(high, bottom):
            return rest - int(_floor(low, bottom)) * bottom
        for step in _steps(rest, bottom):
            coarse, fine = _divide_terms(rest, step)
            low, high = fine.bounds(ranges)
            if low >= 0 and high < step:
                return simplify(modulo(coarse, bottom // step), ranges) * step + fine
        return modulo(rest, bottom)

    def __reduce__(self) -> tuple[object, ...]:
        return modulo, (self.numerator, self.denominator)


class _Extremum(Atom):
    """What Min and Max share: at least two different expressions."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]
    _function = min

    @classmethod
    def of(cls, *args: ExprLike) -> Expr:
        flat: dict[Expr, None] = {}
        number: int | None = None
        for arg in args:
            for part in arg.args if isinstance(arg, cls) else (arg,):
                value = _int(part)
                if value is not None:
                    number = value if number is None else cls._function(number, value)
                else:
                    flat[part] = None  # type: ignore[index]
        parts = sorted(flat, key=str) + ([constant(number)] if number is not None else [])
        if len(parts) == 1:
            return parts[0]
        key = (cls, tuple(parts))
        found = _table.get(key)
        if found is None:
            atom = object.__new__(cls)
            atom.args = tuple(parts)
            text = f"{cls._function.__name__}({', '.join(map(str, parts))})"
            found = _interned_atom(atom, key, text, frozenset().union(*(part.symbols for part in parts)))
        return found

    def _replaced(self, replacements: Mapping[Symbol, ExprLike]) -> ExprLike:
        return type(self).of(*(arg.substitute(replacements) for arg in self.args))

    def _value(self, values: Mapping[Symbol, int]) -> int:
        return type(self)._function(arg.evaluate(values) for arg in self.args)

    def _atom_bounds(self, ranges: Ranges) -> tuple[Bound, Bound]:
        bounds = [arg.bounds(ranges) for arg in self.args]
        function = type(self)._function
        return function(low for low, _ in bounds), function(high for _, high in bounds)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).of, self.args


class Min(_Extremum):
    """The least of some expressions; build with Min.of(...)."""

    __slots__ = ()
    _function = min

    def _under(self, ranges: Ranges) -> Expr:
        args = [simplify(arg, ranges) for arg in self.args]
        for arg in args:
            if all(arg is other or (arg - other).bounds(ranges)[1] <= 0 for other in args):
                return arg
        return Min.of(*args)


class Max(_Extremum):
    """The greatest of some expressions; build with Max.of(...)."""

    __slots__ = ()
    _function = max

    def _under(self, ranges: Ranges) -> Expr:
        args = [simplify(arg, ranges) for arg in self.args]
        for arg in args:
            if all(arg is other or (arg - other).bounds(ranges)[0] >= 0 for other in args):
                return arg
        return Max.of(*args)


def constant(value: int) -> Constant:
    found = _table.get(value)
    if found is None:
        expr = object.__new__(Constant)
        expr.value = value
        expr._terms = (((), value),) if value else ()
        expr._text = str(value)
        expr._simplified = None
        expr.symbols = frozenset()
        found = _table.setdefault(value, expr)
    return found  # type: ignore[return-value]


def symbols(names: str) -> tuple[Symbol, ...]:
    """Symbols from names separated by blanks."""
    return tuple(Symbol(name) for name in names.split())


def floor_div(numerator: ExprLike, denominator: ExprLike) -> Expr:
    """numerator // denominator in canonical form: exact parts are divided out, nested divisions merged."""
    top, bottom = _as_expr(numerator), _int(denominator)
    if bottom is None:
        quotient, rest = _divided(top, denominator)  # type: ignore[arg-type]
        return quotient if rest is ZERO else quotient + FloorDiv._of(rest, denominator)
    if bottom == 0:
        raise ZeroDivisionError(f"{numerator} // 0")
    if bottom == 1:
        return top
    if top.constant is not None:
        return constant(top.constant // bottom)
    quotient, rest = _divide_terms(top, bottom)
    if rest.constant is not None:
        return quotient + rest.constant // bottom
    if bottom > 0:
        step = _common_factor(rest, bottom)
        if step > 1:
            coarse, fine = _divide_terms(rest, step)
            return quotient + floor_div(coarse + fine.offset // step, bottom // step)
        if isinstance(rest, FloorDiv) and isinstance(rest.denominator, int) and rest.denominator > 0:
            return quotient + floor_div(rest.numerator, rest.denominator * bottom)
    return quotient + FloorDiv._of(rest, bottom)


def modulo(numerator: ExprLike, denominator: ExprLike) -> Expr:
    """numerator % denominator in canonical form: multiples are dropped, common factors pulled out."""
    top, bottom = _as_expr(numerator), _int(denominator)
    if bottom is None:
        rest = _divided(top, denominator)[1]  # type: ignore[arg-type]
        return ZERO if rest is ZERO else Mod._of(rest, denominator)
    if bottom == 0:
        raise ZeroDivisionError(f"{numerator} % 0")
    if bottom in (1, -1):
        return ZERO
    rest = _divide_terms(top, bottom)[1]
    if bottom > 0:
        rest = _without_inner_mods(rest, bottom)
        step = _common_factor(rest, bottom)
        if step > 1:
            coarse, fine = _divide_terms(rest, step)
            outside = fine.offset % step
            return modulo(coarse + fine.offset // step, bottom // step) * step + outside
    if rest.constant is not None:
        return constant(rest.constant % bottom)
    return Mod._of(rest, bottom)


def simplify(expr: ExprLike, ranges: Ranges) -> Expr:
    """An equal expression for every value of the symbols within `ranges`, with fewer divisions where possible."""
    expr = _as_expr(expr)
    if not expr.symbols:
        return expr
    signature = tuple([ranges.get(symbol, _UNBOUNDED) for symbol in _ordered_symbols(expr)])
    cached = expr._simplified
    if cached is not None and cached[0] == signature:
        return cached[1]
    total: dict[Monomial, int] = {}
    for monomial, value in expr._terms:
        if len(monomial) == 1:
            _accumulate(total, monomial[0]._under(ranges)._terms, value)
        else:
            product: Expr = constant(value)
            for atom in monomial:
                product = product * atom._under(ranges)
            _accumulate(total, product._terms, 1)
    result = _recombined(_from_terms(total))
    expr._simplified = (signature, result)
    return result


def bounds(expr: ExprLike, ranges: Ranges) -> tuple[Bound, Bound]:
    """Inclusive bounds of an expression or int."""
    return (expr, expr) if isinstance(expr, int) else expr.bounds(ranges)


def loop_ranges(variables: Iterable[Symbol], sizes: Iterable[int]) -> dict[Symbol, tuple[Bound, Bound]]:
    """Ranges of loop variables that run from 0 to size - 1 (an empty loop counts as one iteration)."""
    return {symbol: (0, max(size - 1, 0)) for symbol, size in zip(variables, sizes, strict=True)}


def _ordered_symbols(expr: Expr) -> list[Symbol]:
    return sorted(expr.symbols, key=_sort_key) if len(expr.symbols) > 1 else list(expr.symbols)


def _recombined(expr: Expr) -> Expr:
    """d*(x//d) + x%d -> x, wherever both are there with matching coefficients."""
    mods = [
        (m[0], c) for m, c in expr._terms if len(m) == 1 and isinstance(m[0], Mod) and isinstance(m[0].denominator, int)
    ]
    for atom, value in mods:
        terms = dict(expr._terms)
        bottom: int = atom.denominator  # type: ignore[assignment, attr-defined]
        numerator: Expr = atom.numerator  # type: ignore[attr-defined]
        if (atom,) not in terms:
            continue
        whole = floor_div(numerator, bottom)._terms
        if all(terms.get(monomial) == c * bottom * value for monomial, c in whole):
            changed = dict(terms)
            _accumulate(changed, atom._terms, -value)
            _accumulate(changed, whole, -bottom * value)
            _accumulate(changed, numerator._terms, value)
            expr = _from_terms(changed)
            continue
        expr = _recombined_mods(expr, atom, bottom, numerator, value)
    return expr


def _recombined_mods(expr: Expr, atom: Atom, bottom: int, numerator: Expr, value: int) -> Expr:
    """a*((x//a) % b) + x%a -> x % (a*b)."""
    quotient = floor_div(numerator, bottom)
    for monomial, other in expr._terms:
        if len(monomial) == 1 and other == bottom * value and isinstance(monomial[0], Mod):
            upper = monomial[0]
            if upper.numerator is quotient and isinstance(upper.denominator, int):
                return expr - atom * value - upper * other + modulo(numerator, bottom * upper.denominator) * value
    return expr


def _without_inner_mods(expr: Expr, bottom: int) -> Expr:
    """Under `% bottom`, c * (x % a) may be written c * x when bottom divides c * a."""
    for monomial, value in expr._terms:
        if len(monomial) == 1 and isinstance(monomial[0], Mod):
            inner = monomial[0]
            if isinstance(inner.denominator, int) and value * inner.denominator % bottom == 0:
                replaced = expr - inner * value + inner.numerator * value
                return _without_inner_mods(_divide_terms(replaced, bottom)[1], bottom)
    return expr


def _steps(expr: Expr, bottom: int) -> list[int]:
    """Factors of `bottom` that divide some terms of `expr` but not all, the largest first."""
    found = {math.gcd(value, bottom) for monomial, value in expr._terms if monomial}
    return sorted((step for step in found if step > 1), reverse=True)


def _common_factor(expr: Expr, bottom: int) -> int:
    """The greatest common divisor of `bottom` and all coefficients but the constant's."""
    factor = bottom
    for monomial, value in expr._terms:
        if monomial:
            factor = math.gcd(factor, value)
            if factor == 1:
                break
    return factor


def _divided(top: Expr, bottom: Expr) -> tuple[Expr, Expr]:
    """(q, r) with top == q*bottom + r, for a divisor with symbols."""
    if top is bottom:
        return ONE, ZERO
    quotient, rest = divide(top._terms, bottom._terms)
    return _from_terms(quotient), _from_terms(rest)


def _divide_terms(expr: Expr, divisor: int) -> tuple[Expr, Expr]:
    """(q, r) with expr == divisor*q + r, with all divisible terms in q."""
    exact: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, value in expr._terms:
        quotient, remainder = divmod(value, divisor)
        if remainder == 0:
            exact.append((monomial, quotient))
        elif not monomial or abs(value) >= abs(divisor):
            if quotient:
                exact.append((monomial, quotient))
            rest.append((monomial, remainder))
        else:
            rest.append((monomial, value))
    if not exact:
        return ZERO, expr
    return _from_sorted(tuple(exact)), _from_sorted(tuple(rest))


_UNBOUNDED: tuple[Bound, Bound] = (-math.inf, math.inf)


def _interned_atom(atom: Atom, key: object, text: str, symbols: frozenset[Symbol]) -> Expr:
    atom._terms = (((atom,), 1),)
    atom._text = atom._sort = text
    atom._simplified = None
    atom.symbols = symbols
    return _table.setdefault(key, atom)


def _sort_key(atom: Atom) -> str:
    return atom._sort


def _term_key(term: tuple[Monomial, int]) -> tuple[bool, list[str]]:
    return not term[0], [atom._sort for atom in term[0]]


def _from_terms(total: dict[Monomial, int]) -> Expr:
    terms = [term for term in total.items() if term[1]]
    if len(terms) > 1:
        terms.sort(key=_term_key)
    return _from_sorted(tuple(terms))


def _from_sorted(terms: tuple[tuple[Monomial, int], ...]) -> Expr:
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


def _added(left: tuple[tuple[Monomial, int], ...], right: tuple[tuple[Monomial, int], ...]) -> dict[Monomial, int]:
    total = dict(left)
    for monomial, value in right:
        total[monomial] = total.get(monomial, 0) + value
    return total


def _accumulate(total: dict[Monomial, int], terms: Iterable[tuple[Monomial, int]], factor: int) -> None:
    for monomial, value in terms:
        total[monomial] = total.get(monomial, 0) + value * factor


def _product(left: Expr, right: Expr) -> Expr:
    total: dict[Monomial, int] = {}
    for monomial, value in left._terms:
        for other, factor in right._terms:
            merged = tuple(sorted(monomial + other, key=_sort_key))
            total[merged] = total.get(merged, 0) + value * factor
    return _from_terms(total)


def _as_expr(value: ExprLike) -> Expr:
    return value if isinstance(value, Expr) else constant(int(value))


def _int(value: ExprLike) -> int | None:
    return value.constant if isinstance(value, Expr) else int(value)


def _floor(bound: Bound, divisor: int) -> Bound:
    if isinstance(bound, int):
        return bound // divisor
    return bound if divisor > 0 else -bound


def _floor_quotient(bound: Bound, divisor: Bound) -> Bound:
    """floor(bound / divisor) for a divisor >= 1, either of which may be infinite."""
    if isinstance(bound, int) and isinstance(divisor, int):
        return bound // divisor
    if isinstance(bound, int):
        return 0 if bound >= 0 else -1
    return bound


def _times(factor: Bound, bound: Bound) -> Bound:
    return 0 if factor == 0 or bound == 0 else factor * bound


def _interval_product(a: Bound, b: Bound, c: Bound, d: Bound) -> tuple[Bound, Bound]:
    corners = (_times(a, c), _times(a, d), _times(b, c), _times(b, d))
    return min(corners), max(corners)


ZERO = constant(0)
ONE = constant(1)
