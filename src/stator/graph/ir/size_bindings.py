"""Where a graph with symbolic sizes finds the values of its symbols: sizes of its inputs, and ints among its inputs.

For every floor that runs such a graph. Never here: which symbols there are, or what is known about them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from stator.base.errors import CompileError
from stator.prims.record import TensorMeta
from stator.shapes.conditions import Comparison, Conjunction, Disjunction
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr
from stator.shapes.sym_node import to_expression

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CONTAINERS = (tuple, list)
_EXPRESSIONS = (Expr, FloatExpr, Comparison, Conjunction, Disjunction)


@dataclass(frozen=True, slots=True)
class SizeBinding:
    """A symbol is the size of dimension `dim` of the input at `position`; `dim` is None where that input is an int."""

    position: int
    dim: int | None

    def read(self, arguments: Sequence[Any]) -> int:
        value = arguments[self.position]
        return value if self.dim is None else value.shape[self.dim]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """A symbol times `factor` plus `offset` is the size of dimension `dim` of result `index` of a node, or its stride.
    index is None for a node with one result, dim where the result is an int."""

    index: int | None
    dim: int | None
    of_strides: bool = False
    factor: int = 1
    offset: int = 0

    def read(self, results: Any) -> int:
        value = results if self.index is None else results[self.index]
        if self.dim is None:
            return value  # type: ignore[no-any-return]
        number: int = (value.stride() if self.of_strides else value.shape)[self.dim]
        return (number - self.offset) // self.factor

    def read_text(self, result: str) -> str:
        """The code that reads the symbol from the result with this name."""
        if self.dim is None:
            return result
        number = f"{result}.stride({self.dim})" if self.of_strides else f"{result}.shape[{self.dim}]"
        return number if (self.factor, self.offset) == (1, 0) else f"({number} - {self.offset}) // {self.factor}"


SizeBindings = Mapping[Symbol, SizeBinding]
NO_BINDINGS: SizeBindings = MappingProxyType({})


def bind_sizes(inputs: Iterable[Any]) -> dict[Symbol, SizeBinding]:
    """Where each symbol is found first. inputs: for each input of a graph anything with a `shape`, or a number."""
    found: dict[Symbol, SizeBinding] = {}
    for position, value in enumerate(inputs):
        sizes = getattr(value, "shape", None)
        places = [(None, value)] if sizes is None else list(enumerate(sizes))
        for dim, size in places:
            if type(size) is torch.SymInt:
                symbol = to_expression(size)
                if isinstance(symbol, Symbol):
                    found.setdefault(symbol, SizeBinding(position, dim))
    return found


def size_bindings(graph: fx.Graph) -> dict[Symbol, SizeBinding]:
    """Where a functional graph finds its symbols: `bind_sizes` of its placeholders, by `meta["val"]`."""
    return bind_sizes(node.meta.get("val") for node in graph.nodes if node.op == "placeholder")


def input_bindings(graph: fx.Graph) -> dict[Symbol, SizeBinding]:
    """`size_bindings` of a forward, or of a joint graph, whose tangents tell sizes that depend on data too late."""
    made = result_bindings(graph)
    return {symbol: binding for symbol, binding in size_bindings(graph).items() if symbol not in made}


def unknown_symbols(symbols: Iterable[Symbol], environment: Environment) -> frozenset[Symbol]:
    """The symbols of numbers that depend on data."""
    return frozenset(symbol for symbol in symbols if symbol not in environment.hints)


def new_symbols(node: fx.Node) -> dict[Symbol, ResultPlace]:
    """The unknown symbols that the results of a node have and its arguments lack, and where its results tell them."""
    value = node.meta.get("val")
    found: dict[Symbol, ResultPlace] = {}
    parts = list(enumerate(value)) if isinstance(value, _CONTAINERS) else [(None, value)]
    for number, place in (*_numbers_of(parts, of_strides=False), *_numbers_of(parts, of_strides=True)):
        expression = to_expression(number) if type(number) is torch.SymInt else None
        if not isinstance(expression, Expr) or len(expression.symbols) != 1:
            continue
        (symbol,) = expression.symbols
        factor = expression.coefficient(symbol)
        if type(factor) is not int or expression != symbol * factor + expression.offset:
            continue
        if symbol not in number.node.environment.hints:
            found.setdefault(symbol, replace(place, factor=factor, offset=expression.offset))
    if found:
        for symbol in symbols_of((node.args, node.kwargs, [used.meta.get("val") for used in node.all_input_nodes])):
            found.pop(symbol, None)
    return found


def _numbers_of(parts: Iterable[tuple[int | None, Any]], of_strides: bool) -> Iterator[tuple[Any, ResultPlace]]:
    """The sizes or strides of results that are tensors, and results that are numbers, with their places."""
    for index, part in parts:
        numbers = getattr(part, "stride" if of_strides else "shape", None)
        for dim, number in ((None, part),) if numbers is None else enumerate(numbers):
            yield number, ResultPlace(index, dim, of_strides)


def read_sizes(bindings: SizeBindings, arguments: Sequence[Any]) -> dict[Symbol, int]:
    """The values of the symbols in a call with these arguments."""
    return {symbol: binding.read(arguments) for symbol, binding in bindings.items()}


def size_reader(bindings: SizeBindings) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """A function that returns the values of `read_sizes` in order. Written out as one expression: calls need it."""
    parts = [f"given[{one.position}]" + ("" if one.dim is None else f".size({one.dim})") for one in bindings.values()]
    return eval(f"lambda given: ({''.join(part + ', ' for part in parts)})")  # type: ignore[no-any-return]


def evaluated(value: Any, sizes: Mapping[Symbol, int]) -> Any:
    """A value with numbers in place of symbolic numbers, also in a TensorMeta, and in tuples, lists, dicts and slices.

    Raises CompileError for a symbol that `sizes` lacks.
    """
    if isinstance(value, SYMBOLIC):
        expression = to_expression(value)
        if expression is value:  # a number of another kind
            return value
        return _evaluated(expression, sizes)
    if isinstance(value, _EXPRESSIONS):
        return _evaluated(value, sizes)
    if isinstance(value, _CONTAINERS):
        made = [evaluated(item, sizes) for item in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {name: evaluated(item, sizes) for name, item in value.items()}
    if type(value) is TensorMeta:
        shape, stride, offset = evaluated((value.shape, value.stride, value.offset), sizes)
        return replace(value, shape=shape, stride=stride, offset=offset)
    if type(value) is slice:
        return slice(*[evaluated(part, sizes) for part in (value.start, value.stop, value.step)])
    return value


def _evaluated(expression: Any, sizes: Mapping[Symbol, int]) -> Any:
    try:
        if isinstance(expression, (Expr, FloatExpr)):
            return expression.evaluate(sizes)
        return expression if isinstance(expression, (bool, int, float)) else expression.holds(sizes)
    except KeyError as missing:
        raise CompileError("sizes", f"{expression} needs {missing.args[0]}, which no input of the graph has") from None


def is_symbolic(value: Any) -> bool:
    """Whether a value, or a part of it, depends on symbols."""
    return next(iter(_expressions(value)), None) is not None


def symbols_of(value: Any) -> frozenset[Symbol]:
    """The symbols in a value: a symbolic number, a TensorMeta, or a tuple, list, dict or slice of values."""
    return frozenset().union(*[expression.symbols for expression in _expressions(value)])


def symbols_of_graph(graph: fx.Graph) -> frozenset[Symbol]:
    """The symbols in the arguments and metas of all nodes."""
    return frozenset().union(
        *[symbols_of((node.args, node.kwargs, node.meta.get("val"))) for node in graph.nodes]  # type: ignore[arg-type]
    )


def result_bindings(graph: fx.Graph) -> dict[Symbol, tuple[fx.Node, ResultPlace]]:
    """The node that binds each symbol that depends on data, and where its results tell the value."""
    found: dict[Symbol, tuple[fx.Node, ResultPlace]] = {}
    for node in graph.nodes:
        for symbol, place in node.meta.get("binds", {}).items():
            found.setdefault(symbol, (node, place))
    return found


def has_symbols(graph: fx.Graph) -> bool:
    """Whether a functional graph has symbolic sizes; placeholders, and results that depend on data, bind them."""
    return any(
        "binds" in node.meta or (node.op == "placeholder" and is_symbolic(node.meta.get("val"))) for node in graph.nodes
    )


def environment_of(graph: fx.Graph) -> Environment | None:
    """What is known about the symbols of a functional graph; None for a graph without symbols."""
    metas = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder" or "binds" in node.meta]
    number = next(symbolic_numbers(metas), None)
    return None if number is None else number.node.environment  # type: ignore[no-any-return]


def _expressions(value: Any) -> Iterator[Any]:
    return map(to_expression, symbolic_numbers(value))


def symbolic_numbers(value: Any) -> Iterator[Any]:
    """The torch.SymInts, SymFloats and SymBools in a value, see `symbols_of`, that depend on symbols."""
    kind = type(value)
    if kind is int or kind is fx.Node:
        return
    if kind in SYMBOLIC:
        expression = to_expression(value)
        if expression is not value and getattr(expression, "symbols", None):
            yield value
    elif isinstance(value, _EXPRESSIONS):
        if value.symbols:
            yield value
    elif kind is TensorMeta:
        yield from symbolic_numbers((*value.shape, *value.stride, value.offset))
    elif isinstance(value, _CONTAINERS):
        for item in value:
            if item.__class__ is not int:
                yield from symbolic_numbers(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from symbolic_numbers(item)
    elif kind is slice:
        yield from symbolic_numbers((value.start, value.stop, value.step))
