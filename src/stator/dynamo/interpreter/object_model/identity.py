"""Which values are one object: of the captured program, and of what was found outside of the frame.

Whether two objects from outside are one is looked at now and relied on by a guard.
"""

from __future__ import annotations

import enum
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, Source
from stator.dynamo.host.numpy_boundary import TRUTH
from stator.dynamo.host.numpy_scalars import numpy_numbers, safe_repr
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.functions import BuiltinValue, FunctionValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_MANY_EQUAL = (int, float, complex, str, bytes, torch.device, types.CodeType, *numpy_numbers())


class Identities:
    """Where the objects of one capture were found, and which of them are one."""

    def __init__(self, context: CaptureContext) -> None:
        self.context = context
        self._stands: dict[int, tuple[Value, Any, Source]] = {}  # where values were found that do not say it themselves

    def found(self, value: Value, obj: Any, source: Source) -> None:
        """A value that does not say itself where its object was found."""
        self._stands[id(value)] = value, obj, source

    def found_again(self, known: Value, obj: Any, source: Source | None) -> None:
        """An object that has a value was met at another place, which is relied on."""
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
        """`left is right`, where equal tuples and constants made apart count as two objects."""
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
            return False  # made in the frame, and that is known of both
        for value in (left, right):
            if isinstance(value, SourcedConstant):
                self.context.guards.presence(value)
        if self._type_of(left) is not self._type_of(right):
            return False
        return self._related(*one, *other)

    def identical(self, left: Value, right: Value) -> bool:
        """`left is right`, as the program asks it: exact also for equal constants and equal tuples."""
        if isinstance(left, TupleValue) and isinstance(right, TupleValue) and left is not right:
            may_be = not (left.source and right.source) and len(left.items) == len(right.items)
            if may_be and (left.items or left.cls is not tuple or right.cls is not tuple):
                raise unsupported("identity", "whether two equal tuples are one object")
            if may_be:
                return True
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
            raise unsupported(
                "identity", "whether two truths of NumPy's, of which there are two in all, are one object"
            )
        return self.same(left, right)

    def _type_of(self, value: Value) -> type:
        return type(value.peek()) if isinstance(value, SourcedConstant) else value.python_type(self.context)

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
        self.context.guard(at, GuardKind.SAME if one is other else GuardKind.DISTINCT, other_at)
        return one is other

    def _guard_identity_of(self, left: ConstantValue, right: ConstantValue) -> None:
        """Rely on two equal constants being one object, or two."""
        one, other = (
            found[1] if (found := self._found_at(value)) else ConstantSource(safe_repr(value.value), value.value)
            for value in (left, right)
        )
        self._related(left.value, one, right.value, other)


def _is_no_number(constant: Any) -> bool:
    """Such as nan, which is not equal to itself but is found in a list that holds it."""
    return _may_be_several(constant) and constant != constant


def _may_be_several(constant: Any) -> bool:
    """Whether constants equal to this one may be one object or several."""
    return isinstance(constant, _MANY_EQUAL) and not isinstance(constant, (bool, enum.Enum))


def _as_constant(value: Value) -> Value:
    """A number that changes from call to call, with a guard on its value."""
    if type(value) is not SymbolicNumber:
        return value
    if not value.is_constant():
        raise unsupported("identity", "whether two numbers, of which the graph computes one, are one object")
    return ConstantValue(value.constant(), value.source)
