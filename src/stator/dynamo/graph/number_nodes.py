"""Symbolic numbers as nodes of the graph: the nodes behind symbols, nodes that compute expressions, and checks of facts
about numbers that only the running graph knows.

Part of the graph builder; values/symbolic_numbers.py has the numbers as the program sees them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from stator.base import counters, logs
from stator.base.errors import Unsupported
from stator.dynamo.cache.dynamic_sources import is_memory_offset
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, SizeSource, Source, StrideSource
from stator.dynamo.host.numpy_boundary import plain_converter
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, Retry
from stator.dynamo.ir.capture_result import GraphInput
from stator.dynamo.ir.input_sizes import InputSizes
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe
from stator.dynamo.ir.size_expressions import SizeExpressions, size_source
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.symbolic_numbers import Origin, SymbolicNumber, is_symbolic
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.fake.number_stand_ins import Number
from stator.graph.fake.unknown_sizes import UnknownSizes
from stator.graph.ir.size_bindings import symbols_of
from stator.prims.operators.checks import check, require
from stator.prims.record import TensorMeta
from stator.shapes.conditions import Condition, compare, negate, truth_of
from stator.shapes.environment import Environment
from stator.shapes.expr import Expr, Symbol
from stator.shapes.floats import FloatExpr, IntCall, functions_of, int_call
from stator.shapes.sym_node import to_expression, to_sym_int, to_symbolic

from .number_tensors import TensorExpressions, between_operands

# Python's functions that the graph replaces by torch's, which take symbolic numbers
_OF_SYMBOLS: dict[Any, Any] = {
    **{min: torch.sym_min, max: torch.sym_max, float: torch.sym_float, int: math.trunc, operator.not_: torch.sym_not}
}
_DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool}
_OFTEN = 4  # changes of a number after which no guard may hold its value
# Functions of Python that nodes of the graph compute of symbolic sizes; code ahead of the graph computes others.
_SYMBOLIC = frozenset(
    [
        *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.neg),
        *(operator.eq, operator.lt, operator.le, float, min, max, int, math.floor, math.ceil, math.trunc),
    ]
)
# Functions of finite floats that never raise: code ahead of the graph computes them of random numbers.
_NEVER_RAISE = frozenset(
    (None, operator.add, operator.sub, operator.mul, operator.neg, operator.eq, operator.lt, operator.le, float)
)
_CHECK = "a check of the data of a tensor"


class NumberNodes:
    """The number nodes of one graph builder. `unknown`: the symbols and the known facts about them."""

    def __init__(self, recorder: Any, assumptions: CaptureAssumptions, dynamic: bool | None) -> None:
        self.recorder = recorder
        self.unknown = UnknownSizes()
        self.unknown.environment.locate = recorder.context.place
        self.unknown.environment.fix = self._fixed_value
        self.assumptions = assumptions
        known = assumptions.changes, assumptions.met, assumptions.constants, bool(assumptions.failed_guards)
        self.inputs = InputSizes(self.unknown.environment, dynamic, bool(assumptions.fixed_sizes), *known)
        self.fixed: dict[Any, Any] = {}
        self.any = False  # is there a symbol?
        self.checked = False  # does the graph check a fact about symbols?
        self._origins: dict[Symbol, Callable[[], fx.Node]] = {}
        self._inputs: dict[Source, SymbolicNumber] = {}
        self._unsteady: set[Symbol] = set()  # changed so often that no guard may hold the value
        self._ahead: dict[Symbol, Recipe] = {}  # random floats
        self._read: dict[Symbol, TensorValue] = {}  # copies of floats and truths in tensors
        self._nodes: dict[Any, Any] = {}  # what is made once: writers by graph, placeholders and reads by expression
        self._kinds: dict[Any, str] = {}  # of errors, by condition
        self._facts = 0  # number of facts checked so far

    def forget(self) -> None:
        """Break the reference cycles at the end of the capture."""
        for table in (self._origins, self._inputs, self._ahead, self._read, self._nodes):
            table.clear()  # type: ignore[attr-defined]
        self.unknown.environment.locate = self.unknown.environment.fix = None
        del self.recorder  # which keeps numbers among its input values

    @property
    def environment(self) -> Environment:
        return self.unknown.environment

    def value(self, expression: Any, kind: type | None = None) -> Value:
        """The number that an expression gives; a constant if ranges and facts tell the value."""
        if isinstance(expression, Expr):
            expression = self.environment.simplify(expression)
            known = expression.constant
        elif isinstance(expression, FloatExpr):
            known = None
        else:
            known = self.environment.evaluate_static(expression) if hasattr(expression, "holds") else expression
        return SymbolicNumber(self, expression, kind) if known is None else ConstantValue(known)

    def number(self, number: Any) -> Value:
        """The value of a symbolic number of torch."""
        if not is_symbolic(number):
            raise unsupported("tensor-layout", "the size of a nested tensor that stands for its lengths")
        return self.value(to_expression(number))

    # -- origins --

    def origin(self, symbol: Symbol) -> Origin:
        if symbol in self._read:
            return Origin.TENSOR
        if symbol in self._ahead:
            return Origin.RANDOM
        return Origin.INPUT if symbol in self.inputs.numbers else Origin.SIZE

    def of_input(self, source: Source, example: Any, place: SymbolicNumber | None = None) -> SymbolicNumber:
        """The number at a source whose number changes. A guard holds its type. `place`: the number that says where it
        is."""
        found = self._inputs.get(source)
        if found is None:
            context = self.recorder.context
            context.guard(source, GuardKind.TYPE, type(example))
            symbol = self.inputs.number(source, example)
            if context.changing.get(source, 0) >= _OFTEN or (place and place.expression.symbols & self._unsteady):
                self._unsteady.add(symbol)
            self._origins[symbol] = lambda: self._number_of_input(symbol)
            expression = symbol if type(example) is int else FloatExpr(None, (symbol,))
            found = self._inputs[source] = SymbolicNumber(self, expression, type(example), source)
            if source in self.inputs.constants and symbol not in self._unsteady:
                found.constant()
        return found

    def _number_of_input(self, symbol: Symbol) -> fx.Node:
        source = self.inputs.sources[symbol]
        node: fx.Node = self.recorder.new_placeholder(str(source), to_sym_int(self.environment, symbol))
        self.recorder.inputs.append(GraphInput(node.name, Load(source), self.environment.hints[symbol]))
        return node

    def of_tensor(self, tensor: TensorValue) -> SymbolicNumber:
        """The float or truth in a tensor without dimensions, which nothing writes to."""
        self.any = True
        symbol = self.environment.symbol(f"t{len(self._read)}", None)
        self._read[symbol] = tensor
        self._origins[symbol] = lambda: self.recorder.item_call(tensor)
        if tensor.fake.dtype is torch.bool:
            return SymbolicNumber(self, truth_of(int_call(bool, symbol)))
        return SymbolicNumber(self, FloatExpr(None, (symbol,)))

    def computed_ahead(self, recipe: Recipe, low: float = -math.inf, high: float = math.inf) -> SymbolicNumber:
        """A random float that code ahead of the graph computes."""
        symbol = self.environment.symbol(f"r{len(self._ahead)}", None, low, high)
        self._ahead[symbol] = recipe
        return SymbolicNumber(self, FloatExpr(None, (symbol,)))

    def tensor_of_symbol(self, symbol: Symbol) -> TensorValue:
        return self._read[symbol]

    def note_origin(self, number: Any, node: Callable[[], fx.Node]) -> None:
        """Note how the graph gets a number, if it is a symbol of which that is unknown."""
        if self.lacks_origin(number):
            self.any = True
            self._origins[to_expression(number)] = node

    def lacks_origin(self, number: Any) -> bool:
        symbol = to_expression(number)
        return type(symbol) is Symbol and symbol not in self._origins

    def note_input(self, value: TensorValue) -> None:
        """Note symbols that are sizes or strides of an input."""
        for dim, size in enumerate(value.fake.shape):
            self.note_origin(size, partial(self._size_of_input, value, dim))
        for dim, stride in enumerate(value.fake.stride()):
            self.note_origin(stride, partial(self._stride_of_input, value, dim))

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
            self.note_origin(size, partial(self._size, node, dim))

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

    # -- as arguments of operators --

    def lowered(self, value: SymbolicNumber) -> tuple[Any, Any]:
        """The number as the argument of a node, and as the argument of the run on fakes."""
        if value.is_fixed or (value.kind is bool and value.is_known):  # operators take no symbolic truths
            constant = _plain(value.constant())
            return constant, constant
        if self._is_symbolic(value):
            return self.node(value.expression), value.number
        if value.is_known:
            return self._lowered_input(value)
        if value.kind is bool:
            return self._lowered_truth(self.tensor(value))
        if self.ahead(value.expression) is not None:
            node = self._placeholder(value)
        else:
            graph = self.recorder.graph
            node = self._once((graph, value.expression), lambda: self.recorder.item_call(self.tensor(value)))
        if node.graph is not self.recorder.graph:
            raise unsupported("torch-argument", "a number of another part of the graph")
        return node, Number(self.environment, value.expression, float).argument

    def _lowered_truth(self, tensor: TensorValue) -> tuple[Any, Any]:
        """The tensor itself: beside another tensor, a bool without dimensions means the bool in it."""
        if not self.recorder.takes_truths:
            raise unsupported("torch-argument", "a truth that is read from a tensor")
        return self.recorder.lower(tensor)  # type: ignore[no-any-return]

    def _lowered_input(self, value: SymbolicNumber) -> tuple[Any, Any]:
        """A number that code ahead of the graph computes from inputs; a guarded constant if the operator needs its
        value."""
        recorder, example = self.recorder, _plain(value.example)
        if not (recorder.takes_ints if type(example) is int else recorder.takes_floats):
            number = self.size_of(value)
            return (number, number) if not is_symbolic(number) else (self.node(number), number)
        recorder.taken_numbers.append(value)
        node = self._placeholder(value)
        number = node.meta["number"]
        if recorder.graph is not recorder.root:
            node = recorder.open[-1].lift_number(value, example)
        return node, number.argument

    def _fixed_value(self, expression: Any) -> Any:
        """The value of a number of inputs, which a guard holds."""
        return _plain(SymbolicNumber(self, expression, type(self.environment.hint(expression))).constant())

    def _placeholder(self, value: SymbolicNumber) -> fx.Node:
        """A Python number as an input of the graph."""

        def make() -> fx.Node:
            example = _plain(value.example) if value.is_known else 0.5
            name = str(self.source(value.expression)) if value.is_known else "random"
            recipe = self._recipe_ahead(value.expression)
            convert = plain_converter(value.kind)
            node: fx.Node = self.recorder.new_placeholder(name, example)
            node.meta["number"] = Number(self.environment, value.expression, type(example))
            recipe = recipe if convert is None else call_recipe(convert, recipe)
            self.recorder.inputs.append(GraphInput(node.name, recipe, example))
            return node

        return self._once(value.expression, make)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = make()
        return found

    # -- numbers from which inputs and nodes are computed --

    def source(self, expression: Any) -> Source:
        """What Python evaluates for a number of inputs ahead of the graph."""
        return size_source(expression, self.inputs.sources)

    def is_size(self, operand: Any) -> bool:
        """Whether a number is a constant, or depends on sizes of inputs alone."""
        sources = self.inputs.sources
        return all(isinstance(sources.get(one), SizeSource | StrideSource) for one in getattr(operand, "symbols", ()))

    def _is_symbolic(self, value: SymbolicNumber) -> bool:
        """Whether nodes of the graph compute the number from its sizes and other ints."""
        if value.kind is int and not value.is_known:
            return True
        symbols = value.expression.symbols
        if symbols <= self.inputs.numbers or not functions_of(value.expression) <= _SYMBOLIC:
            return False
        if self.is_computed_in_tensors(value.expression):
            return False
        self._take(symbols)
        return True

    def _take(self, symbols: frozenset[Symbol]) -> None:
        """Let sizes depend on these numbers. A guard holds the values of those that are to be constants."""
        for symbol in symbols & self.inputs.numbers:
            if self.inputs.may_be_size(symbol):
                self.any = True
                self.inputs.numbers.discard(symbol)
            else:
                self.fix(SymbolicNumber(self, symbol))

    def size_of(self, value: Value) -> Any:
        """A number on which sizes may depend, as a number of torch or a constant; None for other values."""
        if type(value) is not SymbolicNumber or value.is_fixed:
            return value.constant() if value.is_constant() else None
        if not value.is_known:
            return None if self.is_computed_in_tensors(value.expression) and value.kind is not int else value.number
        if value.kind is int and not functions_of(value.expression) <= _SYMBOLIC:
            value = self.of_input(self.source(value.expression), value.example)
        if value.kind is bool or not functions_of(value.expression) <= _SYMBOLIC:
            return _plain(value.constant())
        self._take(value.expression.symbols)
        return to_symbolic(self.environment, self._simplified(value.expression))

    def fix(self, number: SymbolicNumber) -> None:
        """Hold the value of a number of inputs by a guard. Raises Unsupported if it changes in nearly every call."""
        expression = number.expression
        if number.kind is bool:
            self.environment.decide(expression)
            return
        for symbol in expression.symbols & self._unsteady:
            raise self._refuses(symbol)
        example = self.fixed[expression] = number.example
        if number.kind is int:
            self.environment.decide(compare("==", expression, example))
            return
        source, convert = self.source(expression), plain_converter(number.kind)
        source = source if convert is None else CallSource(convert, (source,))
        self.recorder.context.guard(source, GuardKind.EQUALS, _plain(example))

    def settle(self) -> None:
        """Raises Unsupported if an operator has made a constant of an int that changes in nearly every call."""
        for symbol in self._unsteady - self.inputs.numbers:
            if self.environment.simplify(symbol).constant is not None:
                raise self._refuses(symbol)

    def _refuses(self, symbol: Symbol) -> Unsupported:
        return unsupported(
            "changing-number",
            f"a use of the value of {self.inputs.sources[symbol]}, which changes in nearly every call",
            "keep the number in a tensor",
        )

    def ahead(self, expression: Any) -> Recipe | None:
        """How code around the graph computes a number from inputs. None if it depends on anything else, if the code
        might raise, or if captured code changed the layout of such an input."""
        sources, symbols = self.inputs.sources, expression.symbols
        if not symbols <= sources.keys() | self._ahead.keys():
            return None
        if any(symbol in sources and self.is_changed(sources[symbol]) for symbol in symbols):
            return None
        return None if self.is_computed_in_tensors(expression) else self._recipe_ahead(expression)

    def _recipe_ahead(self, expression: Any) -> Recipe:
        sources = self.inputs.sources
        if expression.symbols.isdisjoint(self._ahead):
            return Load(self.source(self._simplified(expression)))
        written = SizeExpressions(
            lambda symbol: self._ahead.get(symbol) or Load(sources[symbol]), call_recipe, ConstantRecipe
        )
        return written.written(expression)  # type: ignore[no-any-return]

    def is_computed_in_tensors(self, expression: Any) -> bool:
        """Whether a number depends on floats or truths in tensors, or on random numbers by functions that may raise."""
        symbols = expression.symbols
        if not symbols.isdisjoint(self._read):
            return True
        return not symbols.isdisjoint(self._ahead) and not functions_of(expression) <= _NEVER_RAISE

    def is_changed(self, source: Source) -> bool:
        """Whether captured code gave a tensor another layout, so that the source of a number that is computed from its
        sizes gives the number of the call only ahead of the graph."""
        if is_memory_offset(source):
            inputs = (one for one in self.recorder.input_values if one.source == source.args[0])  # type: ignore[attr-defined]
            return any(one.fake.storage_offset() != one.obj.storage_offset() for one in inputs)
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
        locate = self.environment.locate
        assert locate is not None
        place = locate()
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
        self.need_constants(what, tuple(fake.shape))
        return all(type(size) is int for size in fake.shape)

    def tensor(self, value: SymbolicNumber) -> TensorValue:
        """The number as a tensor of no dimension."""
        return self._tensor(value.expression)

    def _tensor(self, expression: Any) -> TensorValue:
        recorder = self.recorder
        with between_operands(recorder):
            writer = self._once(recorder.graph, lambda: TensorExpressions(recorder.context, self))
            return writer.written(expression)  # type: ignore[no-any-return]

    def scalar_of(self, expression: Any) -> TensorValue:
        """A number that depends on no tensor, as a tensor of no dimension."""
        value = SymbolicNumber(self, expression)
        return self.scalar(self.lowered(value)[0], torch.int64 if value.kind is int else torch.float64)

    def item(self, expression: Expr) -> fx.Node:
        """An int that is computed in tensors, as a number."""
        node: fx.Node = self.recorder.item_call(self._tensor(expression))
        node.meta["data_dependent"] = True
        node.meta["example_value"] = to_sym_int(self.environment, expression)
        return node

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
        return self._once((graph, "numbers"), lambda: _NodeExpressions(self))  # type: ignore[no-any-return]

    def computed(self, function: Any, *args: Any) -> fx.Node:
        return self._call(_OF_SYMBOLS.get(function, function), *args)

    def _call(self, function: Any, *args: Any) -> fx.Node:
        node = self.recorder.graph.call_function(function, args)
        node.meta["place"] = self.recorder.context.place()
        node.meta["unknown_number"] = True
        return node

    def node_of_symbol(self, symbol: Symbol) -> fx.Node:
        if self.recorder.graph is not self.recorder.root and symbol in self.inputs.sources:
            lifted = SymbolicNumber(self, symbol)
            return self.recorder.open[-1].lift_number(lifted, lifted.number)  # type: ignore[no-any-return]
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
        if type(condition) is SymbolicNumber:
            self.expect(condition.condition if wanted else negate(condition.condition), kind)
            return
        held = condition
        if not wanted:
            held = self.recorder.context.record_method("logical_not", [held], {})
        self._check_tensor(held, kind)

    def expect(self, condition: Condition, kind: str = "RuntimeError") -> None:
        """`rely_on` for a condition that `may_be_checked`."""
        self._kinds[condition] = kind
        self.environment.expect(condition)
        self.check_facts()

    def may_be_checked(self, condition: Condition) -> bool:
        """Whether the graph can check a condition."""
        assert not isinstance(condition, bool)
        return self.recorder.context.in_the_call and condition.symbols.isdisjoint(self._ahead)

    def _check(self, condition: Condition) -> None:
        recorder = self.recorder
        if not recorder.context.in_the_call:
            raise unsupported("data-dependent-value", "relying on a number that is known when the graph runs")
        if self.is_computed_in_tensors(condition):
            self._check_tensor(self._tensor(condition), self._kinds.get(condition, "RuntimeError"))
            return
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

    def _check_tensor(self, held: Any, kind: str) -> None:
        recorder = self.recorder
        recorder.noticed = _CHECK
        recorder.keep_repeatable()
        recorder.state_call(check, (recorder.node_of(held), kind, _CHECK))
        recorder.op_count += 1


class _NodeExpressions(SizeExpressions):
    """Writes expressions as nodes that compute with numbers."""

    def __init__(self, numbers: NumberNodes) -> None:
        super().__init__(numbers.node_of_symbol, numbers.computed)
        self._numbers = numbers

    def _write(self, value: Any) -> Any:
        if isinstance(value, IntCall) and (value.is_truth or self._numbers.is_computed_in_tensors(value)):
            return self._numbers.item(value)
        return super()._write(value)


def _plain(number: Any) -> Any:
    """A number of NumPy as Python's."""
    convert = plain_converter(type(number))
    return number if convert is None else convert(number)
