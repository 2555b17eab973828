"""Identity of values: `is` in captured code. Capture compares existing objects, and a guard relies on the result."""

from __future__ import annotations

import enum
import types
import weakref
from typing import Any

import torch

from stator.dynamo.graph.possible_views import settle_views
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, Source
from stator.dynamo.host.naming import safe_repr
from stator.dynamo.host.numpy_boundary import TRUTH, numpy_numbers
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.functions import BuiltinValue, FunctionValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue

_MANY_EQUAL = (int, float, complex, str, bytes, torch.device, types.CodeType, *numpy_numbers())


class Identities:
    """The identities of one capture's objects, and the sources that led to them."""

    def __init__(self, context: CaptureContext) -> None:
        self.context = context
        self._stands: dict[int, tuple[Value, Any, Source]] = {}  # sources of values without a source of their own

    def found(self, value: Value, obj: Any, source: Source) -> None:
        """Note the source of a value that has no source of its own."""
        self._stands[id(value)] = value, obj, source

    def found_again(self, known: Value, obj: Any, source: Source | None) -> None:
        """Guard that another source leads to an object that has a value already."""
        if source is None or known.source is source:
            return
        if known.source is None:
            found = self._stands.get(id(known))
            if found is None:
                self.context.guard(source, GuardKind.IS, obj)
            elif found[2] != source:
                self.context.guard(source, GuardKind.SAME, found[2])
        elif known.source != source:
            fixed = isinstance(known, (ClassValue, BuiltinValue)) or (isinstance(known, FunctionValue) and known.fixed)
            if fixed or isinstance(known.source, ConstantSource) or issubclass(type(obj), types.ModuleType):
                self.context.guard(source, GuardKind.IS, obj)
            else:
                self.context.guard(source, GuardKind.SAME, known.source)

    def same(self, left: Value, right: Value) -> bool:
        """`left is right`, where equal tuples and constants count as two objects."""
        if left is right:
            return True
        if SymbolicNumber in (type(left), type(right)):
            if left.python_type(self.context) is not right.python_type(self.context):
                return False
            left, right = map(_as_constant, (left, right))
        if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
            if _is_no_number(left.value) and _is_no_number(right.value):
                self._guard_identity_of(left, right)
            return left.value is right.value
        if isinstance(left, BuiltinValue | ClassValue) and isinstance(right, BuiltinValue | ClassValue):
            return left.real() is right.real()
        one, other = self._found_at(left), self._found_at(right)
        if one is None or other is None:
            if left.python_type(self.context) is right.python_type(self.context) is weakref.ref:
                raise unsupported("identity", "whether two weak references, of which one is made here, are one object")
            return False  # the frame made at least one of the two
        for value in (left, right):
            if isinstance(value, SourcedConstant):
                self.context.guards.presence(value)
        if self._type_of(left) is not self._type_of(right):
            return False
        return self._related(*one, *other)

    def identical(self, left: Value, right: Value) -> bool:
        """`left is right` in the program: exact also for equal constants and equal tuples."""
        if isinstance(left, TupleValue) and isinstance(right, TupleValue) and left is not right:
            may_be = not (left.source and right.source) and len(left.items) == len(right.items)
            if may_be and (left.items or left.cls is not tuple or right.cls is not tuple):
                raise unsupported("identity", "whether two equal tuples are one object")
            if may_be:
                return True
        if isinstance(left, TensorValue) and isinstance(right, TensorValue):
            settle_views(self.context.recorder, (left, right))
        if left is not right and SymbolicNumber in (type(left), type(right)):
            if left.python_type(self.context) is not right.python_type(self.context):
                return False
            left, right = map(_as_constant, (left, right))
        if left is not right and isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
            same = self.same(left, right)
            alike = type(left.value) is type(right.value) and _may_be_several(left.value)
            if alike and left.value == right.value:
                self._guard_identity_of(left, right)
            return same
        if left is not right and left.python_type(self.context) is right.python_type(self.context) is TRUTH:
            raise unsupported("identity", "whether two of NumPy's truth values are one object")
        return self.same(left, right)

    def _type_of(self, value: Value) -> type:
        return type(value.peek()) if isinstance(value, SourcedConstant) else value.python_type(self.context)

    def _found_at(self, value: Value) -> tuple[Any, Source] | None:
        """A value's object, or a stand-in for its identity, and its source; None if the frame made the object."""
        found = self._stands.get(id(value))
        if found is not None:
            return found[1:]
        if value.source is None:
            return None
        if isinstance(value, TupleValue) and value.obj is not None:  # each path to a tuple has a value of its own
            return value.obj, value.source
        return (value._value if isinstance(value, ConstantValue) else value), value.source

    def _related(self, one: Any, at: Source, other: Any, other_at: Source) -> bool:
        """Whether two existing objects are one; guards the answer."""
        if isinstance(at, ConstantSource):
            at, other_at = other_at, at
        self.context.guard(at, GuardKind.SAME if one is other else GuardKind.DISTINCT, other_at)
        return one is other

    def _guard_identity_of(self, left: ConstantValue, right: ConstantValue) -> None:
        """Guard whether two equal constants are one object."""
        one, other = (
            found[1] if (found := self._found_at(value)) else ConstantSource(safe_repr(value.value), value.value)
            for value in (left, right)
        )
        self._related(left.value, one, right.value, other)


def _is_no_number(constant: Any) -> bool:
    """Whether the constant is nan or its like, which a list finds by identity only."""
    return _may_be_several(constant) and constant != constant


def _may_be_several(constant: Any) -> bool:
    """Whether equal constants of this kind may be several objects."""
    return isinstance(constant, _MANY_EQUAL) and not isinstance(constant, (bool, enum.Enum))


def _as_constant(value: Value) -> Value:
    """The constant of a symbolic number, under a guard on its value."""
    if type(value) is not SymbolicNumber:
        return value
    if not value.is_constant():
        raise unsupported("identity", "whether two numbers, of which the graph computes one, are one object")
    number = value.constant()
    if value.source is not None:  # the object itself: `constant` may have computed an equal one
        number = value.input_object
    return ConstantValue(number, value.source)
