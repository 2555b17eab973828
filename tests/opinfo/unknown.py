"""Arguments of an operator with a size that only the run can tell, and a dispatch mode that runs shape rules on them.

All sizes that are equal to the first one of the first tensor are one symbol, or each first size is one of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from recorder import describe
from symbolic import Arguments, Description, SymbolicRuleCheck, Symbols, settled, symbolic_arguments
from torch.utils._pytree import tree_leaves

from stator.base.errors import Unsupported
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr
from stator.shapes.sym_node import to_expression

VALUES = (0, 1, 2, 3, 5, 8)


class UnknownSymbols(Symbols):
    """`chosen`: the size that is unknown, wherever it stands; None: the first size of each tensor, each by itself."""

    def __init__(self, chosen: int | None) -> None:
        super().__init__(shared=True)
        self.environment = Environment(assumes=True)
        self.chosen = chosen
        self.sample: dict[Any, int] = {}
        self._first = False

    def of(self, prefix: str, value: int, low: int = 2) -> Any:
        if prefix != "s":
            return value
        key = value if self.chosen is not None else len(self.sample)
        if (prefix, key) not in self._symbols:
            symbol = self.environment.symbol(f"unknown{key}_{len(self.sample)}", None, 0)
            self._symbols[prefix, key] = symbol
            self.sample[symbol] = value
        return self._symbols[prefix, key]

    def size(self, value: int) -> Any:
        if self.chosen is not None:
            return self.of("s", value) if value == self.chosen else value
        first, self._first = self._first, False
        return self.of("s", value) if first and value > 1 else value

    def layout(self, tensor: torch.Tensor) -> Any:
        self._first = True
        return super().layout(tensor)


class UnknownArguments(Arguments):
    def __init__(self, func: Any, args: Any, kwargs: Any, chosen: int | None) -> None:
        self.symbols = UnknownSymbols(chosen)
        self.environment = self.symbols.environment
        names = symbolic_arguments(func)
        pairs = zip(args, func._schema.arguments, strict=False)
        self.args = tuple(self._convert(value, parameter.name in names) for value, parameter in pairs)
        self.kwargs = {name: self._convert(value, name in names) for name, value in kwargs.items()}


class UnknownRuleCheck(SymbolicRuleCheck):
    """`followed`: how often a rule gave a result; `ended`: how often it asked what only the run can tell. `assumed`:
    what was relied on, by operator."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = own
        self.followed: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.assumed: dict[str, set[str]] = {}

    def check(self, func: Any, rule: Any, args: Any, kwargs: Any) -> None:
        try:
            if settled(rule(*args, **kwargs)) is NotImplemented:
                return
        except Exception:
            return
        sizes = [leaf.shape for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        if not sizes or sizes[0][0] < 2:
            return
        arguments = UnknownArguments(func, args, kwargs, None if self.own else sizes[0][0])
        problem = self.problem(func, rule, arguments, None)
        if problem:
            found = self.mismatches.setdefault(str(func), [])
            if len(found) < 3:
                found.append(f"{problem}\n      called with {describe(args)} {describe(kwargs)}\n      that is "
                             f"{arguments.args} {arguments.kwargs}")  # fmt: skip

    def problem(self, func: Any, rule: Any, arguments: Any, expected: Any) -> str | None:
        environment, symbols = arguments.environment, arguments.symbols
        symbolic_args, symbolic_kwargs = arguments.symbolic()
        try:
            result = rule(*symbolic_args, **symbolic_kwargs)
        except Unsupported:
            self.ended[str(func)] += 1
            return None
        except Exception as error:
            return f"the rule raised {type(error).__name__}: {error}"
        self.followed[str(func)] += 1
        self.assumed.setdefault(str(func), set()).update(map(str, environment.facts))
        for value in VALUES:
            for values in self._points(symbols, value):
                problem = self._at(rule, arguments, result, values)
                if problem is not None:
                    return f"{problem}; relied on {[str(fact) for fact in environment.facts]}"
        return None

    def _points(self, symbols: UnknownSymbols, value: int) -> Any:
        yield dict.fromkeys(symbols.sample, value)
        for one in symbols.sample if len(symbols.sample) > 1 else ():
            yield {**symbols.sample, one: value}

    def _at(self, rule: Any, arguments: Any, result: Any, values: Any) -> str | None:
        if not arguments.environment.holds(values):
            return None
        args, kwargs = arguments.at(values)
        if any(stride == 0 for one in tree_leaves((args, kwargs)) for stride in _strides(one)) and 0 in values.values():
            args, kwargs = _contiguous(args), _contiguous(kwargs)
        try:
            numbers = settled(rule(*args, **kwargs))
        except Exception:  # as in eager, when it runs
            return None
        told = _facts(result, values)
        if told != _facts(numbers, {}):
            return f"at {values} the result is {told}, not {_facts(numbers, {})}"
        return None


def _strides(value: Any) -> tuple[Any, ...]:
    return value.stride() if isinstance(value, Description) else ()


def _contiguous(value: Any) -> Any:
    """No stride is zero because a size is."""
    if isinstance(value, Description):
        strides = [step or 1 for step in value.stride()]
        return Description(value.shape, strides, value.storage_offset(), value.dtype, value.device)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_contiguous, value))
    return {name: _contiguous(item) for name, item in value.items()} if isinstance(value, dict) else value


def _facts(result: Any, values: Any) -> Any:
    """What capture relies on: shapes, dtypes, which results there are. Strides are asked for when the graph runs."""
    if isinstance(result, TensorMeta):
        return (tuple(_number(size, values) for size in result.shape), result.dtype, result.device)
    if isinstance(result, (tuple, list)):
        return tuple(_facts(item, values) for item in result)
    return _number(result, values)


def _number(size: Any, values: Any) -> Any:
    value = to_expression(size)
    return value.evaluate(values) if isinstance(value, Expr) else value
