"""torch.einsum over symbolic sizes. torch's C++ asks of each size whether it is 1. For most equations a size of 1
changes nothing in the result but the stride of its dimension; then one version serves 1, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from stator.graph.ir.size_bindings import symbols_of
from stator.prims.layout import always_equal
from stator.shapes.environment import assume_several
from stator.shapes.sym_node import to_expression

from .data_dependent_functions import stand_ins

_MOST_SYMBOLIC = 6  # labels of symbolic sizes whose combinations are tried


@stand_ins.register(torch.einsum)
def _einsum(equation: Any, *operands: Any) -> torch.Tensor:
    sizes = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    product = _Product.read(equation, sizes)
    ones = product.sizes_that_may_be_one() if product is not None else []
    with assume_several(ones) if ones else nullcontext():
        return torch.einsum(equation, *operands)


class _Product(NamedTuple):
    """The product of two operands. first, second: the sizes by label, without those that are always 1. labels: of the
    result, and behind them those that are summed."""

    first: dict[str, Any]
    second: dict[str, Any]
    result: str
    labels: str

    @classmethod
    def read(cls, equation: Any, operands: Sequence[Any]) -> _Product | None:
        """None for all but two tensors with one letter for each dimension, each of which is in the result, or in
        both operands."""
        if not isinstance(equation, str) or len(operands) != 2:
            return None
        given, arrow, result = equation.replace(" ", "").partition("->")
        terms = given.split(",")
        fits = len(terms) == 2 and bool(arrow) and all(map(_is_plain, (*terms, result)))
        if not fits or any(one.dim() != len(term) for one, term in zip(operands, terms, strict=True)):
            return None
        first, second = (
            {label: size for label, size in zip(term, one.shape, strict=True) if not always_equal(size, 1)}
            for term, one in zip(terms, operands, strict=True)
        )
        summed = sorted({*terms[0], *terms[1]} - {*result})
        if any((label in first) is not (label in second) for label in summed):
            return None
        return cls(first, second, result, result + "".join(summed))

    def sizes_that_may_be_one(self) -> list[Any]:
        """The symbolic sizes that may be 1 without another layout of the result."""
        symbolic = [label for label in self.labels if symbols_of(self._sizes(label))]
        if len(symbolic) > _MOST_SYMBOLIC or set(self._summed()) <= set(symbolic):
            return []  # without a sum, torch multiplies element by element
        ones = [label for label in symbolic if self._are_alike(label)]
        usual = self._order_in_memory(frozenset())
        for count in range(1, len(ones) + 1):
            for some in map(frozenset, itertools.combinations(ones, count)):
                if self._order_in_memory(some) != [label for label in usual if label not in some]:
                    return []
        return [to_expression(size) for label in ones for size in self._sizes(label)]

    def _summed(self) -> list[str]:
        return [label for label in self.labels[len(self.result) :] if label in self.first]

    def _sizes(self, label: str) -> list[Any]:
        return [sizes[label] for sizes in (self.first, self.second) if label in sizes]

    def _are_alike(self, label: str) -> bool:
        """Whether no operand is broadcast along this dimension. Relies on it."""
        sizes = self._sizes(label)
        return bool(sizes[0] == sizes[-1])

    def _order_in_memory(self, ones: Set[str]) -> list[str]:
        """The dimensions of the result as they lie in memory: torch multiplies matrices in batches of the dimensions
        that both operands have, and swaps the operands where those of the second come first in the result."""
        batches: list[str] = []
        rows: list[str] = []
        columns: list[str] = []
        for label in self.labels:
            left, right = label in self.first and label not in ones, label in self.second and label not in ones
            if left and right:
                if label in self.result:
                    batches.append(label)
            else:
                (rows if left else columns).append(label)
        if rows and columns and self.labels.index(columns[-1]) < self.labels.index(rows[0]):
            rows, columns = columns, rows
        return [label for label in (*batches, *rows, *columns) if label not in ones and label in self.result]


def _is_plain(term: str) -> bool:
    return term.isalpha() and len(set(term)) == len(term)
