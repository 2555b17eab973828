"""Numbers that only the run can tell, as nodes of the graph: where each symbol comes from, what is computed from
symbols, and checks of what was relied on about them.

Part of the recorder; what such numbers are to the program is in values/tensors/unknown_numbers.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.unknown_numbers import UnknownNumberValue, number_value
from stator.graph.fake.unknown_sizes import WHOLE, UnknownSizes, require
from stator.prims.record import TensorMeta
from stator.shapes.conditions import Comparison, Condition, Conjunction
from stator.shapes.expr import Expr, FloorDiv, Mod, Symbol
from stator.shapes.extrema import Max, Min
from stator.shapes.floats import OPERATIONS, ROUNDINGS, FloatExpr, Rounded
from stator.shapes.sym_node import expression

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

    from .graph_builder import GraphBuilder

_RELATIONS: dict[str, Any] = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}
_FLOAT_OPERATIONS: dict[str, Any] = {**OPERATIONS, "min": torch.sym_min, "max": torch.sym_max}
_DTYPES: dict[type, torch.dtype] = {
    torch.SymInt: torch.int64,
    torch.SymFloat: torch.float64,
    torch.SymBool: torch.bool,
}
_MOST_NUMBERS = 64  # that a list of them is made of


def may_be_read(context: CaptureContext, tensor: TensorValue, floats: bool = False) -> bool:
    """Whether the whole numbers in a tensor, or the only float, can be read in the graph."""
    kind = tensor.fake.dtype.is_floating_point if floats else tensor.fake.dtype in WHOLE
    if not kind or not context.recorder.mode.may_keep_unknown_numbers():
        return False
    count = tensor.fake.numel()
    return type(count) is int and count <= (1 if floats else _MOST_NUMBERS)


class RecordedNumbers:
    """Of one recorder. `unknown`: the symbols and what is known of them."""

    def __init__(self, recorder: GraphBuilder) -> None:
        self.recorder = recorder
        self.unknown = UnknownSizes()
        self.any = False  # is there one?
        self.checked = False  # does the graph check something about them?
        self._origins: dict[Symbol, Callable[[], fx.Node]] = {}
        self._nodes: dict[Any, fx.Node] = {}
        self._tensors: dict[int, tuple[UnknownNumberValue, TensorValue]] = {}
        self._facts = 0  # that are checked so far

    def forget(self) -> None:
        """The capture is over: what makes nodes leads back here."""
        self._origins.clear()
        self._tensors.clear()

    # -- where they come from --

    def note_sizes(self, fake: torch.Tensor, node: fx.Node) -> None:
        """Symbols that are sizes of a tensor that was made."""
        for dim, size in enumerate(fake.shape):
            symbol = expression(size)
            if type(symbol) is Symbol and symbol not in self._origins:
                self.any = True
                self._origins[symbol] = lambda dim=dim: self._size(node, dim)  # type: ignore[misc]

    def _size(self, node: fx.Node, dim: int) -> fx.Node:
        with node.graph.inserting_after(node):
            made = node.graph.call_method("size", (node, dim))
        made.meta["place"] = node.meta["place"]
        made.meta["unknown_number"] = True
        return made

    def note_number(self, number: Any, node: fx.Node) -> None:
        """An int that a node reads from a tensor."""
        self.any = True
        symbol = expression(number)
        if type(symbol) is Symbol:
            node.meta["example_value"] = number
            self._nodes[symbol] = node
            self._origins[symbol] = lambda: node

    def read(self, tensor: TensorValue) -> Value:
        """`tensor.item()` of one whole number."""
        recorder = self.recorder
        number = recorder.run_fake(torch.Tensor.item, "item", [tensor.fake], {})
        node = recorder.item_call(tensor)
        node.meta["data_dependent"] = True
        self.note_number(number, node)
        return number_value(number)

    def read_list(self, tensor: TensorValue) -> Value:
        """`tensor.tolist()` of whole numbers, of known shape."""
        recorder = self.recorder
        recorder.op_count += 1
        node = recorder.graph.call_method("tolist", (recorder.node_of(tensor),))
        node.meta["place"] = recorder.context.place()
        node.meta["data_dependent"] = True
        return self._numbers_in(node, tuple(tensor.fake.shape), torch.iinfo(tensor.fake.dtype))

    def _numbers_in(self, node: fx.Node, shape: tuple[int, ...], info: Any) -> Value:
        if not shape:
            number = self.unknown.number(info.min, info.max)
            self.note_number(number, node)
            return number_value(number)
        items = []
        for at in range(shape[0]):
            item = node.graph.call_function(operator.getitem, (node, at))
            item.meta["place"] = node.meta["place"]
            items.append(self._numbers_in(item, shape[1:], info))
        return ListValue(items)

    # -- as nodes --

    def node(self, number: Any) -> Any:
        """The node that computes a symbolic number, or a constant. Raises Unsupported where a symbol in it is of
        another part of the graph."""
        made = self._made(self._simplified(number))
        if isinstance(made, fx.Node) and "example_value" not in made.meta:
            made.meta["example_value"] = number
        return made

    def _simplified(self, number: Any) -> Any:
        value = expression(number)
        return self.unknown.environment.simplified(value) if isinstance(value, Expr) else value

    def tensor(self, value: UnknownNumberValue) -> TensorValue:
        """The number as a tensor of no dimension."""
        found = self._tensors.get(id(value))
        if found is None:
            made = self.scalar(self.node(value.number), _DTYPES[type(value.number)])
            found = self._tensors[id(value)] = (value, made)
        return found[1]

    def scalar(self, number: Any, dtype: torch.dtype) -> TensorValue:
        """A tensor of no dimension on the CPU, of a number of the graph."""
        node = self._call(torch.scalar_tensor, number)
        node.kwargs = {"dtype": dtype, "device": torch.device("cpu")}
        fake = self.recorder.mode.make(TensorMeta((), (), dtype, torch.device("cpu")))
        self.recorder.op_count += 1
        return self.recorder.wrap_tensor(fake, node)

    def _made(self, value: Any) -> Any:
        """Of an expression, a condition, or a number."""
        if isinstance(value, Expr) and value.constant is not None:
            return value.constant
        if not isinstance(value, (Expr, FloatExpr, Comparison)):
            if hasattr(value, "parts"):
                return self._combined(value)
            return value
        found = self._nodes.get(value)
        if found is None:
            build = _BUILDERS.get(type(value), RecordedNumbers._sum)
            found = self._nodes[value] = build(self, value)
        if isinstance(found, fx.Node) and found.graph is not self.recorder.graph:
            raise unsupported("data-dependent-value", "a number of another part of the graph")
        return found

    def _call(self, function: Any, *args: Any) -> fx.Node:
        node = self.recorder.graph.call_function(function, args)
        node.meta["place"] = self.recorder.context.place()
        node.meta["unknown_number"] = True
        return node

    def _symbol(self, symbol: Symbol) -> fx.Node:
        origin = self._origins.get(symbol)
        if origin is None:
            raise unsupported("data-dependent-value", "a number that an operator reads from a tensor for itself")
        return origin()

    def _sum(self, value: Expr) -> Any:
        total: Any = None
        for monomial, factor in value.terms().items():
            product: Any = None
            for atom in monomial:
                made = self._made(atom)
                product = made if product is None else self._call(operator.mul, product, made)
            if product is None:
                product = factor
            elif factor != 1:
                product = self._call(operator.mul, product, factor)
            total = product if total is None else self._call(operator.add, total, product)
        return total

    def _quotient(self, value: Any) -> fx.Node:
        function = operator.floordiv if type(value) is FloorDiv else operator.mod
        return self._call(function, self._made(value.numerator), self._made(value.denominator))

    def _extremum(self, value: Any) -> Any:
        function = torch.sym_min if type(value) is Min else torch.sym_max
        made = [self._made(one) for one in value.args]
        result = made[0]
        for one in made[1:]:
            result = self._call(function, result, one)
        return result

    def _rounded(self, value: Rounded) -> fx.Node:
        return self._call(ROUNDINGS[value.rounding], self._made(value.operand))

    def _float(self, value: FloatExpr) -> fx.Node:
        operands = [self._made(one) for one in value.operands]
        if value.operation == "int":
            return self._call(torch.sym_float, *operands)
        return self._call(_FLOAT_OPERATIONS[value.operation], *operands)

    def _comparison(self, value: Comparison) -> fx.Node:
        return self._call(_RELATIONS[value.relation], self._made(value.expr), 0)

    def _combined(self, value: Any) -> Any:
        function = operator.and_ if isinstance(value, Conjunction) else operator.or_
        result = self._made(value.parts[0])
        for part in value.parts[1:]:
            result = self._call(function, result, self._made(part))
        return result

    # -- what was relied on --

    def check_facts(self, *, all_known: bool = True) -> None:
        """Let the graph check what was relied on since it did so last. Without `all_known`: as far as it can here, for
        numbers that come with an operator that is being recorded.

        Raises Unsupported where the graph has written to memory that was there before: the frame could not begin anew.
        """
        facts = self.unknown.environment.facts
        while self._facts < len(facts):
            condition = facts[self._facts].condition
            if not all_known and not condition.symbols <= self._origins.keys():
                return
            self._facts += 1
            self._check(condition)

    def rely_on(self, number: torch.SymBool) -> None:
        """That it is true, which is not known."""
        number.node.expect_true(None, 0)
        self.check_facts()

    def _check(self, condition: Condition) -> None:
        recorder = self.recorder
        if not recorder.context.in_the_call:
            raise unsupported("data-dependent-value", "relying on a number that is known when the graph runs")
        if not recorder.side_effects().repeatable:
            raise unsupported(
                "data-dependent-value",
                f"relying on {condition}, behind a change of what was there before",
                "move the change behind it",
            )
        self.checked = True
        node = self._call(require, self._made(condition), str(condition))
        node.meta["example_value"] = None
        recorder.op_count += 1


_BUILDERS: dict[type, Callable[[RecordedNumbers, Any], Any]] = {
    Symbol: RecordedNumbers._symbol,
    FloorDiv: RecordedNumbers._quotient,
    Mod: RecordedNumbers._quotient,
    Min: RecordedNumbers._extremum,
    Max: RecordedNumbers._extremum,
    Rounded: RecordedNumbers._rounded,
    FloatExpr: RecordedNumbers._float,
    Comparison: RecordedNumbers._comparison,
}
