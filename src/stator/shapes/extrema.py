"""Atoms for the minimum and the maximum of several expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .expr import Atom, Expr, ExprLike, Ranges, Symbol, as_int, constant, from_sorted, interned, interned_atom
from .intervals import Bound


def _common_terms(parts: Iterable[Expr]) -> Expr | None:
    """The terms beside numbers that all these expressions have; None without such terms."""
    first, *others = ({key: value for key, value in part._terms if key} for part in parts)
    shared = tuple((key, value) for key, value in first.items() if all(other.get(key) == value for other in others))
    return from_sorted(shared) if shared else None


class _Extremum(Atom):
    """The common part of Min and Max: at least two different expressions."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]
    _function = min

    @classmethod
    def of(cls, *args: ExprLike) -> Expr:
        flat: dict[Expr, None] = {}
        number: int | None = None
        for arg in args:
            for part in arg.args if isinstance(arg, cls) else (arg,):
                value = as_int(part)
                if value is not None:
                    number = value if number is None else cls._function(number, value)
                else:
                    flat[part] = None  # type: ignore[index]
        if number is None and len(flat) > 1:
            common = _common_terms(flat)
            if common is not None:
                return common + cls.of(*(part - common for part in flat))
        parts = sorted(flat, key=str) + ([constant(number)] if number is not None else [])
        if len(parts) == 1:
            return parts[0]
        key = (cls, tuple(parts))
        found = interned(key)
        if found is None:
            atom = object.__new__(cls)
            atom.args = tuple(parts)
            text = f"{cls._function.__name__}({', '.join(map(str, parts))})"
            found = interned_atom(atom, key, text, frozenset().union(*(part.symbols for part in parts)))
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
    """The least of several expressions; build with Min.of(...)."""

    __slots__ = ()
    _function = min


class Max(_Extremum):
    """The greatest of several expressions; build with Max.of(...)."""

    __slots__ = ()
    _function = max
