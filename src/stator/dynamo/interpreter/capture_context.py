"""The context of one capture, which every value receives: the capture's knowledge of the program, and the operations
that values ask of each other. Guards are in guard_log.py, object identity, class attributes and iteration in
object_model/, calls in calling.py and handlers/, bytecode in frame.py.
"""

from __future__ import annotations

import builtins
import operator
import sys
import types
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from stator.base.errors import Unsupported, UserPlace
from stator.base.signals import raised_by_signal_handler
from stator.dynamo.graph.graph_builder import GraphBuilder, NotATensorCall
from stator.dynamo.graph.mutations import MutationLog, warn_at
from stator.dynamo.graph.subgraphs import DeferredCode
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource, ReadSource, Source
from stator.dynamo.host.naming import class_name, full_name, is_plain_class
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions
from stator.dynamo.ir.reconstruct_ir import Recipe
from stator.dynamo.values import enum_members
from stator.dynamo.values.base import Handler, Lazy, NotConstant, Raised, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.canonical_constants import constant_of_code
from stator.dynamo.values.containers.iterators import IteratorValue
from stator.dynamo.values.containers.live_iterators import LiveIterator
from stator.dynamo.values.containers.mappings import AttributesValue, DictValue, FunctionAttributesValue
from stator.dynamo.values.containers.sequences import SequenceValue, TupleValue
from stator.dynamo.values.containers.slices import RangeValue, SliceValue
from stator.dynamo.values.deferred_text import number_text
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.functions import BoundMethodValue, BuiltinValue, FunctionValue
from stator.dynamo.values.objects import MISSING, ObjectValue, is_python_slot, lookup_in_class
from stator.dynamo.values.scopes import CellValue, GlobalScope
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, is_member, is_open, looked_up
from stator.dynamo.values.tensors.tensor import TensorValue, has_fixed_sizes, rely_on_methods
from stator.dynamo.values.tensors.tensor_methods import SPECIAL as SPECIAL_METHODS
from stator.graph.operators.attention_settings import CHOOSES_ATTENTION, SETTINGS, attention_settings

from . import wrapping
from .calling import builtin_call, class_call, function_call, tensor_method_call
from .frame import Frame
from .generators import GeneratorValue
from .guard_log import GuardLog
from .inlining import inline
from .library_overrides import LibraryOverride
from .long_loops import LoopLimit, counted
from .nested_break import left_together
from .object_model import binding, formatting, iteration, results
from .object_model.class_attributes import ClassAttributes
from .object_model.identity import Identities
from .torch_overrides import overriding
from .varying_loops import VaryingLoops

# values whose object may be reached by several paths without consequences
_WITHOUT_IDENTITY = (ConstantValue, SymbolicNumber, BoundMethodValue, TupleValue, SliceValue, RangeValue)
_WRAPPED_ANEW = (BoundMethodValue, SliceValue, RangeValue)
_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))  # dtypes of index tensors
_STATIC_STORES = ("_parameters", "_buffers")


class FrameCapture:
    """The state of one attempt to capture a frame."""

    def __init__(self, function: FunctionType, assumptions: CaptureAssumptions, dynamic: bool | None = None) -> None:
        self.function = function
        self.assumptions = assumptions
        self.asked_whether_compiling = False
        self.guards = GuardLog(self.place)
        self.classes = ClassAttributes(self.wrap)
        self.identities = Identities(self)
        self.frames: list[Frame] = []
        self.places: dict[tuple[str, int, str], UserPlace] = {}  # of all nodes: one object for a line
        self.owned_arguments: dict[str, Value] = {}  # arguments that may alone keep an object alive
        self.handled: list[Value] = []  # exceptions being handled, innermost last
        self.mutations = MutationLog()
        self.later: DeferredCode | None = None  # set while capture follows code that runs at another time
        self.wrapped: dict[int, Value] = {}
        self.real_cells: dict[int, CellValue] = {}
        self.generators: list[GeneratorValue] = []
        self.live_iterators: dict[int, LiveIterator] = {}
        self.recorder = GraphBuilder(self, assumptions, dynamic)
        self.entering_module = 0  # frames of a module call that the next frame skips
        self.changing = assumptions.seen_changes()
        self.unsteady = frozenset() if assumptions.relies_on_changes else assumptions.unsteady
        self.refused = assumptions.refused
        self.expected: set[Source] = set()  # sources of numbers that will change
        self.varying: set[Source] = set()  # sources of containers whose lengths will change
        self.numbers: dict[Any, Any] = {}  # symbolic numbers by their source or expression
        self.overlays: list[LibraryOverride] = []  # of running functions, innermost last
        self.devices: list[torch.device] = []  # of the torch.device blocks that captured code entered
        self.changed_dicts: set[int] = set()  # ids of existing dictionaries that captured code wrote to
        self.instance_dicts: dict[int, bool] = {}  # by id of an object's dictionary: has captured code written to it?
        self.draws: list[Recipe] = []  # of Python's random numbers, in order
        self.generators_drawn: dict[Source, Recipe] = {}  # torch generators that captured code draws from
        self.relies_on_error_modes = False  # NumPy's
        self._keep: list[Any] = []
        self._scopes: dict[tuple[int, int], GlobalScope] = {}
        self._code_constants: dict[int, tuple[Any, Value]] = {}
        self.loops = VaryingLoops(self, assumptions)
        self._loop_limit = LoopLimit()
        self.step = 0  # number of instructions followed in all frames
        self.stop_at = -1  # the step before which the graph ends
        self.outer_steps: list[int] = []  # steps of the outermost frame
        self.direct: Value | None = None  # callee of the current call, or the callee that it forwards to
        self.ended_by: Raised | None = None  # the program's own StopIteration at the end of an iterator
        self.broken: tuple[Unsupported, list[Frame]] | None = None  # the latest error and its frames

    # ---- operations with files of their own ----

    wrap_result = results.wrap_result
    is_constant_object = staticmethod(wrapping.is_constant_object)
    is_immutable = staticmethod(results.is_immutable)
    bind = binding.bind
    bind_class_method = binding.bind_class_method
    bind_to_class = binding.bind_to_class
    member_attribute = enum_members.member_attribute
    iterator = iteration.iterator
    next_item = iteration.next_item
    mapping_items = iteration.mapping_items
    pairs = iteration.pairs
    sorted_items = iteration.sorted_items
    format_value = formatting.format_value
    text_of = formatting.text_of
    number_text = number_text
    call_function = function_call
    call_class = class_call
    call_tensor_method = tensor_method_call

    # ---- places and errors ----

    def place(self) -> UserPlace:
        return self.frames[-1].place() if self.frames else UserPlace(self.function.__code__.co_filename, 0, "<module>")

    def warn_now(self, text: str) -> None:
        """Give a warning of a C++ operator, most of which come once in a process, at the user's line."""
        place = self.place()
        names = self.frames[-1].globals.names if self.frames else self.function.__globals__
        warn_at(text, UserWarning, place.filename, place.line, names)

    @property
    def in_the_call(self) -> bool:
        """Whether the followed code runs in the captured call itself, not later and not in a subgraph."""
        return self.later is None and self.recorder.graph is self.recorder.root

    def count_turn(self) -> None:
        """Count a backward jump. Raises Unsupported for long loops that add nothing to the graph."""
        self._loop_limit.count_turn(self.recorder.op_count, self.step)

    def count_call(self) -> None:
        """Count an inlined call. Raises Unsupported if many calls add nothing to the graph."""
        self._loop_limit.count_call(self.recorder.op_count, self.step)

    def end_step(self) -> int:
        """The step before which the graph has to end so that the current instruction runs natively."""
        return left_together(self.frames)[-1].began

    def raised(self, cls: type, message: str) -> Raised:
        """An exception of the captured program; the caller raises it."""
        return self.raised_with(cls, [ConstantValue(message)] if message else [])

    def raised_with(self, cls: type, args: list[Value]) -> Raised:
        error = ExceptionValue(cls, args)
        error.place = self.place()
        return Raised(error)

    def raised_from(self, error: BaseException) -> Raised:
        """The captured program's view of an exception that real code raised."""
        args = [ConstantValue(arg) for arg in error.args if wrapping.is_constant_object(arg)]
        return self.raised_with(type(error), args)  # type: ignore[arg-type]

    def stop_iteration(self, value: Value | None) -> Raised:
        return self.raised_with(StopIteration, [value] if value is not None and not self.is_none(value) else [])

    def end_of_items(self) -> Raised:
        """The StopIteration of `next` at the end of an iterator: the program's own, if the program raised one."""
        return self.stop_iteration(None) if self.ended_by is None else Raised(self.ended_by.value)

    def run_real(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run real Python code on constants. Its exceptions become the captured program's."""
        try:
            return function(*args, **(kwargs or {}))
        except Exception as error:
            if isinstance(error, Unsupported) or raised_by_signal_handler(error):
                raise
            raise self.raised_from(error) from error

    def rely_on_nothing_handled(self) -> None:
        """Rely on no caller handling an exception when the frame starts."""
        if sys.exception() is not None:
            raise unsupported("raise", "asking for an exception that a caller may be handling")
        self.guard(ReadSource(sys.exception), GuardKind.EQUALS, None)

    # ---- guards ----

    def guard(self, source: Source, kind: GuardKind, expected: Any) -> None:
        self.guards.add(source, kind, expected)

    def guard_what_was_found(self) -> None:
        """Add the guards that only the end of the capture knows: presences and class lookups."""
        for iterator in self.live_iterators.values():
            iterator.rely_on_items(self)
        self.guards.add_presences()
        self.guards.add_lookups(self.classes.lookups())

    # ---- wrapping ----

    def wrap(self, obj: Any, source: Source | None) -> Value:
        """The value of a real object found at `source`. One object has one value."""
        obj, source = wrapping.look_through_tags(obj, source)
        known = self.wrapped.get(id(obj))
        if known is not None:
            self.identities.found_again(known, obj, source)
            return known
        if not is_plain_class(type(obj)) or (issubclass(type(obj), type) and not is_plain_class(obj)):
            raise unsupported("special-method", "a class whose metaclass overrides lookup, hash or comparison")
        value = wrapping.wrapper_of(type(obj))(self, obj, source)
        if not isinstance(value, _WITHOUT_IDENTITY):
            self.wrapped[id(obj)] = value
            self._keep.append(obj)
        if source is not None and (value.source is None or isinstance(value, _WRAPPED_ANEW)):
            self.identities.found(value, obj, source)
        return value

    def wrap_member(self, obj: Any, source: Source, store: str) -> Value:
        """A parameter, buffer or submodule. An identity guard fixes parameters and buffers that do not change."""
        value = self.wrap(obj, source)
        tensor = isinstance(value, TensorValue) and store in _STATIC_STORES and has_fixed_sizes(value.fake)
        if tensor and not value.is_static and value.source not in self.changing:  # type: ignore[attr-defined]
            self.guards.fix(value)
            value.is_static = True  # type: ignore[attr-defined]
        return value

    def unfix_member(self, value: Value | None) -> None:
        """The program replaces this buffer, so each call will find another tensor: the buffer is not static."""
        if value is not None and self.guards.unfix(value):
            assert isinstance(value, TensorValue)
            value.is_static = False
            self.recorder.unfix_input(value)

    def lazy(self, obj: Any, source: Source | None) -> Value:
        return self.known(obj) if source is None else Lazy(obj, source)

    def known(self, obj: Any, source: Source | None = None) -> Value:
        """A real object that needs no guard, because fixed code leads to it: a class, function, module or constant."""
        if type(obj) is tuple:
            return TupleValue([self.known(item) for item in obj])
        if wrapping.is_constant_object(obj):
            return ConstantValue(obj)
        found = self.wrapped.get(id(obj))
        if found is not None:
            return found
        if isinstance(obj, type):
            return self.wrap(obj, ConstantSource(full_name(obj), obj))
        if isinstance(obj, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
            name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", "object")
            return self.wrap(obj, ConstantSource(f"{getattr(obj, '__module__', '')}.{name}", obj))
        if isinstance(obj, (tuple, slice, frozenset)) or source is not None:
            return self.wrap(obj, source)
        return self.wrap(obj, ConstantSource(f"<{class_name(type(obj))}>", obj))

    def constant(self, obj: Any) -> ConstantValue:
        return ConstantValue(obj)

    def code_constant(self, obj: Any) -> Value:
        """A constant of a code object."""
        found = self._code_constants.get(id(obj))
        if found is None:
            found = self._code_constants[id(obj)] = (obj, constant_of_code(self, obj))
        return found[1]

    def realized(self, value: Value) -> Value:
        return value.realize(self) if type(value) is Lazy else value

    def scope_of(
        self, names: dict[str, Any], source: Source | None = None, functions: dict[str, Any] = builtins.__dict__
    ) -> GlobalScope:
        """`source`: the source of the dictionary; None for a module's dictionary, which the module's name gives.
        `functions`: the builtins of the scope, which sandboxes and named tuples replace."""
        key = (id(names), id(functions))
        found = self._scopes.get(key)
        if found is None:
            own = names is self.function.__globals__
            found = self._scopes[key] = GlobalScope(names, own, source, functions)
        return found

    # ---- classes ----

    def class_lookup(self, cls: type, name: str) -> Any:
        return self.classes.lookup(cls, name)

    def class_value(self, cls: type, name: str) -> Value:
        return self.classes.value(cls, name)

    def class_function(self, cls: type, name: str, function: Any) -> Value:
        return self.classes.function(cls, name, function)

    # ---- facts about values ----

    def constant_of(self, value: Value, what: str) -> Any:
        try:
            return value.constant()
        except NotConstant:
            if isinstance(value, SequenceValue) and self.realize_items(value):
                return self.constant_of(value, what)
            raise unsupported("not-constant", f"{what} must be a constant, not {value.describe(self)}") from None

    def realize_items(self, value: SequenceValue) -> bool:
        """Realize the items that are still lazy. Returns whether there were such items."""
        found = False
        for at, item in enumerate(value.items):
            if type(item) is Lazy:
                value.items[at] = item.realize(self)
                found = True
            if isinstance(value.items[at], SequenceValue):
                found |= self.realize_items(value.items[at])  # type: ignore[arg-type]
        return found

    def real_of(self, value: Value, what: str) -> Any:
        try:
            return value.real()
        except NotConstant:
            return self.constant_of(value, what)

    def length_of(self, result: Value) -> int:
        """The length that `__len__` returned."""
        length = self.constant_of(result, "a length")
        if type(length) is not int or not 0 <= length <= sys.maxsize:
            raise unsupported("special-method", "__len__ that returns no length")
        return length

    def index_of(self, value: Value) -> int:
        if isinstance(value, ObjectValue):
            method = value.special(self, "__index__")
            if method is not None:
                value = method.call(self, [], {})
                if type(self.constant_of(value, "an index")) is not int:
                    raise unsupported("special-method", "__index__ that returns no plain int")
        if isinstance(value, TensorValue) and value.fake.dtype in _WHOLE:
            known = self.recorder.known_number(value.fake)
            if known is not None:
                return known
        return self.run_real(operator.index, (self.constant_of(value, "an index"),))

    def is_none(self, value: Value) -> bool:
        return isinstance(value, ConstantValue) and value.value is None

    def is_exception(self, value: Value) -> bool:
        return isinstance(value, ExceptionValue)

    def truth(self, value: Value) -> bool:
        return value.truth(self)

    def override_truth(self, value: ObjectValue | ExceptionValue, plain: bool | None) -> bool:
        """Truth through __bool__ or __len__ of the class, else `plain`."""
        for name in ("__bool__", "__len__"):
            method = value.special(self, name)
            if method is not None:
                result = method.call(self, [], {})
                if result.python_type(self) is not (bool if name == "__bool__" else int):
                    raise unsupported("special-method", f"{name} of {value.describe(self)} returns another type")
                if name == "__len__":
                    return self.length_of(result) > 0
                return self.truth(result)
            if type(value) is ObjectValue and self.class_lookup(value.cls, name) is not MISSING:
                raise unsupported("special-method", f"{name} of {value.describe(self)}")
        return value.length(self) > 0 if plain is None else plain

    def same(self, left: Value, right: Value) -> bool:
        return self.identities.same(left, right)

    def identical(self, left: Value, right: Value) -> bool:
        return self.identities.identical(left, right)

    def equal(self, left: Value, right: Value) -> bool:
        return self.truth(self.compare(operator.eq, left, right))

    def same_or_equal(self, left: Value, right: Value) -> bool:
        """Whether containers count these items as equal: one object, or equal. Asking whether a number is the same
        object makes a constant of it."""
        numbers = SymbolicNumber in (type(left), type(right))
        return left is right or (not numbers and self.same(left, right)) or self.equal(left, right)

    # ---- operations ----

    def get_attr(self, owner: Value, name: str) -> Value:
        return owner.get_attr(self, name)

    def get_item(self, owner: Value, key: Value) -> Value:
        if is_open(key) and key.is_known:
            found = looked_up(self, owner, key)
            if found is not None:
                return found
        return owner.get_item(self, key)

    def contains(self, container: Value, item: Value) -> bool:
        if is_open(item) and item.is_known:
            found = is_member(self, container, item)
            if found is not None:
                return found
        return container.contains(self, item)

    def unary(self, function: Callable[..., Any], value: Value) -> Value:
        return self.call(self.known(function), [value], {})

    def binary(self, function: Callable[..., Any], left: Value, right: Value) -> Value:
        if type(left) is ConstantValue and type(right) is ConstantValue:
            return self.wrap_result(self.run_real(function, (left.value, right.value)), "the result of an operator")
        return builtin_call(self, function, [left, right], {})

    compare = binary

    def iterate(self, value: Value) -> Iterator[Value]:
        """The realized items of any iterable."""
        return map(self.realized, value.iterate(self))

    def listed(self, value: Value) -> Iterator[Value]:
        """The items as list(), tuple() and stars take them: they also ask for the length."""
        return counted(map(self.realized, iteration.listed(self, value)))

    def make_iterator(self, items: Iterator[Value]) -> IteratorValue:
        return IteratorValue(items, made_at=self.end_step())

    def instance_dict_view(self, owner: ObjectValue) -> Value:
        if any(is_python_slot(found) for base in owner.cls.__mro__ for found in vars(base).values()):
            raise unsupported("attribute", f"__dict__ of {owner.describe(self)}, which has __slots__, too")
        return AttributesValue(owner)

    def dict_of(self, flat: list[Value]) -> DictValue:
        """A new dictionary from alternating keys and values."""
        made = DictValue({})
        for at in range(0, len(flat), 2):
            made.put(self, flat[at], flat[at + 1])
        return made

    def tuple_of(self, items: list[Value]) -> TupleValue:
        return TupleValue(list(items))

    def function_dict(self, function: FunctionValue) -> DictValue:
        return FunctionAttributesValue(self, function)

    # ---- calls ----

    def call(self, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return callee.call(self, args, kwargs)

    def enters(self, callee: Value) -> None:
        """The current call instruction calls `callee` and pushes its result unchanged."""
        self.direct = callee

    def enters_through(self, via: Value, callee: Value) -> None:
        """`via` forwards the current call to `callee` and returns its result unchanged."""
        if self.direct is via:
            self.direct = callee

    def inline(
        self, function: FunctionValue, args: list[Value], kwargs: dict[str, Value], *, called: bool = False
    ) -> Value:
        """`called`: the program calls the function itself; the call is not part of another operation."""
        called = called and self.direct is function
        self.direct = None
        return inline(self, function, args, kwargs, called=called)

    def call_builtin(self, callee: BuiltinValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return builtin_call(self, callee.fn, args, kwargs)

    def call_handler(self, handler: Handler, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a registered handler. Raises Unsupported for arguments that do not fit the handler."""
        try:
            return handler(self, *args, **kwargs) or ConstantValue(None)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise unsupported("call-builtin", f"arguments of {handler.__name__.strip('_')}: {error}") from error
            raise

    def record_function(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        special = SPECIAL_METHODS.get(function)
        if special is not None:
            rely_on_methods(self, special, args)
        if function in CHOOSES_ATTENTION:
            self._rely_on_attention_settings()
        operands = self.overlays[-1].operands if self.overlays else None
        if operands is not None:
            args = operands(self, function, args)
        try:
            return self.recorder.record("call_function", function, function, args, kwargs)
        except NotATensorCall as call:
            return self.wrap_result(call.result, f"the result of {getattr(function, '__name__', function)}")

    def _rely_on_attention_settings(self) -> None:
        """The traced graph will name the kernel that ATen chooses by the present settings."""
        made = self.recorder.backend_flags_set
        if made.isdisjoint(read for read, _ in SETTINGS):
            self.guard(CallSource(attention_settings), GuardKind.EQUALS, attention_settings())
            return
        for read, _ in SETTINGS:
            if read not in made:
                self.guard(CallSource(read), GuardKind.EQUALS, read())

    def record_method(self, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        def run(owner: Any, *rest: Any, **named: Any) -> Any:
            return getattr(owner, name)(*rest, **named)

        if overriding(self, args, kwargs):
            return self.call(self.known(lookup_in_class(torch.Tensor, name)), args, kwargs)
        rely_on_methods(self, (name,), args)
        try:
            return self.recorder.record("call_method", name, run, args, kwargs)
        except NotATensorCall as call:
            return self.wrap_result(call.result, f"the result of Tensor.{name}")
