"""Symbols for the sizes of a piece's inputs that differ from call to call: one compiled piece is right for many sizes.

The captured graph tells which sizes differ. Its own symbols have no example values where data decides them, so that a
piece, which is compiled when it runs, has symbols of its own. Never here: versions, or when they are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from stator.graph.fake.fake_mode import FakeMode, FakeTensor, meta_of_real
from stator.graph.ir.size_bindings import is_symbolic
from stator.shapes.conditions import Condition, compare, predicate
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, ExprLike, Symbol
from stator.shapes.sym_node import to_expression, to_sym_int

Fits = Callable[[Sequence[Any]], bool]


def differing_sizes(placeholders: Sequence[fx.Node]) -> dict[int, Any]:
    """By position the sizes of tensors, as captured, and numbers, of which some differ from call to call."""
    found: dict[int, Any] = {}
    for position, node in enumerate(placeholders):
        example = node.meta.get("example_value")
        captured = tuple(example.meta.shape) if isinstance(example, FakeTensor) else example
        if not node.meta.get("number") and type(captured) in (tuple, torch.SymInt) and is_symbolic(captured):
            found[position] = captured
    return found


class SymbolicInputs:
    """Symbols for inputs of these sizes, and the layouts that the inputs then have.

    examples: by position a fake with symbolic sizes, or a SymInt, for a placeholder's `meta["example_value"]`.
    environment: what is relied on about the symbols, while code is made and afterwards.
    """

    def __init__(self, captured: dict[int, Any], values: Sequence[Any]) -> None:
        self.environment = Environment()
        self._known: dict[Expr, ExprLike] = {}
        self._layouts: dict[int, tuple[ExprLike, ...]] = {}  # numbers, then sizes and strides of tensors
        self._numbers: set[int] = set()
        self.examples: dict[int, Any] = {}
        mode = FakeMode()
        order = sorted(captured, key=lambda at: type(captured[at]) is tuple)  # numbers first, which name sizes
        for at in order:
            if type(captured[at]) is tuple:
                self.examples[at] = self._tensor(mode, at, captured[at], values[at])
            else:
                number = self._number(captured[at], values[at])
                self._numbers.add(at)
                self._layouts[at] = (number,)
                self.examples[at] = to_sym_int(self.environment, number)
        mode.forget()

    def _tensor(self, mode: FakeMode, at: int, captured: tuple[Any, ...], tensor: torch.Tensor) -> Any:
        shape = [self._size(size, number) for size, number in zip(captured, tensor.shape, strict=True)]
        strides = self._symbolic_strides(shape, tensor)
        self._layouts[at] = (*shape, *strides)
        layout = replace(meta_of_real(tensor, lazy=True), shape=self._made(shape), stride=self._made(strides))
        return mode.make(layout, requires_grad=tensor.requires_grad)

    def _made(self, values: Sequence[ExprLike]) -> tuple[Any, ...]:
        return tuple([to_sym_int(self.environment, value) for value in values])

    def _size(self, captured: Any, number: int) -> ExprLike:
        """The same expression for equal captured ones; a new symbol where that is not the size after all."""
        expression = to_expression(captured)
        if not isinstance(expression, Expr):
            return number
        found = self._known.get(expression)
        if found is None and expression.symbols <= self._known.keys():
            found = expression.substitute(self._known)  # type: ignore[arg-type]
        if found is None or self.environment.hint(found) != number:
            found = self.environment.size(f"n{len(self.environment.ranges)}", number)
            self._known.setdefault(expression, found)
        return found

    def _number(self, captured: Any, number: int) -> ExprLike:
        """A number that may be a size. Any other number can be negative, and is a symbol, too."""
        expression = to_expression(captured)
        low = captured.node.environment.simplify(expression).bounds(captured.node.environment.ranges)[0]
        if low >= 0:
            return self._size(captured, number)
        found = self.environment.symbol(f"n{len(self.environment.ranges)}", number)
        self._known[expression] = found
        return found

    def _symbolic_strides(self, shape: Sequence[ExprLike], tensor: torch.Tensor) -> list[ExprLike]:
        """Those of a dense tensor follow from the sizes; others are constants."""
        found: list[ExprLike] = list(tensor.stride())
        running: ExprLike = 1
        for dim in sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), tensor.shape[dim], -dim)):
            if tensor.shape[dim] == 1:
                if self.environment.hint(running) == tensor.stride(dim):
                    found[dim], running = running, running * shape[dim]
                continue
            if self.environment.hint(running) != tensor.stride(dim):
                return list(tensor.stride())
            found[dim] = running
            running = running * (shape[dim] or 1 if type(shape[dim]) is int else shape[dim])
        return found

    def check(self) -> Fits:
        """Whether inputs have these layouts, at sizes for which holds what has been relied on by now."""
        conditions: list[Condition] = [fact.condition for fact in self.environment.facts]
        for symbol, (low, high) in self.environment.ranges.items():
            if low > -math.inf:
                conditions.append(compare(">=", symbol, int(low)))
            if high < math.inf:
                conditions.append(compare("<=", symbol, int(high)))
        symbols: list[Symbol] = []
        for at, layout in self._layouts.items():
            for place, value in enumerate(layout):
                symbol = value if isinstance(value, Symbol) and value not in symbols else Symbol(f"a{at}_{place}")
                if symbol is not value:
                    conditions.append(compare("==", value, symbol))
                symbols.append(symbol)
        holds = predicate(conditions, symbols)
        tensors = [at for at in self._layouts if at not in self._numbers]
        numbers = [at for at in self._layouts if at in self._numbers]

        def fits(arguments: Sequence[Any]) -> bool:
            values: list[int] = [arguments[at] for at in numbers]
            for at in tensors:
                values += arguments[at].shape
                values += arguments[at].stride()
            return holds(*values)

        return fits
