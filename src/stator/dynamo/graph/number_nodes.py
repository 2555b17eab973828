"""Symbolic numbers as nodes of the graph: the nodes behind symbols, nodes that compute expressions, and checks of facts
about numbers that only the running graph knows.

Part of the graph builder; values/symbolic_numbers.py has the numbers as the program sees them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stator.base import counters, logs
from stator.dynamo.guards.source import CallSource, SizeSource, Source, StrideSource
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Retry
from stator.dynamo.ir.capture_result import GraphInput
from stator.dynamo.ir.input_sizes import InputSizes
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.symbolic_numbers import (
    FromInput,
    FromSizes,
    FromTensor,
    SymbolicNumber,
    is_open,
    number_value,
)
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.fake.number_stand_ins import Number
from stator.graph.fake.unknown_sizes import WHOLE, UnknownSizes
from stator.graph.ir.size_bindings import symbols_of
from stator.prims.operators.checks import check, require
from stator.prims.record import TensorMeta
from stator.shapes.conditions import Comparison, Condition, Conjunction, Disjunction
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr
from stator.shapes.sym_node import to_expression, to_sym_float, to_sym_int

from .size_expressions import SizeExpressions, size_source

# Python's functions that the graph replaces by torch's, which take symbolic numbers
_OF_SYMBOLS: dict[Any, Any] = {min: torch.sym_min, max: torch.sym_max, float: torch.sym_float}
_DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool}
_COMPARED = {"==": "eq", "!=": "ne", ">=": "ge", ">": "gt"}
_ZERO = ConstantValue(0)
_CHECK = "a check of the data of a tensor"
# Elements of a tensor that becomes a list: each number costs a millisecond of capture, so that a break is cheaper for
# long lists. Under fullgraph there is no limit.
_MOST_NUMBERS = 64


def may_be_read(context: CaptureContext, tensor: TensorValue, listed: bool = False) -> bool:
    """Whether the graph can read the numbers in a tensor: several whole numbers, or one of another type. Under
    fullgraph it can also list several numbers of another type."""
    if tensor.fake.dtype.is_complex or not context.recorder.mode.may_keep_unknown_numbers():
        return False
    if listed and (tensor.fake.dtype in WHOLE or context.recorder.fullgraph):
        context.recorder.numbers.has_fixed_sizes("tolist()", tensor.fake)
    count, fullgraph = tensor.fake.numel(), context.recorder.fullgraph
    if type(count) is not int:
        return False
    return count <= 1 or (listed and (fullgraph or (tensor.fake.dtype in WHOLE and count <= _MOST_NUMBERS)))


class NumberNodes:
    """The number nodes of one graph builder. `unknown`: the symbols and the known facts about them."""

    def __init__(self, recorder: Any, assumptions: CaptureAssumptions, dynamic: bool | None) -> None:
        self.recorder = recorder
        self.unknown = UnknownSizes()
        self.unknown.environment.locate = recorder.context.place
        self.assumptions = assumptions
        self.inputs = InputSizes(
            self.unknown.environment,
            dynamic,
            bool(assumptions.fixed_sizes),
            assumptions.changes,
            assumptions.met,
            assumptions.constants,
        )
        self.any = False  # is there a symbol?
        self.checked = False  # does the graph check a fact about symbols?
        self._origins: dict[Symbol, Callable[[], fx.Node]] = {}
        self._written: dict[fx.Graph, SizeExpressions] = {}
        self._ahead: dict[Symbol, Recipe] = {}  # random floats, and floats beside them
        self._lifted: dict[Symbol, SymbolicNumber] = {}  # symbols of inputs that parts of the graph use
        self._tensors: dict[int, tuple[SymbolicNumber, TensorValue]] = {}
        self._facts = 0  # number of facts checked so far
        self._taken: dict[Symbol, SymbolicNumber] = {}  # ints of the program that are symbols

    def forget(self) -> None:
        """Break the reference cycles at the end of the capture."""
        self._origins.clear()
        self._written.clear()
        self._ahead.clear()
        self._lifted.clear()
        self._tensors.clear()
        self._taken.clear()
        self.unknown.environment.locate = None

    # -- origins --

    def note_input(self, value: TensorValue) -> None:
        """Note symbols that are sizes of an input."""
        for dim, size in enumerate(value.fake.shape):
            symbol = to_expression(size)
            if type(symbol) is Symbol and symbol not in self._origins:
                self.any = True
                self._origins[symbol] = lambda dim=dim: self._size_of_input(value, dim)  # type: ignore[misc]
        for dim, stride in enumerate(value.fake.stride()):
            symbol = to_expression(stride)
            if type(symbol) is Symbol and symbol not in self._origins:
                self.any = True
                self._origins[symbol] = lambda dim=dim: self._stride_of_input(value, dim)  # type: ignore[misc]

    def strides_of_input(self, value: TensorValue) -> None:
        """Give the graph an input for each stride of an input that is a symbol of its own."""
        for symbol in map(to_expression, value.fake.stride()):
            own = type(symbol) is Symbol and type(self.inputs.sources.get(symbol)) is StrideSource
            known = self._expressions(self.recorder.root).known
            if own and symbol not in known:
                known[symbol] = self._origins[symbol]()

    def _stride_of_input(self, value: TensorValue, dim: int) -> fx.Node:
        assert value.obj is not None and value.source is not None
        source = StrideSource(value.source, dim)
        node: fx.Node = self.recorder.new_placeholder(str(source), value.fake.stride(dim))
        self.recorder.inputs.append(GraphInput(node.name, Load(source), value.obj.stride(dim)))
        return node

    def _size_of_input(self, value: TensorValue, dim: int) -> fx.Node:
        recorder = self.recorder
        tensor = recorder.node_of(value)
        with recorder.behind_placeholders():
            made: fx.Node = recorder.root.call_method("size", (tensor, dim))
        made.meta["place"] = recorder.context.place()
        made.meta["example_value"] = value.fake.shape[dim]
        return made

    def note_sizes(self, fake: torch.Tensor, node: fx.Node) -> None:
        """Note symbols that are sizes of a new tensor."""
        for dim, size in enumerate(fake.shape):
            symbol = to_expression(size)
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
        """Note an int that a node reads from a tensor."""
        self.any = True
        symbol = to_expression(number)
        if type(symbol) is Symbol:
            node.meta["example_value"] = number
            self._expressions(node.graph).known[symbol] = node
            self._origins[symbol] = lambda: node

    def read(self, tensor: TensorValue) -> Value:
        """`tensor.item()`. Copies a float or bool, because operators may write to the tensor before its use."""
        recorder = self.recorder
        dtype = tensor.fake.dtype
        if dtype not in WHOLE:
            record = recorder.context.record_method
            number = record("reshape", [record("detach", [tensor], {}), TupleValue([])], {})
            wide = dtype if dtype is torch.bool else torch.float64
            copied = record("to", [number, ConstantValue(wide)], {"copy": ConstantValue(True)})
            return SymbolicNumber(FromTensor(copied, bool if dtype is torch.bool else float))
        number = recorder.run_fake(torch.Tensor.item, "item", [tensor.fake], {})
        node = recorder.item_call(tensor)
        node.meta["data_dependent"] = True
        self.note_number(number, node)
        return number_value(number)

    def read_list(self, tensor: TensorValue) -> Value:
        """`tensor.tolist()`, of known shape."""
        recorder = self.recorder
        if tensor.fake.dtype not in WHOLE:
            if not tensor.fake.shape:
                return self.read(tensor)
            context = recorder.context
            parts = context.record_method("unbind", [context.record_method("detach", [tensor], {})], {})
            return ListValue([self.read_list(part) for part in context.iterate(parts)])
        recorder.op_count += 1
        node = recorder.graph.call_method("tolist", (recorder.node_of(tensor),))
        node.meta["place"] = recorder.context.place()
        node.meta["data_dependent"] = True
        return self._numbers_in(node, (), tuple(tensor.fake.shape), torch.iinfo(tensor.fake.dtype))

    def _numbers_in(self, node: fx.Node, place: tuple[int, ...], shape: tuple[int, ...], info: Any) -> Value:
        if shape:
            return ListValue([self._numbers_in(node, (*place, at), shape[1:], info) for at in range(shape[0])])
        number = self.unknown.number(info.min, info.max)
        if not place:
            self.note_number(number, node)
        else:
            self.any = True
            self._origins[to_expression(number)] = lambda: self._item(node, place)
        return number_value(number)

    def _item(self, node: fx.Node, place: tuple[int, ...]) -> fx.Node:
        """A number in nested lists. Nodes are made for the numbers in use, because lists may be long."""
        made = node
        for at in place:
            with node.graph.inserting_after(made):
                made = node.graph.call_function(operator.getitem, (made, at))
            made.meta["place"] = node.meta["place"]
        return made

    # -- that operators read from tensors for themselves --

    def note_reads(self, node: fx.Node) -> None:
        """Note the whole numbers that a new node reads from tensors of the graph."""
        for fake, number in self.recorder.mode.read:
            tensor, symbol = self.recorder.by_fake.get(id(fake)), to_expression(number)
            if tensor is not None and type(symbol) is Symbol and symbol not in self._origins:
                self.any = True
                self._origins[symbol] = partial(self._read_ahead, self.recorder.node_of(tensor), node)

    def _read_ahead(self, tensor: fx.Node, node: fx.Node) -> fx.Node:
        """The number that a node reads from a tensor, read once more, ahead of the node."""
        with node.graph.inserting_before(node):
            made = node.graph.call_method("item", (tensor,))
        made.meta["place"] = node.meta["place"]
        made.meta["data_dependent"] = True
        return made

    def in_place_of_reads(self, args: list[Value], kwargs: dict[str, Value]) -> tuple[Any, Any] | None:
        """Arguments with numbers in place of the tensors from which an operator reads whole numbers; None if there are
        none."""
        read = {id(fake) for fake, _ in self.recorder.mode.read}
        given = [*args, *kwargs.values()]
        made = self._with_numbers(given, read)
        return None if made is given else (made[: len(args)], dict(zip(kwargs, made[len(args) :], strict=True)))

    def _with_numbers(self, values: list[Value], read: set[int]) -> list[Value]:
        """The list itself if nothing in it is replaced."""
        given, made = [self.recorder.context.realized(value) for value in values], []
        for value in given:
            if isinstance(value, TensorValue) and id(value.fake) in read:
                value = self.read(value)
            elif type(value) is TupleValue or type(value) is ListValue:
                items = self._with_numbers(value.items, read)  # type: ignore[arg-type]
                value = value if items is value.items else type(value)(items)
            made.append(value)
        return values if all(one is other for one, other in zip(made, given, strict=True)) else made

    # -- as arguments of operators --

    def lowered(self, value: SymbolicNumber) -> tuple[Any, Any]:
        """The number as the argument of a node, and as the argument of the run on fakes."""
        origin = value.origin
        if isinstance(origin, FromSizes):
            if value.kind is bool and origin.has_example:  # operators take no symbolic truths
                return value.constant(), value.constant()
            recipe = self.ahead(origin.number) if self.is_random(value) else None
            if recipe is None:
                return self.node(origin.number), origin.number
            value.node = value.node or self._placeholder("random", 0.5, recipe)
        elif isinstance(origin, FromInput):
            return self._lowered_input(value, origin)
        elif value.kind is bool:
            return self._lowered_truth(origin.tensor)  # type: ignore[arg-type]
        else:
            value.node = value.node or self.recorder.item_call(origin.tensor)
        if value.node.graph is not self.recorder.graph:
            raise unsupported("torch-argument", "a number of another part of the graph")
        value.node.meta["gives_float"] = True
        return value.node, torch.SymFloat(Number())

    def _lowered_truth(self, tensor: TensorValue) -> tuple[Any, Any]:
        """The tensor itself: beside another tensor, a bool without dimensions means the bool in it."""
        if not self.recorder.takes_truths:
            raise unsupported("torch-argument", "a truth that is read from a tensor")
        return self.recorder.lower(tensor)  # type: ignore[no-any-return]

    def _lowered_input(self, value: SymbolicNumber, origin: FromInput) -> tuple[Any, Any]:
        """An input of the graph, or a guarded constant if the operator needs its value."""
        recorder = self.recorder
        whole = type(origin.plain_example) is int
        if origin.fixed or not (recorder.takes_ints if whole else recorder.takes_floats):
            number = self.symbol_of(value)
            return (number, number) if type(number) is not torch.SymInt else (self.node(number), number)
        recorder.taken_numbers.append(value)
        if value.node is None:
            value.node = self._placeholder(str(origin.source), origin.plain_example, Load(origin.plain_source))
        node = value.node
        if recorder.graph is not recorder.root:
            node = recorder.open[-1].lift_number(value, origin.plain_example)
            node.meta["number"] = True
        number = Number(ask=lambda: _relied_on(value, origin), whole=whole)
        return node, torch.SymInt(number) if whole else torch.SymFloat(number)

    def symbol_of(self, value: SymbolicNumber) -> Any:
        """An int or float of the program as a symbol on which sizes may depend, or its value under a guard."""
        origin = value.origin
        assert type(origin) is FromInput
        number = None
        if type(origin.example) is int and not origin.fixed:
            number = self.inputs.number(origin.source, origin.example)
        if number is None:
            return _relied_on(value, origin)
        symbol = to_expression(number)
        if symbol not in self._taken:
            self.any = True
            self._taken[symbol] = value
            self._origins[symbol] = lambda: self._number_of_input(origin, number)
        return number

    def may_be_symbol(self, origin: FromInput) -> bool:
        return self.inputs.may_be_symbol(origin.source, origin.example)

    def size_of(self, value: Value) -> Any:
        """An int, or a number over symbols, as a number of torch; None for other values."""
        if type(value) is not SymbolicNumber or value.is_fixed:
            return value.constant() if value.is_constant() else None
        if type(value.origin) is FromInput:
            return self.symbol_of(value)
        return value.origin.number if type(value.origin) is FromSizes else None

    def _number_of_input(self, origin: FromInput, number: Any) -> fx.Node:
        node = self.recorder.new_placeholder(str(origin.source), number)
        self.recorder.inputs.append(GraphInput(node.name, Load(origin.source), origin.example))
        return node  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Guard ints of the program that an operator has made constants. Raises Unsupported for those that change in
        nearly every call."""
        for symbol, value in self._taken.items():
            if self.unknown.environment.simplify(symbol).constant is not None:
                value.constant()

    def _placeholder(self, name: str, example: float, recipe: Recipe) -> fx.Node:
        """A Python number as an input of the graph."""
        node = self.recorder.new_placeholder(name, example)
        node.meta["number"] = True
        self.recorder.inputs.append(GraphInput(node.name, recipe, example))
        return node

    def ahead(self, number: Any) -> Recipe | None:
        """How code around the graph computes a number from inputs. None if it depends on anything else, or if captured
        code changed the layout of such an input."""
        value, sources = self._simplified(number), self.inputs.sources
        symbols: frozenset[Symbol] = getattr(value, "symbols", frozenset())
        if not symbols <= sources.keys() | self._ahead.keys():
            return None
        if any(symbol in sources and self.is_changed(sources[symbol]) for symbol in symbols):
            return None
        if symbols.isdisjoint(self._ahead):
            return Load(size_source(value, sources))
        written = SizeExpressions(
            lambda symbol: self._ahead.get(symbol) or Load(sources[symbol]), call_recipe, ConstantRecipe
        )
        return written.written(value)  # type: ignore[no-any-return]

    def computed_ahead(self, recipe: Recipe, low: float = -math.inf, high: float = math.inf) -> SymbolicNumber:
        """A random float that code ahead of the graph computes."""
        environment = self.unknown.environment
        symbol = environment.symbol(f"r{len(self._ahead)}", None, low, high)
        self._ahead[symbol] = recipe
        return SymbolicNumber(FromSizes(to_sym_float(environment, FloatExpr("symbol", (symbol,)))))

    def is_random(self, value: Value) -> bool:
        """Whether a number depends on random floats, and otherwise on inputs alone."""
        if not self._ahead or not is_open(value) or type(value.origin) is not FromSizes:
            return False
        symbols = to_expression(value.origin.number).symbols
        return not symbols.isdisjoint(self._ahead) and symbols <= self.inputs.sources.keys() | self._ahead.keys()

    def beside_random(self, value: Value) -> Value:
        """An operand of a random float: a changing float as a symbol, too; other numbers as they are."""
        if not is_open(value) or type(value.origin) is not FromInput or value.kind is not float:
            return value
        return self.computed_ahead(Load(value.origin.source))

    def is_changed(self, source: Source) -> bool:
        """Whether captured code gave a tensor another layout, so that the source of a number that is computed from its
        sizes gives the number of the call only ahead of the graph."""
        if isinstance(source, CallSource):
            return any(map(self.is_changed, source.args))
        if not isinstance(source, (SizeSource, StrideSource)):
            return False
        for value in self.recorder.input_values:
            if value.source == source.base:
                layout = value.fake.shape if isinstance(source, SizeSource) else value.fake.stride()
                found = self._simplified(layout[source.dim]) if source.dim < len(layout) else None
                return found is not self._simplified(self.inputs.at_entry(source))
        return False

    def as_input(self, value: SymbolicNumber) -> SymbolicNumber | None:
        """A number over symbols as one that each call reads, for functions of which there are no expressions. None if
        it depends on anything but inputs."""
        origin = value.origin
        if type(origin) is FromInput:
            return value
        if type(origin) is not FromSizes or not origin.has_example:
            return None
        expression = self._simplified(origin.number)
        known = self.recorder.context.numbers
        if expression not in known:
            example = value.kind(origin.number.node.hint)
            source = size_source(expression, self.inputs.sources)
            known[expression] = SymbolicNumber(FromInput(self.recorder.context, source, example))
        return known[expression]  # type: ignore[no-any-return]

    # -- as nodes --

    def node(self, number: Any) -> Any:
        """The node of a symbolic number, or a constant. A part of the graph gets the sizes of inputs as placeholders.
        Raises Unsupported if the number needs another symbol that the part does not know."""
        made = self._made(self._simplified(number))
        if isinstance(made, fx.Node) and "example_value" not in made.meta:
            made.meta["example_value"] = number
        return made

    def _simplified(self, number: Any) -> Any:
        value = to_expression(number)
        return self.unknown.environment.simplify(value) if isinstance(value, Expr) else value

    def need_constants(self, what: str, *values: Any) -> None:
        """For what cannot do with symbols: raises Retry, for a capture with constants in their place, if any number in
        these values depends on symbols of inputs."""
        leaves = pytree.tree_leaves(values)
        layouts = [leaf.meta if isinstance(leaf, FakeTensor) else leaf for leaf in leaves]
        symbols = symbols_of(layouts)
        place = self.recorder.context.place()
        found = {self.inputs.sources[symbol]: place for symbol in symbols if symbol in self.inputs.sources}
        if found:
            names = ", ".join(sorted(map(str, found)))
            logs.log("recompiles", "%s needs constants for %s: %s", what, names, place)
            counters.count("dynamo.sizes_made_constant", len(found))
            raise Retry(self.assumptions.with_constants(found))

    def has_input_sizes(self, fake: torch.Tensor) -> bool:
        """Whether all sizes of a tensor follow from the sizes and ints of inputs."""
        expressions = [to_expression(size) for size in fake.shape]
        return all(type(size) is int or self.inputs.are_inputs(size) for size in expressions)

    def has_fixed_sizes(self, what: str, fake: torch.Tensor) -> bool:
        """Whether capture knows all sizes of a tensor. Raises Retry if it would with constants for sizes of inputs."""
        self.need_constants(what, fake)
        return all(type(size) is int for size in fake.shape)

    def tensor(self, value: SymbolicNumber) -> TensorValue:
        """The number as a tensor of no dimension."""
        if type(value.origin) is FromTensor:
            return value.origin.tensor  # type: ignore[return-value]
        found = self._tensors.get(id(value))
        if found is None:
            condition = to_expression(value.origin.number) if type(value.origin) is FromSizes else None
            if isinstance(condition, Comparison | Conjunction | Disjunction):
                made = self._truth(condition)
            else:
                made = self.scalar(self.lowered(value)[0], _DTYPES[value.kind])
            found = self._tensors[id(value)] = (value, made)
        return found[1]

    def _truth(self, condition: Any) -> Any:
        """A condition as a tensor of no dimension. Tensors are compared, because kernels take no truths of numbers."""
        record = self.recorder.context.record_method
        if isinstance(condition, Comparison):
            dtype = torch.int64 if isinstance(condition.expr, Expr) else torch.float64
            return record(_COMPARED[condition.relation], [self.scalar(self._made(condition.expr), dtype), _ZERO], {})
        joined = "logical_and" if isinstance(condition, Conjunction) else "logical_or"
        return reduce(lambda one, other: record(joined, [one, other], {}), map(self._truth, condition.parts))

    def scalar(self, number: Any, dtype: torch.dtype) -> TensorValue:
        """A tensor of no dimension on the CPU, of a number of the graph."""
        node = self._call(torch.scalar_tensor, number)
        node.kwargs = {"dtype": dtype, "device": torch.device("cpu")}
        fake = self.recorder.mode.make(TensorMeta((), (), dtype, torch.device("cpu")))
        self.recorder.op_count += 1
        return self.recorder.wrap_tensor(fake, node)

    def _made(self, value: Any) -> Any:
        """The node or constant for an expression, a condition, or a number."""
        return self._expressions(self.recorder.graph).written(value)

    def _expressions(self, graph: fx.Graph) -> SizeExpressions:
        found = self._written.get(graph)
        if found is None:
            found = self._written[graph] = SizeExpressions(self._symbol, self._computed)
        return found

    def _computed(self, function: Any, *args: Any) -> fx.Node:
        return self._call(_OF_SYMBOLS.get(function, function), *args)

    def _call(self, function: Any, *args: Any) -> fx.Node:
        node = self.recorder.graph.call_function(function, args)
        node.meta["place"] = self.recorder.context.place()
        node.meta["unknown_number"] = True
        return node

    def _symbol(self, symbol: Symbol) -> fx.Node:
        if self.recorder.graph is not self.recorder.root and symbol in self.inputs.sources:
            number = to_sym_int(self.unknown.environment, symbol)
            lifted = self._lifted.setdefault(symbol, SymbolicNumber(FromSizes(number)))
            return self.recorder.open[-1].lift_number(lifted, number)  # type: ignore[no-any-return]
        origin = self._origins.get(symbol)
        if origin is None:
            raise unsupported("data-dependent-value", "a number that an operator reads from a tensor for itself")
        node = origin()
        if node.graph is not self.recorder.graph:
            raise unsupported("data-dependent-value", "a number of another part of the graph")
        return node

    # -- checks --

    @property
    def fact_count(self) -> int:
        return len(self.unknown.environment.facts)

    def check_facts(self, *, all_known: bool = True) -> None:
        """Add checks to the graph for the facts that capture relied on since the last check. Without `all_known`: stops
        at facts about numbers of the operator that is being recorded.

        Raises Unsupported if the graph has written to older memory, because the frame could not start again.
        """
        facts = self.unknown.environment.facts
        while self._facts < len(facts):
            condition = facts[self._facts].condition
            if not all_known and not condition.symbols <= self._origins.keys():
                return
            self._facts += 1
            if not self.inputs.are_inputs(condition):
                self._check(condition)

    def rely_on(self, condition: Value, wanted: bool = True, kind: str = "RuntimeError") -> None:
        """Let the graph fail if a truth known only at run time is not `wanted`. `kind`: the program's own error there,
        or `prims.checks.ASSUMPTION` if the program would take another branch."""
        origin = condition.origin if type(condition) is SymbolicNumber else None
        if type(origin) is FromSizes:
            number = condition.condition()  # type: ignore[attr-defined]
            (number if wanted else torch.sym_not(number)).node.expect_true(None, 0)
            self.check_facts()
            return
        recorder = self.recorder
        held: Any = origin.tensor if type(origin) is FromTensor else condition
        if not wanted:
            held = recorder.context.record_method("logical_not", [held], {})
        recorder.noticed = _CHECK
        recorder.keep_repeatable()
        recorder.state_call(check, (recorder.node_of(held), kind, _CHECK))
        recorder.op_count += 1

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


def _relied_on(value: SymbolicNumber, origin: FromInput) -> Any:
    """The value of a numeric input, under a guard."""
    value.constant()
    return origin.plain_example
