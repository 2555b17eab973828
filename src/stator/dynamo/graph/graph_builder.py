"""Records torch calls as nodes of an FX graph, and runs each once on fake tensors to learn its result's metadata."""

from __future__ import annotations

import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from stator.base.errors import Unsupported
from stator.base.signals import raised_by_signal_handler
from stator.dynamo.host.break_kinds import argument_hint
from stator.dynamo.host.naming import class_name
from stator.dynamo.host.numpy_boundary import is_numpy_bool, plain_converter
from stator.dynamo.ir.capture_assumptions import NO_ASSUMPTIONS, CaptureAssumptions, operation_name
from stator.dynamo.ir.capture_result import GraphInput, SideEffects
from stator.dynamo.ir.reconstruct_ir import Load
from stator.dynamo.values.base import CaptureContext, NotConstant, Value, cannot_rebuild, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import AppendOnlyList, ListValue, TupleValue, VaryingTuple
from stator.dynamo.values.containers.slices import SliceValue
from stator.dynamo.values.objects import is_generated
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, is_symbolic
from stator.dynamo.values.tensors.input_parameters import InputParameterValue
from stator.dynamo.values.tensors.ragged_sizes import RaggedSize, lower_ragged_size
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.fake.fake_tensor import flat_tensors
from stator.graph.fake.unknown_sizes import rely_on_copy
from stator.graph.fake.wrapper_subclasses import fakes_in, has_own_functions, is_wrapper, storages_of, version_of
from stator.graph.ir.aten_graph import LazyGraphModule
from stator.graph.operators.data_dependent_functions import stand_ins
from stator.graph.operators.number_forms import of_numbers
from stator.graph.torch_warnings import cpp_warnings_kept, of_operator, warnings_of_kernel, warnings_of_variance

from .data_dependent_errors import check_not_refused, is_noticed, may_fail, refuses_symbols, why_it_failed
from .input_value_guards import CaptureFakeMode
from .number_nodes import NumberNodes
from .number_reads import in_place_of_reads, note_reads
from .subgraphs import Subgraph


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Fakes are normal tensors, of which inference mode allows no views: run them under no_grad instead."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch._C._InferenceMode(False), torch.no_grad():
        yield


class NotATensorCall(Exception):
    """A torch call returned `result`, which holds no tensor. Private to the interpreter."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__()


class GraphBuilder:
    """The graph under construction. `graph` is the current target of nodes: the root, or an open subgraph."""

    def __init__(
        self, context: CaptureContext, assumptions: CaptureAssumptions = NO_ASSUMPTIONS, dynamic: bool | None = None
    ) -> None:
        self.context = context
        self.root = self.graph = fx.Graph()
        self.open: list[Subgraph] = []
        self.writes: list[Any] = []  # storages that operators wrote to, in order
        self.transforms: list[str] = []  # active function transforms, outermost first
        self.requiring: dict[int, bool | None] = {}  # by id of a transformed function's tensor: does it require grad?
        self.backend_flags_set: set[Any] = set()  # getters of the flags that the captured code has set
        self.function_modes: list[Value] = []  # torch function modes that captured code entered
        self.made_leaves: dict[int, int] = {}  # by id of a fake that requires grad: the outermost step
        self.freed: dict[int, Any] = {}  # by id: autograd nodes whose backward captured code ran
        self.fullgraph = False  # an end of the graph would be an error
        self.unlike_eager = False  # following deviated from eager, e.g. is_compiling() was True
        self.region: int | None = None  # the current checkpoint region
        self._regions = 0
        self.closed: dict[fx.Graph, int] = {}  # finished subgraphs, with the outermost frame's step
        self.mode = CaptureFakeMode(context)
        self.inputs: list[GraphInput] = []
        self.input_values: list[TensorValue] = []
        self.nested_inputs: list[TensorValue] = []
        self.op_count = 0
        self.numbers = NumberNodes(self, assumptions, dynamic)
        self.by_fake: dict[int, TensorValue] = {}
        self.owners: dict[int, Any] = {}  # by id of the plain tensor of an input: the input, of a tensor subclass
        self.written: set[int] = set()  # ids of TensorValues of inputs that an operator wrote to
        self.noticed = ""  # an operator that may fail on its data inside `try` or `with`
        self.any_noticed = False  # would the program notice a failure of any operator?
        self.used: list[tuple[TensorValue, int]] = []  # tensors of the call being recorded, with their versions
        self.taken_numbers: list[SymbolicNumber] = []  # symbolic arguments of the call being recorded
        self.kernels_warn = True  # the backend runs torch's kernels, which warn in each call
        self.takes_floats = self.takes_ints = self.takes_truths = True
        self._last_placeholder: fx.Node | None = None
        self._names: dict[str, int] = {}

    def forget(self) -> None:
        """Break the reference cycle with the context at the end of the capture; it would keep the program's objects."""
        self.mode.forget()
        self.numbers.forget()
        del self.context, self.numbers

    # -- inputs --
    def placeholder(self, value: TensorValue) -> fx.Node:
        node = self.new_placeholder(str(value.source), value.fake)
        self.inputs.append(GraphInput(node.name, Load(value.source), value.obj, value.is_static))  # type: ignore[arg-type]
        self.input_values.append(value)
        if self.numbers.any:
            self.numbers.strides_of_input(value)
        return node

    def new_placeholder(self, text: str, example: Any) -> fx.Node:
        """A placeholder behind the existing placeholders and before all other nodes."""
        name = self._input_name(text)
        with self.behind_placeholders():
            node = self.root.placeholder(name)
        node.meta["example_value"] = example
        self._last_placeholder = node
        return node

    def behind_placeholders(self) -> Any:
        """A block in which new nodes of the root stand behind the placeholders and before all other nodes."""
        last, first = self._last_placeholder, next(iter(self.root.nodes), None)
        return self.root.inserting_after(last) if last is not None else self.root.inserting_before(first)

    def unfix_input(self, value: TensorValue) -> None:
        self.inputs[:] = [replace(one, is_static=False) if one.example is value.obj else one for one in self.inputs]

    def _input_name(self, text: str) -> str:
        text = re.sub(r"\.__dict__\['_(?:modules|parameters|buffers)'\]|__dict__", "", text)
        name = re.sub(r"[^0-9a-zA-Z]+", "_", text).strip("_").lower()[-80:] or "input"
        name = f"input_{name}" if name[0].isdigit() else name
        taken = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}_{taken}" if taken else name

    def node_of(self, value: TensorValue) -> fx.Node:
        if value.node is None:
            value.node = self.placeholder(value)
        if value.node.graph is self.graph:
            return value.node
        self.check_reachable(value)
        self._check_part(value.fake)
        if not is_wrapper(value.fake) and not self.numbers.has_input_sizes(value.fake):
            raise unsupported("data-dependent-value", f"{value.describe(self.context)} in a part of the graph")
        return self.open[-1].lift(value)

    # -- parts that are graphs of their own --
    @contextmanager
    def subgraph(self, *seen: fx.Graph, takes_wrappers: bool = False) -> Iterator[Subgraph]:
        """Record the block in a graph of its own. Tensors from outside become the graph's placeholders. `seen`: closed
        subgraphs whose tensors the block may also read. `takes_wrappers`: the graph runs as a part of its caller's, and
        is not compiled by itself."""
        level = Subgraph(fx.Graph(), frozenset(seen), takes_wrappers)
        before, self.graph = self.graph, level.graph
        self.open.append(level)
        try:
            yield level
        finally:
            self.open.pop()
            self.graph = before
            self.closed[level.graph] = self.context.end_step()

    def _check_part(self, fake: torch.Tensor) -> None:
        """Raise Unsupported for a wrapper subclass in a part of the graph that is compiled by itself."""
        if is_wrapper(fake) and not all(level.takes_wrappers for level in self.open):
            raise unsupported("tensor-subclass", f"a {class_name(type(fake))} in a part of the graph")

    def check_reachable(self, value: TensorValue) -> None:
        """Raises CannotRebuild for a tensor of a finished subgraph: only results leave a subgraph."""
        graph = value.node.graph if value.node is not None else None
        if graph in self.closed and not any(graph in level.seen for level in self.open):
            raise cannot_rebuild("a tensor made inside a differentiated or transformed function", self.closed[graph])

    def requires_grad(self, value: TensorValue) -> bool | None:
        """`requires_grad` as the program sees it; None if unknown. Under a function transform, a tensor requires grad
        if the innermost transform differentiates by it; a fake does if any transform or backward may."""
        if not self.transforms or not value.fake.requires_grad:
            return value.fake.requires_grad
        told = self.requiring.get(id(value.fake))
        return True if told is None and (value.node is None or value.node.graph is self.root) else told

    # -- arguments --
    def lower(self, value: Value) -> tuple[Any, Any]:
        """A value as (argument of a node, argument of the fake run)."""
        handler = _LOWER.get(type(value))
        if handler is not None:
            return handler(self, value)
        try:
            constant = plain_number(value.constant())
        except NotConstant:
            what = f"{value.describe(self.context)} as an argument of a torch function"
            raise unsupported("torch-argument", what, argument_hint(value.python_type(self.context))) from None
        return constant, constant

    # -- calls --
    def record(
        self,
        kind: str,
        target: Any,
        run: Callable[..., Any],
        args: list[Value],
        kwargs: dict[str, Value],
    ) -> Value:
        """Run on fakes, then add one node. Raises NotATensorCall when the result holds no tensor."""
        check_not_refused(self.context, target)
        noticed = is_noticed(self.context)
        self.any_noticed = self.any_noticed or noticed
        if noticed and may_fail(self.context, target, args):
            self.noticed = f"{operation_name(target)}, inside of `try` or `with`,"
            self.keep_repeatable()
        self.used, self.taken_numbers, self.mode.read, self.mode.reads_sizes = [], [], [], False
        is_part = hasattr(target, "graph_callable")  # the subgraph's own operators have decided
        self.takes_floats = is_part or type(_callee(target)) is not FunctionType
        self.takes_ints = is_part or (self.takes_floats and operation_name(target).strip("_") in _ARITHMETIC)
        self.takes_truths = is_part or _is_operator(target)
        node_args, fake_args = self._lower_all(args)
        node_kwargs, fake_kwargs = self._lower_named(kwargs)
        if self.numbers.any and any(is_wrapper(value.fake) for value, _ in self.used):
            layouts = [(value.fake.shape, value.fake.stride()) for value, _ in self.used if not is_wrapper(value.fake)]
            self.numbers.need_constants("an operator of tensors made of tensors", layouts, fake_args, fake_kwargs)
        asked, answered, facts = self.mode.times, self.numbers.unknown.answered, self.numbers.fact_count
        try:
            result = self.run_fake(run, target, fake_args, fake_kwargs)
        except Unsupported:
            if (numbers := in_place_of_reads(self, args, kwargs)) is None:
                raise
            return self.record(kind, target, run, *numbers)
        if self.mode.reads_sizes and (numbers := in_place_of_reads(self, args, kwargs)) is not None:
            return self.record(kind, target, run, *numbers)  # so that sizes are expressions for the backend, too
        changed = [value for value, version in self.used if version_of(value.fake) != version]
        if self.taken_numbers and self._numbers_decide_gradients(target, kwargs, result, changed):
            for number in self.taken_numbers:
                number.constant()
        if self.numbers.any:
            made = [one for one in flat_tensors(result, torch.Tensor) if is_wrapper(one)]
            self.numbers.need_constants("a tensor made of tensors", fakes_in(made))
            self.numbers.settle()
        # the operator needed a value
        if any(number.is_fixed for number in self.taken_numbers) or self.numbers.fact_count != facts:
            node_args, node_kwargs = self._lower_all(args)[0], self._lower_named(kwargs)[0]
        if not _holds_tensor(result) and not changed:
            self.mode.note_question(target, [value.fake for value, _ in self.used])
            raise NotATensorCall(result)
        if not self.kernels_warn:
            for text in warnings_of_variance(operation_name(target), fake_args, fake_kwargs, result):
                self._warn_in_each_call(text)
        if self.numbers.any:
            self.numbers.check_facts(all_known=False)
        if self.mode.times != asked:
            node_args, node_kwargs = self._with_contents((node_args, node_kwargs))
        if target is operator.pow and not isinstance(node_args[0], fx.Node):
            target = torch.pow  # torch.fx writes the operator's call as `-2 ** x`, which is -(2 ** x)
        node = self.graph.create_node(kind, target, tuple(node_args), node_kwargs)
        self.op_count += 1
        node.meta["place"] = self.context.place()
        if self.numbers.unknown.answered != answered:
            node.meta["data_dependent"] = True
        if self.region is not None:
            node.meta["checkpoint"] = self.region
            # for partitioners of backends that build on torch's AOTAutograd
            node.meta["recompute"], node.meta["ac_graph_id"] = CheckpointPolicy.PREFER_RECOMPUTE, self.region + 1
        if "requires_grad" in kwargs and isinstance(result, torch.Tensor) and result.requires_grad:
            self.made_leaves[id(result)] = self.context.end_step()
        self.written.update(id(value.input) for value in changed if value.input is not None)
        self.keep_repeatable()
        for value in changed:
            self.context.mutations.check_free_memory(value)
        self.writes += [storage for value in changed for storage in storages_of(value.fake)]
        wrapped = self.wrap_output(result, node)
        note_reads(self, node)
        if self.numbers.any:
            self.numbers.check_facts()
        return wrapped

    def _lower_all(self, values: Iterable[Value]) -> tuple[list[Any], list[Any]]:
        pairs = [self.lower(value) for value in values]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def _numbers_decide_gradients(
        self, target: Any, kwargs: dict[str, Value], result: Any, changed: list[TensorValue]
    ) -> bool:
        """Whether the operator's derivative has another formula for some of its numbers, and is needed."""
        if not torch.is_grad_enabled() or not _decides_in_backward(target, kwargs):
            return False
        return _requires_grad(result) or any(value.fake.requires_grad for value in changed)

    def _lower_named(self, values: dict[str, Value]) -> tuple[dict[str, Any], dict[str, Any]]:
        pairs = {name: self.lower(value) for name, value in values.items()}
        return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}

    def _with_contents(self, arguments: Any) -> Any:
        """The arguments of an operator that needed the contents of inputs. These inputs become constants of the graph,
        so that the backend knows their contents, too."""
        constants: dict[fx.Node, fx.Node] = {}
        for value, version in self.used:
            fake = value.fake
            known = fake.tracked_value() if isinstance(fake, FakeTensor) and fake.known_from else None
            if known is not None and version_of(fake) == version:
                constants[self.node_of(value)] = self._constant_node(known)
        return fx.map_arg(arguments, lambda node: constants.get(node, node))

    def _constant_node(self, known: torch.Tensor) -> fx.Node:
        node = self.graph.call_function(torch.tensor, (known.tolist(),), {"dtype": known.dtype, "device": known.device})
        node.meta["place"] = self.context.place()
        node.meta["example_value"] = self.mode.value(known)
        return node

    def item_call(self, tensor: TensorValue) -> fx.Node:
        """A node that reads the number in a tensor now."""
        self.op_count += 1
        node = self.graph.call_method("item", (self.node_of(tensor),))
        node.meta["place"] = self.context.place()
        return node

    def state_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Record a call for its effect, such as a change of torch's state, in its place between the operators."""
        node = self.graph.call_function(function, args, kwargs)
        node.meta["place"] = self.context.place()
        node.meta["example_value"] = None

    def run_fake(self, run: Callable[..., Any], target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        warned: list[str] = []
        try:
            with outside_inference_mode(), self.mode, cpp_warnings_kept(_callee(target), warned):
                made = of_numbers(target, args, kwargs)
                made = (stand_ins.get(target) or run)(*args, **kwargs) if made is NotImplemented else made
                result = rely_on_copy(target, args, made)
            for text in (*warned, *warnings_of_kernel(operation_name(target), args)):
                if of_operator(text) or self.kernels_warn:
                    self.context.warn_now(text)
                else:
                    self._warn_in_each_call(text)
            return result
        except Exception as error:
            if isinstance(error, Unsupported) or raised_by_signal_handler(error):
                raise
            if self.numbers.any and hasattr(target, "graph_callable") and refuses_symbols(error):  # no single operator
                self.numbers.need_constants(operation_name(target), args, kwargs)
            raise why_it_failed(error, target) from error

    def _warn_in_each_call(self, text: str) -> None:
        self.context.call(self.context.known(warnings.warn), [ConstantValue(text)], {})

    def known_value(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The known contents of a fake tensor, or None."""
        return fake.known_value() if isinstance(fake, FakeTensor) else None

    def known_number(self, fake: torch.Tensor) -> Any:
        """The known number in a fake tensor, or None."""
        count = fake.numel()
        known = self.known_value(fake) if type(count) is int and count == 1 else None
        return None if known is None else known.item()

    @contextmanager
    def checkpoint_region(self) -> Iterator[None]:
        """The nodes of the block are one region, which the backward computes again. The outermost region counts."""
        if self.region is not None:
            yield
            return
        self.region = self._regions
        self._regions += 1
        try:
            yield
        finally:
            self.region = None

    # -- what else the graph does --
    def side_effects(self) -> SideEffects:
        """The side effects of the graph so far."""
        mode = self.mode
        repeatable = not mode.writes_outside() and not mode.footprint.speaks
        drawn_on = tuple(sorted(mode.footprint.drawn_on, key=str))
        generators = tuple(self.context.generators_drawn.values())
        return SideEffects(repeatable, drawn_on, generators, self.any_noticed, self.numbers.checked)

    def keep_repeatable(self) -> None:
        """Raises Unsupported if the frame could not start again after a failure that the program would notice."""
        if self.noticed and not self.side_effects().repeatable:
            raise unsupported(
                "raise",
                f"{self.noticed} may fail on its data, and part of the same graph changes what was there before",
            )

    # -- results --
    def wrap_output(self, result: Any, node: fx.Node) -> Value:
        if isinstance(result, torch.Tensor):
            return self.wrap_tensor(result, node)
        if result is None or isinstance(result, (int, float, bool, str)):
            return ConstantValue(result)
        if is_symbolic(result):
            return self.numbers.number(result)
        if isinstance(result, (tuple, list)):
            node.meta["example_value"] = result
            items = [self._item(result, index, node) for index in range(len(result))]
            if isinstance(result, list):
                return ListValue(items)
            return TupleValue(items, cls=type(result))
        raise unsupported("torch-result", f"a torch function gave a {type(result).__name__}")

    def _item(self, result: Any, index: int, node: fx.Node) -> Value:
        if not isinstance(result[index], (torch.Tensor, tuple, list)):
            return self.numbers.number(result[index]) if is_symbolic(result[index]) else ConstantValue(result[index])
        known = self.by_fake.get(id(result[index]))
        if known is not None:
            return known
        item = self.graph.call_function(operator.getitem, (node, index))
        item.meta["place"] = node.meta["place"]
        return self.wrap_output(result[index], item)

    def wrap_tensor(self, fake: torch.Tensor, node: fx.Node) -> TensorValue:
        """The value of a result. An operator that returns an argument returns the argument's value."""
        known = self.by_fake.get(id(fake))
        if "example_value" not in node.meta:
            node.meta["example_value"] = fake
        if known is not None:
            return known
        self._check_part(fake)
        plain = torch.nn.Parameter if getattr(fake, "_is_param", False) else torch.Tensor
        value = TensorValue(fake, node, cls=type(fake) if is_wrapper(fake) else plain)
        self.by_fake[id(fake)] = value
        if self.mode.has_unknown_sizes:
            self.numbers.note_sizes(fake, node)
        return value

    def wrap_input(self, value: TensorValue) -> TensorValue:
        self.by_fake[id(value.fake)] = value
        self.numbers.note_input(value)
        return value

    def finish(self, outputs: list[TensorValue]) -> fx.GraphModule | None:
        """The graph module, or None if the graph has no operator."""
        if not self.op_count:
            return None
        if self.numbers.any:
            self.numbers.check_facts()
        self.root.output(tuple(self.node_of(value) for value in outputs))
        return LazyGraphModule(torch.nn.Module(), self.root)  # makes its Python code on demand


def _holds_tensor(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_holds_tensor(item) for item in result)
    return isinstance(result, torch.Tensor)


def _requires_grad(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_requires_grad(item) for item in result)
    return isinstance(result, torch.Tensor) and result.requires_grad


def _decides_in_backward(target: Any, kwargs: dict[str, Value]) -> bool:
    """Whether the derivative of an operator has another formula for some values of its numbers."""
    name = operation_name(target).strip("_")
    return name in _POWERS or ("alpha" in kwargs and name in _SUMS)


_POWERS = frozenset({"foreach_pow", "foreach_lerp"})
_SUMS = frozenset({"rsub", "foreach_add", "foreach_sub"})


def _lower_tensor(recorder: GraphBuilder, value: TensorValue) -> tuple[Any, Any]:
    recorder.used.append((value, version_of(value.fake)))
    if has_own_functions(value.cls) and not torch._C._is_torch_function_enabled():
        raise unsupported("tensor-subclass", f"an operation that keeps {class_name(value.cls)} from answering it")
    if value.is_moved and torch.is_grad_enabled():
        return value.node_with_gradient(recorder.context), value.fake
    return recorder.node_of(value), value.fake


def _lower_constant(recorder: GraphBuilder, value: ConstantValue) -> tuple[Any, Any]:
    constant = plain_number(value.value)
    if type(constant) is complex:
        return PrintedComplex(constant), constant
    return constant, constant


class PrintedComplex(complex):
    """A complex constant of a graph. A graph runs from its printed Python code; Python prints complex(-0.0, 1.0) as
    `(-0+1j)`, a sum that loses the sign of the zero, and infinities as text that is no expression."""

    __slots__ = ()

    def __repr__(self) -> str:
        parts = [repr(part) if math.isfinite(part) else f"float('{part!r}')" for part in (self.real, self.imag)]
        return f"complex({', '.join(parts)})"


def plain_number(constant: Any) -> Any:
    """A constant as graphs print it and torch takes it: subclasses of numbers and text (IntEnum) and NumPy's numbers
    become plain, and Python's number types become dtypes."""
    if type(constant) is type:
        return _DTYPES.get(constant, constant)
    convert = plain_converter(type(constant))
    if convert is not None:
        return convert(constant)
    if is_numpy_bool(constant):
        return bool(constant)
    for kind, convert in _PLAIN:
        if isinstance(constant, kind) and type(constant) not in (kind, bool):
            return convert(constant)
    return constant


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
)


def _callee(target: Any) -> Any:
    """The function that runs. torch's Python functions may read the numbers that they take."""
    return getattr(torch.Tensor, target, None) if isinstance(target, str) else target


# Functions and methods, without underscores around the name, whose ints are operands and neither sizes nor dimensions.
_ARITHMETIC_NAMES = """
    add iadd radd sub isub rsub subtract mul imul rmul multiply truediv itruediv rtruediv div divide true_divide
    pow ipow rpow lt le gt ge eq ne less less_equal greater greater_equal lerp addcmul addcdiv clamp clamp_min clamp_max
    fill full_like masked_fill foreach_add foreach_sub foreach_mul foreach_div foreach_pow foreach_lerp foreach_addcmul
    foreach_addcdiv
"""
_ARITHMETIC = frozenset(_ARITHMETIC_NAMES.split())


def _is_operator(target: Any) -> bool:
    """Whether this is an operator of Python that treats a bool and a tensor of a bool alike, also in the backward."""
    return getattr(target, "__module__", None) == "_operator" and target not in _UNLIKE


_UNLIKE = (operator.getitem, operator.pow, operator.ipow, operator.mod, operator.imod)


def _lower_tuple(recorder: GraphBuilder, value: TupleValue) -> tuple[Any, Any]:
    nodes, fakes = map(tuple, recorder._lower_all(map(recorder.context.realized, value.items)))
    if value.cls in (tuple, torch.Size):
        return nodes, fakes
    kept = hasattr(value.cls, "_fields") and is_generated(value.cls.__new__)  # torch.fx makes them anew by a call
    return (tuple.__new__(value.cls, nodes) if kept else nodes), tuple.__new__(value.cls, fakes)


def _lower_list(recorder: GraphBuilder, value: ListValue) -> tuple[Any, Any]:
    return recorder._lower_all(map(recorder.context.realized, value.items))


def _lower_dict(recorder: GraphBuilder, value: DictValue) -> tuple[Any, Any]:
    nodes, fakes = {}, {}
    for key, item in value.items(recorder.context):
        name = key.constant()
        nodes[name], fakes[name] = recorder.lower(item)
    return nodes, fakes


def _lower_slice(recorder: GraphBuilder, value: SliceValue) -> tuple[Any, Any]:
    pairs = [recorder.lower(part) for part in (value.start, value.stop, value.step)]
    return slice(*(pair[0] for pair in pairs)), slice(*(pair[1] for pair in pairs))


def _lower_class(recorder: GraphBuilder, value: ClassValue) -> tuple[Any, Any]:
    """A Python number type as a dtype, or a legacy tensor type by its name."""
    found: Any = _DTYPES.get(value.cls)
    if found is None and isinstance(value.cls, _LEGACY_TYPE):
        found = f"{value.cls.__module__}.{value.cls.__name__}"
    if found is None:
        raise unsupported("torch-argument", f"{value.describe(recorder.context)} as an argument of a torch function")
    return found, found


_DTYPES: dict[Any, Any] = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}
_LEGACY_TYPE = type(torch.FloatTensor)
_LOWER: dict[type, Callable[[GraphBuilder, Any], tuple[Any, Any]]] = {
    TensorValue: _lower_tensor,
    InputParameterValue: _lower_tensor,
    ConstantValue: _lower_constant,
    SourcedConstant: _lower_constant,
    SymbolicNumber: lambda recorder, value: recorder.numbers.lowered(value),
    RaggedSize: lower_ragged_size,
    TupleValue: _lower_tuple,
    VaryingTuple: _lower_tuple,
    ListValue: _lower_list,
    AppendOnlyList: _lower_list,
    DictValue: _lower_dict,
    SliceValue: _lower_slice,
    ClassValue: _lower_class,
}
