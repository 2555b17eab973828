"""The context of one capture: guards, wrapping, the graph, the mutation log, and the operations on values that are not
the business of one kind of value.

Frames step through bytecode in frame.py; what functions do when called is registered in calls/.
"""

from __future__ import annotations

import enum
import functools
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from stator.base.errors import Unsupported, UserPlace

from . import binding, formatting, wrapping
from .calling import builtin_call, class_call, function_call, tensor_methods
from .changing import changing_sources
from .frame import Frame
from .guard import Guard, GuardKind, Lookup, TensorGuard
from .inlining import inline
from .mutations import MutationLog
from .plain import is_number, is_of_program, is_truth, numpy_numbers, shown
from .recipe import Recipe
from .recorder import NotATensorCall, Recorder
from .resume import Offset
from .scopes import GlobalScope
from .source import (
    AttrSource,
    ConstantSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    ModuleGlobalSource,
    ReadSource,
    Source,
)
from .subgraphs import Later
from .values.base import Lazy, NotConstant, Raised, Value, unsupported
from .values.cells import CellValue
from .values.classes import ClassValue
from .values.constants import ConstantValue, LastInstruction, SourcedConstant
from .values.exceptions import ExceptionValue
from .values.functions import BoundMethodValue, BuiltinValue, FunctionValue
from .values.generators import GeneratorValue
from .values.iterators import IteratorValue, stop_aware
from .values.live_iterators import LiveIterator
from .values.mappings import AttributesValue, DictValue, FunctionAttributesValue
from .values.numbers import is_changing, is_member, looked_up
from .values.objects import MISSING, ObjectValue, lookup_in_class, lookup_record, owner_in_class
from .values.sequences import ListValue, TupleValue
from .values.sets import SetValue
from .values.slices import RangeValue, SliceValue
from .values.tensors import REFUSED, TensorValue

_OF_TYPE = frozenset(("__dict__", "__doc__", "__name__", "__qualname__", "__module__", "__bases__", "__mro__"))
_STATIC_STORES = ("_parameters", "_buffers")


class Tracer:
    """State of one capture of one frame; thrown away when the capture restarts."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.guards: list[Guard] = []
        self.frames: list[Frame] = []
        self.given: dict[str, Value] = {}  # arguments that may be all that keeps an object alive
        self.handled: list[Value] = []  # exceptions being handled, innermost last
        self.mutations = MutationLog()
        self.later: Later | None = None  # set while code is followed that runs at another time
        self.wrapped: dict[int, Value] = {}
        self.real_cells: dict[int, CellValue] = {}
        self.generators: list[GeneratorValue] = []
        self.live_iterators: dict[int, LiveIterator] = {}
        self.recorder = Recorder(self)
        self.entering_module = False  # the next frame is the forward of a module that is called
        self.changing = changing_sources()
        self.expected: set[Source] = set()  # places whose numbers are known to change before they do
        self.numbers: dict[Any, Any] = {}  # NumberValues by what they are read or computed from
        self.overlaid: list[tuple[DictValue, Any, Value]] = []  # entries that read otherwise for a while
        self.signatures: dict[tuple[Any, bool], Any] = {}  # of inspect.signature: (function, bound) -> Signature
        self.devices: list[torch.device] = []  # of the blocks of torch.device that were entered
        self.draws: list[Recipe] = []  # of Python's random numbers, in order
        self.cached_calls: dict[Any, Value] = {}  # of functions under lru_cache, on constants
        self.counted_calls: list[Recipe] = []
        self.generators_drawn: dict[Source, Recipe] = {}  # from which generators
        self.array_elements: set[Source] = set()  # numbers that are read from arrays around the graph
        self.relies_on_error_modes = False  # of NumPy
        self.unlike_layouts = False  # NumPy may lay out arrays computed from now on in another way than torch
        self._stands: dict[int, tuple[Value, Any, Source]] = {}  # where values were found that do not say it themselves
        self._keep: list[Any] = []
        self._scopes: dict[int, GlobalScope] = {}
        self._class_values: dict[tuple[type, str], Value] = {}
        self._class_lookups: dict[tuple[type, str], Any] = {}
        self._code_constants: dict[int, tuple[Any, Value]] = {}
        self._guarded: set[tuple[int, str]] = set()
        self._fixed: dict[int, Guard] = {}  # identity guards of parameters and buffers that only make them static
        self._present: list[tuple[SourcedConstant, UserPlace]] = []
        self._global_hooks: bool | None = None
        self.followed = 0  # instructions of frames that were left
        # operations in the graph, turns of loops since there were so many, and instructions followed before that
        self._turns = (0, 0, 0)

    # ---- places and errors ----

    def place(self) -> UserPlace:
        return self.frames[-1].place() if self.frames else UserPlace(self.function.__code__.co_filename, 0, "<module>")

    def count_turn(self) -> None:
        """Called for each jump backwards. A loop that makes no graph is followed for a while only: it runs
        as quickly by itself, and following it would take a thousand times as long."""
        instructions = self.followed + self.frames[-1].step
        if self.recorder.op_count != self._turns[0]:
            self._turns = (self.recorder.op_count, 0, instructions)
        self._turns = (self._turns[0], self._turns[1] + 1, min(self._turns[2], instructions))
        if self._turns[1] > _MOST_TURNS:
            raise unsupported("long-loop", f"more than {_MOST_TURNS} turns of loops without an operation on tensors")
        if instructions - self._turns[2] > _MOST_INSTRUCTIONS:
            raise unsupported("long-loop", f"{_MOST_INSTRUCTIONS} instructions without an operation on tensors")

    def outer_step(self) -> int:
        """The step that the outermost frame is taking."""
        return self.frames[0].step - 1

    def raised(self, cls: type, message: str) -> Raised:
        """An exception of the captured program, to be raised by the caller."""
        return self.raised_with(cls, [ConstantValue(message)] if message else [])

    def raised_with(self, cls: type, args: list[Value]) -> Raised:
        error = ExceptionValue(cls, args)
        error.place = self.place()
        error.raised_while(self.handled)
        return Raised(error)

    def raised_from(self, error: BaseException) -> Raised:
        """The captured program's view of an exception that real code raised."""
        args = [ConstantValue(arg) for arg in error.args if wrapping.is_constant_object(arg)]
        return self.raised_with(type(error), args)  # type: ignore[arg-type]

    def stop_iteration(self, value: Value | None) -> Raised:
        return self.raised_with(StopIteration, [value] if value is not None and not self.is_none(value) else [])

    def run_real(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run real Python code on constants; what it raises is raised in the captured program."""
        try:
            return function(*args, **(kwargs or {}))
        except Unsupported:
            raise
        except Exception as error:
            raise self.raised_from(error) from error

    def rely_on_nothing_handled(self) -> None:
        """The frame was not called while an exception was being handled, as far as it can tell from its own code."""
        if sys.exception() is not None:
            raise unsupported("raise", "asking for an exception that a caller may be handling")
        self.guard(ReadSource(sys.exception), GuardKind.EQUALS, None)

    # ---- guards ----

    def guard(self, source: Source, kind: GuardKind, expected: Any) -> None:
        if not isinstance(source, ConstantSource):
            self.guards.append(Guard(source, kind, expected, self.place()))

    def guard_tensor(self, source: Source, tensor: torch.Tensor) -> None:
        expected = TensorGuard(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tuple(tensor.shape),
            tuple(tensor.stride()) if tensor.layout is torch.strided else (),
            tensor.requires_grad,
        )
        self.guard(source, GuardKind.TENSOR, expected)

    def rely_on_presence(self, value: SourcedConstant) -> None:
        """Rely on an entry, name or attribute being there, also when the constant in it is never looked at."""
        self._present.append((value, self.place()))

    def guard_what_was_found(self) -> None:
        """The guards that are known when the capture ends: for presences, and for lookups in classes."""
        for iterator in self.live_iterators.values():
            iterator.rely_on_items(self)
        for value, place in self._present:
            if not value.guarded and not isinstance(value.source, ConstantSource):
                self.guards.append(Guard(value.source, GuardKind.TYPE, type(value.peek()), place))  # type: ignore[arg-type]
        lookups: dict[type, list[Lookup]] = {}
        for (cls, name), found in self._class_lookups.items():
            if cls.__flags__ & _IMMUTABLE_TYPE == 0:
                lookups.setdefault(cls, []).append(lookup_record(cls, name, found))
        for cls, made in lookups.items():
            source = ConstantSource(f"{cls.__module__}.{cls.__qualname__}", cls)
            self.guards.append(Guard(source, GuardKind.LOOKUPS, tuple(made)))

    def guard_no_attribute(self, source: Source, name: str) -> None:
        self.guard(source, GuardKind.ABSENT, name)

    def guard_keys_once(self, owner: ObjectValue, source: Source | None, real: dict[Any, Any]) -> None:
        if source is not None and (id(owner), "keys") not in self._guarded:
            self._guarded.add((id(owner), "keys"))
            self.guard_dict_keys(source, real)

    def guard_dict_keys(self, source: Source, real: dict[Any, Any]) -> bool:
        """Rely on all keys in order. False: on their number only, because they are objects compared by themselves."""
        keys = tuple(dict.keys(real))
        plain = all(map(self.is_key_constant, keys))
        self.guard(source, *((GuardKind.DICT_KEYS, keys) if plain else (GuardKind.LENGTH, len(keys))))
        return plain

    def is_key_constant(self, key: Any) -> bool:
        return wrapping.is_constant_object(key) or isinstance(
            key, (type, types.FunctionType, types.BuiltinFunctionType)
        )

    def guard_identity_once(self, value: Value) -> None:
        """Rely on the value being the very object that it is now."""
        self._fixed.pop(id(value), None)
        if value.source is not None and (id(value), "is") not in self._guarded:
            self._guarded.add((id(value), "is"))
            self.guard(value.source, GuardKind.IS, value.real())

    def guard_length_once(self, owner: ObjectValue, source: Source, length: int) -> None:
        if (id(owner), "len") not in self._guarded:
            self._guarded.add((id(owner), "len"))
            self.guard(source, GuardKind.LENGTH, length)

    def is_fixed(self, source: Source) -> bool:
        """Whether a place is expected to hold the very same function from call to call: module and class level."""
        return isinstance(source, (GlobalSource, ModuleGlobalSource)) or (
            isinstance(source, AttrSource) and isinstance(source.base, ConstantSource)
        )

    def global_module_hooks(self) -> bool:
        if self._global_hooks is None:
            module = torch.nn.modules.module
            names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
            self._global_hooks = any(getattr(module, f"_global_{name}") for name in names)
            if not self._global_hooks:
                for name in names:
                    source = ModuleGlobalSource(module.__name__, f"_global_{name}")
                    self.guard(source, GuardKind.LENGTH, 0)
        return self._global_hooks

    # ---- wrapping ----

    def wrap(self, obj: Any, source: Source | None) -> Value:
        """The value of a real object found at `source`; the same object gives the same value."""
        known = self.wrapped.get(id(obj))
        if known is not None:
            self._reached_again(known, obj, source)
            return known
        value = wrapping.wrapper_of(type(obj))(self, obj, source)
        if not isinstance(value, _WITHOUT_IDENTITY):
            self.wrapped[id(obj)] = value
            self._keep.append(obj)
        if source is not None and (value.source is None or isinstance(value, _WRAPPED_ANEW)):
            self._stands[id(value)] = value, obj, source
        return value

    def _reached_again(self, known: Value, obj: Any, source: Source | None) -> None:
        if source is None or known.source is source:
            return
        if known.source is None:
            found = self._stands.get(id(known))
            if found is None:
                self.guard(source, GuardKind.IS, obj)
            elif found[2] != source:
                self.guard(source, GuardKind.SAME, found[2])
        elif known.source != source:
            fixed = isinstance(known, (ClassValue, BuiltinValue)) or (isinstance(known, FunctionValue) and known.fixed)
            if fixed or isinstance(known.source, ConstantSource) or isinstance(obj, types.ModuleType):
                self.guard(source, GuardKind.IS, obj)
            else:
                self.guard(source, GuardKind.SAME, known.source)

    def wrap_member(self, obj: Any, source: Source, store: str) -> Value:
        """A parameter, buffer or submodule; the first two are fixed by identity."""
        value = self.wrap(obj, source)
        if isinstance(value, TensorValue) and store in _STATIC_STORES and not value.is_static:
            known = len(self.guards)
            self.guard_identity_once(value)
            if len(self.guards) > known:
                self._fixed[id(value)] = self.guards[-1]
            value.is_static = True
        return value

    def unfix_member(self, value: Value | None) -> None:
        """The program puts another tensor in the place of this buffer: so it is another one in each call."""
        guard = None if value is None else self._fixed.pop(id(value), None)
        if guard is None:
            return
        assert isinstance(value, TensorValue)
        self.guards = [kept for kept in self.guards if kept is not guard]
        self._guarded.discard((id(value), "is"))
        value.is_static = False
        self.recorder.unfix_input(value)

    def lazy(self, obj: Any, source: Source | None) -> Value:
        return self.known(obj) if source is None else Lazy(obj, source)

    def known(self, obj: Any, source: Source | None = None) -> Value:
        """A real object that needs no guard: a class, a function, a module, a constant, reached from fixed code."""
        if type(obj) is tuple:
            return TupleValue([self.known(item) for item in obj])
        if wrapping.is_constant_object(obj):
            return ConstantValue(obj)
        found = self.wrapped.get(id(obj))
        if found is not None:
            return found
        if isinstance(obj, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
            name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", "object")
            return self.wrap(obj, ConstantSource(f"{getattr(obj, '__module__', '')}.{name}", obj))
        if isinstance(obj, (tuple, slice, frozenset)) or source is not None:
            return self.wrap(obj, source)
        return self.wrap(obj, ConstantSource(f"<{type(obj).__name__}>", obj))

    def wrap_result(self, obj: Any, what: str) -> Value:
        """A fresh object that real code computed from constants."""
        text_or_number = isinstance(obj, (int, float, str)) and not is_of_program(type(obj))
        constant = wrapping.is_constant_object(obj) and type(obj) is not tuple
        if constant or text_or_number or is_number(obj) or is_truth(obj):
            return ConstantValue(obj)
        maker = _RESULTS.get(type(obj))
        if maker is not None:
            return maker(self, obj, what)
        if isinstance(obj, tuple):
            return TupleValue([self.wrap_result(item, what) for item in obj], cls=type(obj))
        if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, *_IDENTITY_TYPES)):
            return self.known(obj)
        raise unsupported("result", f"{what} is a {type(obj).__name__}, which capture cannot hold")

    def constant(self, obj: Any) -> ConstantValue:
        return ConstantValue(obj)

    def code_constant(self, obj: Any) -> Value:
        """A constant of a code object."""
        found = self._code_constants.get(id(obj))
        if found is None:
            value = LastInstruction(obj.index) if type(obj) is Offset else self.known(obj)
            found = self._code_constants[id(obj)] = (obj, value)
        return found[1]

    def realized(self, value: Value) -> Value:
        return value.realize(self) if type(value) is Lazy else value

    def is_constant_object(self, obj: Any) -> bool:
        return wrapping.is_constant_object(obj)

    def is_immutable(self, obj: Any) -> bool:
        """Objects that are compared by identity and never change: guarded by IS, their facts folded."""
        return issubclass(type(obj), _IDENTITY_TYPES)  # the class of a weak proxy is another than it says

    def scope_of(self, names: dict[str, Any], function_source: Source | None = None) -> GlobalScope:
        found = self._scopes.get(id(names))
        if found is None:
            own = names is self.function.__globals__
            source = AttrSource(function_source, "__globals__") if function_source is not None else None
            found = self._scopes[id(names)] = GlobalScope(names, own, source)
        return found

    # ---- classes ----

    def class_lookup(self, cls: type, name: str) -> Any:
        key = (cls, name)
        found = self._class_lookups.get(key)
        if found is None:
            found = self._class_lookups[key] = lookup_in_class(cls, name)
        return found

    def class_value(self, cls: type, name: str) -> Value:
        """A class attribute as it stands in the class dictionary, guarded there."""
        owner = owner_in_class(cls, name)
        if owner is None:
            raise unsupported("attribute", f"{name!r} of {cls.__qualname__}, which is gone by now")
        key = (owner, name)
        found = self._class_values.get(key)
        if found is None:
            raw = owner.__dict__[name]
            of_class = ConstantSource(f"{owner.__module__}.{owner.__qualname__}", owner)
            source: Source = AttrSource(of_class, name)
            if hasattr(type(raw), "__get__"):  # getattr would give what it makes of itself
                source = ItemSource(InstanceDictSource(of_class), name)
            found = self._class_values[key] = self.wrap(raw, source)
        return found

    def class_function(self, cls: type, name: str, function: Any) -> Value:
        """The Python function behind a class attribute (a plain one, or inside a property or static method)."""
        key = (cls, f"{name}()")
        found = self._class_values.get(key)
        if found is None or getattr(found, "fn", function) is not function:
            owner = owner_in_class(cls, name) or cls
            of_class = ConstantSource(f"{owner.__module__}.{owner.__qualname__}", owner)
            source: Source = AttrSource(of_class, name)
            raw = owner.__dict__.get(name)
            if name in _OF_TYPE:  # getattr would give what `type` says of the class
                source = ItemSource(InstanceDictSource(of_class), name)
            if isinstance(raw, property):
                part = next(part for part in ("fget", "fset", "fdel") if getattr(raw, part) is function)
                source = AttrSource(source, part)
            elif isinstance(raw, functools.cached_property):
                source = AttrSource(source, "func")
            elif isinstance(raw, classmethod):
                source = AttrSource(source, "__func__")
            found = self._class_values[key] = self.wrap(function, source)
        return found

    def bind(self, owner: Value, cls: type, name: str, raw: Any) -> Value:
        """`raw`, found in the class dictionary, as an attribute of the instance `owner` (descriptor protocol)."""
        return binding.bind(self, owner, cls, name, raw)

    def bind_to_class(self, cls_value: ClassValue, name: str, raw: Any) -> Value:
        """`raw` as an attribute of the class itself."""
        return binding.bind_to_class(self, cls_value, name, raw)

    # ---- facts about values ----

    def constant_of(self, value: Value, what: str) -> Any:
        try:
            return value.constant()
        except NotConstant:
            raise unsupported("not-constant", f"{what} must be a constant, not {value.describe(self)}") from None

    def real_of(self, value: Value, what: str) -> Any:
        try:
            return value.real()
        except NotConstant:
            return self.constant_of(value, what)

    def length_of(self, result: Value) -> int:
        """What `__len__` returned."""
        length = self.constant_of(result, "a length")
        if type(length) is not int or length < 0:
            raise unsupported("special-method", "__len__ that returns no length")
        return length

    def index_of(self, value: Value) -> int:
        if isinstance(value, ObjectValue):
            method = value.special(self, "__index__")
            if method is not None:
                value = method.call(self, [], {})
                if type(self.constant_of(value, "an index")) is not int:
                    raise unsupported("special-method", "__index__ that returns no plain int")
        return self.run_real(operator.index, (self.constant_of(value, "an index"),))

    def is_none(self, value: Value) -> bool:
        return isinstance(value, ConstantValue) and not is_changing(value) and value.value is None

    def is_exception(self, value: Value) -> bool:
        return isinstance(value, ExceptionValue)

    def truth(self, value: Value) -> bool:
        return value.truth(self)

    def override_truth(self, value: ObjectValue, plain: bool | None) -> bool:
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
            if type(value) is ObjectValue and self.class_lookup(value.cls, name) not in (MISSING, None):
                raise unsupported("special-method", f"{name} of {value.describe(self)}")
        return value.length(self) > 0 if plain is None else plain

    def same(self, left: Value, right: Value) -> bool:
        """`left is right`."""
        if left is right:
            return True
        if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
            if (is_changing(left) or is_changing(right)) and left.python_type(self) is not right.python_type(self):
                return False
            if _is_no_number(left.value) and _is_no_number(right.value):
                self._guard_identity_of(left, right)
            return left.value is right.value
        if isinstance(left, BuiltinValue | ClassValue) and isinstance(right, BuiltinValue | ClassValue):
            return left.real() is right.real()
        one, other = self._found_at(left), self._found_at(right)
        if one is None or other is None:
            return False  # made in the frame, and that is known of both
        for value in (left, right):
            if isinstance(value, SourcedConstant):
                self.rely_on_presence(value)
        if self._type_of(left) is not self._type_of(right):
            return False
        return self._related(*one, *other)

    def _type_of(self, value: Value) -> type:
        return type(value.peek()) if isinstance(value, SourcedConstant) else value.python_type(self)

    def _found_at(self, value: Value) -> tuple[Any, Source] | None:
        """What tells a value's object from others, and where it stands at entry; None if it was made in the frame."""
        found = self._stands.get(id(value))
        if found is not None:
            return found[1:]
        if value.source is None:
            return None
        if isinstance(value, TupleValue) and value.obj is not None:  # tuples are wrapped anew for each path
            return value.obj, value.source
        return (value._value if isinstance(value, ConstantValue) else value), value.source

    def _related(self, one: Any, at: Source, other: Any, other_at: Source) -> bool:
        """Whether two objects from outside of the frame are one, which is then relied on."""
        if isinstance(at, ConstantSource):
            at, other_at = other_at, at
        self.guard(at, GuardKind.SAME if one is other else GuardKind.DISTINCT, other_at)
        return one is other

    def _guard_identity_of(self, left: ConstantValue, right: ConstantValue) -> None:
        """Rely on two equal constants being one object, or two."""
        one, other = (
            found[1] if (found := self._found_at(value)) else ConstantSource(shown(value.value), value.value)
            for value in (left, right)
        )
        self._related(left.value, one, right.value, other)

    def identical(self, left: Value, right: Value) -> bool:
        """`left is right`, as the program asks it: exact also for equal constants and equal tuples."""
        if isinstance(left, TupleValue) and isinstance(right, TupleValue) and left is not right:
            may_be = not (left.source and right.source) and len(left.items) == len(right.items)
            if may_be and (left.items or left.cls is not tuple or right.cls is not tuple):
                raise unsupported("identity", "whether two equal tuples are one object")
            if may_be:
                return True
        if left is not right and isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
            same = self.same(left, right)
            alike = type(left.value) is type(right.value) and _may_be_several(left.value)
            if alike and left.value == right.value:
                self._guard_identity_of(left, right)
            return same
        return self.same(left, right)

    def equal(self, left: Value, right: Value) -> bool:
        return self.truth(self.compare(operator.eq, left, right))

    # ---- operations ----

    def get_attr(self, owner: Value, name: str) -> Value:
        return owner.get_attr(self, name)

    def get_item(self, owner: Value, key: Value) -> Value:
        if is_changing(key):
            found = looked_up(self, owner, key)  # type: ignore[arg-type]
            if found is not None:
                return found
        return owner.get_item(self, key)

    def contains(self, container: Value, item: Value) -> bool:
        if is_changing(item):
            found = is_member(self, container, item)  # type: ignore[arg-type]
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
        """The items of any iterable, realised, as the captured program would see them."""
        return map(self.realized, value.iterate(self))

    def iterator(self, value: Value) -> Value:
        made = value.iterator(self)
        if isinstance(made, (IteratorValue, GeneratorValue, ObjectValue)):
            return made
        raise unsupported("iteration", f"__iter__ gave {made.describe(self)}")

    def pair(self, one: Value, other: Value) -> Value:
        return TupleValue([one, other])

    def row(self, items: list[Value]) -> Value:
        return TupleValue(items)

    def make_iterator(self, items: Iterator[Value], pure: bool = True) -> IteratorValue:
        return IteratorValue(items, pure, made_at=self.outer_step())

    def next_item(self, iterator: Value) -> Value | None:
        """The next item, or None at the end."""
        if isinstance(iterator, (IteratorValue, GeneratorValue)):
            return iterator.next_item(self)
        return next(stop_aware(self, self.get_attr(iterator, "__next__")), None)

    def may_iterate(self, value: Value) -> bool:
        kind = value.python_type(self)
        return any(self.class_lookup(kind, name) is not MISSING for name in ("__iter__", "__getitem__"))

    def mapping_items(self, value: Value) -> list[tuple[Value, Value]]:
        """Key and value pairs of a mapping, as `**mapping` takes them."""
        if isinstance(value, DictValue) and value.special(self, "keys") is None:
            return list(value.items(self))
        if self.class_lookup(value.python_type(self), "keys") is MISSING:
            raise unsupported("call", f"{value.describe(self)} in the place of a mapping")
        keys = self.call(self.get_attr(value, "keys"), [], {})
        return [(key, self.get_item(value, key)) for key in self.iterate(keys)]

    def pairs(self, value: Value) -> Iterator[tuple[Value, Value]]:
        """Pairs as `dict(value)` takes them: a mapping, or an iterable of pairs."""
        if isinstance(value, DictValue):
            yield from value.items(self)
            return
        for at, pair in enumerate(self.iterate(value)):
            if not self.may_iterate(pair):
                raise unsupported("call-builtin", f"{pair.describe(self)} in the place of a pair")
            parts = list(self.iterate(pair))
            if len(parts) != 2:
                text = f"dictionary update sequence element #{at} has length {len(parts)}; 2 is required"
                raise self.raised(ValueError, text)
            yield parts[0], parts[1]

    def sorted_items(self, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
        by = items if key is None or self.is_none(key) else [self.call(key, [item], {}) for item in items]
        compared = [self.constant_of(item, "what is sorted by") for item in by]
        down = reverse is not None and self.truth(reverse)
        order = self.run_real(sorted, (range(len(items)),), {"key": compared.__getitem__, "reverse": down})
        return [items[at] for at in order]

    def format_value(self, value: Value, conversion: int, spec: str) -> str:
        return formatting.format_value(self, value, conversion, spec)

    def text_of(self, value: Value, conversion: int) -> Any:
        return formatting.text_of(self, value, conversion)

    def instance_dict_view(self, owner: ObjectValue) -> Value:
        return AttributesValue(owner)

    def dict_of(self, flat: list[Value]) -> DictValue:
        """A new dictionary of keys and values in turn."""
        made = DictValue({})
        for at in range(0, len(flat), 2):
            made.put(self, flat[at], flat[at + 1])
        return made

    def tuple_of(self, items: list[Value]) -> TupleValue:
        return TupleValue(list(items))

    def function_dict(self, function: FunctionValue) -> DictValue:
        made = FunctionAttributesValue(function)
        for name, value in function.attributes.items():
            if not hasattr(FunctionType, name):
                made.entries[name] = value
        for name, real in (vars(function.fn) if function.fn is not None else {}).items():
            if name not in function.attributes:
                source = AttrSource(function.source, name) if function.source is not None else None
                made.entries[name] = self.lazy(real, source)
        return made

    # ---- calls ----

    def call(self, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return callee.call(self, args, kwargs)

    def call_function(self, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return function_call(self, function, args, kwargs)

    def inline(self, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return inline(self, function, args, kwargs)

    def call_class(self, cls: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return class_call(self, cls, args, kwargs)

    def call_builtin(self, callee: BuiltinValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return builtin_call(self, callee.fn, args, kwargs)

    def call_handler(self, handler: Callable[..., Value], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A registered handler; arguments that do not fit are the captured program's TypeError."""
        try:
            return handler(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise unsupported("call-builtin", f"arguments of {handler.__name__.strip('_')}: {error}") from error
            raise

    def record_function(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            return self.recorder.record("call_function", function, function, args, kwargs)
        except NotATensorCall as call:
            return self.wrap_result(call.result, f"the result of {getattr(function, '__name__', function)}")

    def record_method(self, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        def run(owner: Any, *rest: Any, **named: Any) -> Any:
            return getattr(owner, name)(*rest, **named)

        try:
            return self.recorder.record("call_method", name, run, args, kwargs)
        except NotATensorCall as call:
            return self.wrap_result(call.result, f"the result of Tensor.{name}")

    def call_tensor_method(self, owner: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = tensor_methods.get(name)
        if handler is not None:
            return self.call_handler(handler, [owner, *args], kwargs)
        if name in REFUSED:
            known = self.recorder.known_value(owner.fake) if name in ("item", "tolist") else None
            if known is not None and (name == "tolist" or known.numel() == 1):
                return self.wrap_result(getattr(known, name)(), f"the result of Tensor.{name}")
            raise unsupported(
                "data-dependent-value" if name in ("item", "tolist", "numpy") else "tensor-method",
                f"Tensor.{name}() on {owner.describe(self)}",
                "keep the value in a tensor, or call it outside of the compiled function",
            )
        return self.record_method(name, [owner, *args], kwargs)


_MOST_TURNS = 20_000
_MOST_INSTRUCTIONS = 500_000
# values of objects for which it does not matter whether two paths lead to one object
_WITHOUT_IDENTITY = (ConstantValue, BoundMethodValue, TupleValue, SliceValue, RangeValue)
_WRAPPED_ANEW = (BoundMethodValue, SliceValue, RangeValue)
_IDENTITY_TYPES: tuple[type, ...] = (
    types.GenericAlias,
    types.UnionType,
    typing._Final,  # type: ignore[attr-defined]
    typing.TypeVar,
    re.Pattern,
    re.Match,
    type(torch.ops.aten),
)


def _is_no_number(constant: Any) -> bool:
    """Such as nan, which is not equal to itself but is found in a list that holds it."""
    return _may_be_several(constant) and constant != constant


def _may_be_several(constant: Any) -> bool:
    """Whether constants equal to this one may be one object or several."""
    return isinstance(constant, _MANY_EQUAL) and not isinstance(constant, (bool, enum.Enum))


_MANY_EQUAL = (int, float, complex, str, bytes, torch.device, types.CodeType, *numpy_numbers())
_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


_RESULTS: dict[type, Callable[[Tracer, Any, str], Value]] = {
    slice: lambda tracer, obj, what: SliceValue(
        ConstantValue(obj.start), ConstantValue(obj.stop), ConstantValue(obj.step)
    ),
    range: lambda tracer, obj, what: RangeValue(obj),
    list: lambda tracer, obj, what: ListValue([tracer.wrap_result(item, what) for item in obj]),
    set: lambda tracer, obj, what: SetValue.of(tracer, [tracer.wrap_result(item, what) for item in obj]),
}
