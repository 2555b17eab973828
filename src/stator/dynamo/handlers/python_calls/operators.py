"""The `operator` module: arithmetic, comparison and subscripts on every kind of value."""

from __future__ import annotations

import operator
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.handlers.numpy_calls.array_operations import apply_in_place, apply_operator
from stator.dynamo.host.naming import class_name
from stator.dynamo.host.numpy_boundary import TRUTH, plain_converter
from stator.dynamo.interpreter.calling import calls, handlers
from stator.dynamo.values.base import CaptureContext, NotConstant, Raised, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue, SourcedConstant
from stator.dynamo.values.containers.mappings import DictValue, DictViewValue
from stator.dynamo.values.containers.sequences import AppendOnlyList, ListValue, SequenceValue, TupleValue, VaryingTuple
from stator.dynamo.values.containers.sets import SetValue, set_methods
from stator.dynamo.values.functions import BoundMethodValue, BuiltinMethodValue, BuiltinValue, FunctionValue
from stator.dynamo.values.objects import C_METHODS, MISSING
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, is_known_when_the_graph_runs
from stator.dynamo.values.tensors.arrays import ArrayValue
from stator.dynamo.values.tensors.ragged_sizes import RaggedSize, compare_ragged
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue

_NAMES = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"]
# operator -> (special method, reflected special method)
_BINARY: dict[Any, tuple[str, str]] = {
    getattr(operator, f"__{name}__"): (f"__{name}__", f"__r{name}__") for name in _NAMES
}
# operator -> (special method, plain operator)
_IN_PLACE: dict[Any, tuple[str, Any]] = {
    getattr(operator, f"__i{name}__"): (f"__i{name}__", getattr(operator, f"__{name}__")) for name in _NAMES
}
_COMPARE: dict[Any, tuple[str, str]] = {
    operator.eq: ("__eq__", "__eq__"),
    operator.ne: ("__ne__", "__ne__"),
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
}
_UNARY: dict[Any, str] = {
    operator.neg: "__neg__",
    operator.pos: "__pos__",
    operator.invert: "__invert__",
    abs: "__abs__",
}


def _folded(context: CaptureContext, function: Any, values: list[Value]) -> Value | None:
    """The real operator on constants; None if a value is no constant."""
    try:
        constants = tuple(value.constant() for value in values)
    except NotConstant:
        return None
    return context.wrap_result(context.run_real(function, constants), "the result of an operator")


def _method(context: CaptureContext, value: Value, name: str) -> Value | None:
    """The bound special method that the value's class defines in Python; None for none, or for one in C. A tensor's
    methods in C count: this is asked for a tensor only beside a tensor subclass, whose override they call."""
    if isinstance(value, (ConstantValue, SymbolicNumber)):
        return None
    kind = value.python_type(context)
    raw = context.class_lookup(kind, name)
    if raw is None:
        raise context.raised(TypeError, "'NoneType' object is not callable")
    if isinstance(value, (TensorValue, TensorSubclassValue)) and isinstance(raw, C_METHODS):
        return BoundMethodValue(BuiltinValue(raw), value) if raw.__objclass__ is torch._C.TensorBase else None
    if raw is MISSING or isinstance(raw, types.WrapperDescriptorType):
        return None
    return context.bind(value, kind, name, raw)


def _special_result(context: CaptureContext, value: Value, name: str, other: Value) -> Value | None:
    """The result of one operand's special method; None for NotImplemented, or without a method."""
    method = _method(context, value, name)
    if method is None:
        return None
    try:
        result = method.call(context, [other], {})
    except Raised as raised:
        of_tensor = isinstance(method, BoundMethodValue) and isinstance(method.function, BuiltinValue)
        if of_tensor and issubclass(raised.value.python_type(context), TypeError):  # as torch's methods in C do
            return None
        raise
    if isinstance(result, ConstantValue) and result.value is NotImplemented:
        return None
    return result


def _beside_subclass(left: Value, right: Value) -> bool:
    """Whether an operand is of a tensor subclass, so that the special methods decide as Python calls them."""
    return isinstance(left, TensorSubclassValue) or isinstance(right, TensorSubclassValue)


def _no_method(context: CaptureContext, function: Any, *values: Value) -> Any:
    """Raises Python's TypeError for operands without a method."""
    kinds = [value.python_type(context) for value in values]
    return context.run_real(function, tuple(type(class_name(kind), (), {})() for kind in kinds))


def _is_proper_subtype(kind: type, base: type) -> bool:
    """Inheritance decides: Python's operators do not call `__subclasscheck__`."""
    return kind is not base and base in kind.__mro__


def _by_special_methods(context: CaptureContext, left: Value, right: Value, name: str, reflected: str) -> Value | None:
    """Calls the special methods of a binary operator in Python's order; None if neither operand has a result."""
    left_type, right_type = left.python_type(context), right.python_type(context)
    if left_type is right_type:
        return _special_result(context, left, name, right)
    overridden = context.class_lookup(right_type, reflected) is not context.class_lookup(left_type, reflected)
    if overridden and _is_proper_subtype(right_type, left_type):
        return _special_result(context, right, reflected, left) or _special_result(context, left, name, right)
    return _special_result(context, left, name, right) or _special_result(context, right, reflected, left)


def _by_comparison_methods(
    context: CaptureContext, left: Value, right: Value, name: str, reflected: str
) -> Value | None:
    """Calls the special methods of a comparison: a subtype on the right first, both also for operands of one type."""
    left_type, right_type = left.python_type(context), right.python_type(context)
    if _is_proper_subtype(right_type, left_type):
        return _comparison_result(context, right, reflected, left) or _comparison_result(context, left, name, right)
    return _comparison_result(context, left, name, right) or _comparison_result(context, right, reflected, left)


def _comparison_result(context: CaptureContext, value: Value, name: str, other: Value) -> Value | None:
    inherits = name == "__ne__" and not isinstance(value, (ConstantValue, SymbolicNumber, TensorValue))
    if inherits and context.class_lookup(value.python_type(context), "__ne__") is object.__ne__:
        equal = _special_result(context, value, "__eq__", other)
        return None if equal is None else ConstantValue(not context.truth(equal))
    return _special_result(context, value, name, other)


def _register_binary(function: Any, name: str, reflected: str) -> None:
    def handler(context: CaptureContext, left: Value, right: Value) -> Value:
        if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
            return apply_operator(context, function, [left, right])
        overridden = _beside_subclass(left, right)
        if not overridden and (isinstance(left, TensorValue) or isinstance(right, TensorValue)):
            return context.record_function(function, [left, right], {})
        found = _by_special_methods(context, left, right, name, reflected)
        if found is not None:
            return found
        if overridden:
            _no_method(context, function, left, right)
        special = _CONTAINERS.get((function, _family(left), _family(right)))
        if special is not None:
            return special(context, left, right)
        found = _folded(context, function, [left, right])
        if found is None:
            raise unsupported(
                "operator", f"{function.__name__} of {left.describe(context)} and {right.describe(context)}"
            )
        return found

    calls(function)(handler)


def _register_in_place(function: Any, name: str, plain: Any) -> None:
    def handler(context: CaptureContext, left: Value, right: Value) -> Value:
        if isinstance(left, ArrayValue) and not left.scalar:
            return apply_in_place(context, plain, left, right)
        if isinstance(left, TensorValue) and not _beside_subclass(left, right):
            return context.record_function(function, [left, right], {})
        found = _special_result(context, left, name, right)
        if found is not None:
            return found
        if isinstance(left, ListValue) and plain is operator.add:
            left.extend(context, right)
            return left
        if isinstance(left, ListValue) and plain is operator.mul:
            times = context.index_of(right)
            _check_size(left, times)
            left.items[:] = left.items * times
            left.changed(context)
            return left
        if isinstance(left, SetValue) and left.cls is set and isinstance(right, SetValue) and plain in _SET_CHANGES:
            set_methods[_SET_CHANGES[plain]](context, left, right)
            return left
        if isinstance(left, DictValue) and plain is operator.or_:
            for key, value in context.pairs(right):
                left.set_item(context, key, value)
            return left
        return context.binary(plain, left, right)

    calls(function)(handler)


_SET_CHANGES = {
    operator.or_: "update",
    operator.and_: "intersection_update",
    operator.sub: "difference_update",
    operator.xor: "symmetric_difference_update",
}


def _register_compare(function: Any, name: str, reflected: str) -> None:
    def handler(context: CaptureContext, left: Value, right: Value) -> Value:
        if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
            return apply_operator(context, function, [left, right])
        overridden = _beside_subclass(left, right)
        if not overridden and (isinstance(left, TensorValue) or isinstance(right, TensorValue)):
            return context.record_function(function, [left, right], {})
        if isinstance(left, RaggedSize) or isinstance(right, RaggedSize):
            return compare_ragged(context, function, left, right)
        found = _by_comparison_methods(context, left, right, name, reflected)
        if found is not None:
            return found
        if overridden:
            if function in (operator.eq, operator.ne):
                return ConstantValue(context.same(left, right) is (function is operator.eq))
            _no_method(context, function, left, right)
        left, right = _keys_as_sets(context, left, right)
        by_numpy = _is_of_numpy(context, left) or _is_of_numpy(context, right)  # gives numpy.bool_
        if function in (operator.eq, operator.ne) and not by_numpy:
            return ConstantValue(structurally_equal(context, left, right) is (function is operator.eq))
        if isinstance(left, SetValue) and isinstance(right, SetValue):
            return ConstantValue(function(left.members.keys(), right.members.keys()))
        found = _folded(context, function, [left, right])
        if found is None and isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
            found = _in_order(context, function, left, right)
        if found is None:
            raise unsupported("operator", f"comparing {left.describe(context)} and {right.describe(context)}")
        return found

    calls(function)(handler)


def _is_of_numpy(context: CaptureContext, value: Value) -> bool:
    kind = value.python_type(context)
    return (kind is TRUTH or plain_converter(kind) is not None) and value.is_constant()


def _keys_as_sets(context: CaptureContext, left: Value, right: Value) -> tuple[Value, Value]:
    """Makes sets of the keys of dictionaries that are compared with a set or with other keys."""
    keys = [isinstance(one, DictViewValue) and one.kind == "keys" for one in (left, right)]
    if not any(keys) or not all(
        is_keys or isinstance(one, SetValue) for is_keys, one in zip(keys, (left, right), strict=True)
    ):
        return left, right
    one, other = (
        SetValue.of(context, list(context.iterate(side))) if is_keys else side
        for is_keys, side in zip(keys, (left, right), strict=True)
    )
    return one, other


def _in_order(context: CaptureContext, function: Any, left: SequenceValue, right: SequenceValue) -> Value | None:
    """Compares two tuples or two lists by the first items that differ; None for other operands."""
    if left.builtin is not right.builtin:
        return None
    mine, theirs = list(left.raw_items(context)), list(right.raw_items(context))
    for one, other in zip(mine, theirs, strict=False):
        if not context.same_or_equal(one, other):
            return context.compare(function, one, other)
    return ConstantValue(function(len(mine), len(theirs)))


def structurally_equal(context: CaptureContext, left: Value, right: Value) -> bool:
    """`left == right` where neither class defines __eq__ in Python."""
    if not _holds_sizes(left) and not _holds_sizes(right):
        try:
            return bool(left.constant() == right.constant())  # before identity: a NaN is not equal to itself
        except NotConstant:
            pass
    if is_known_when_the_graph_runs(left) or is_known_when_the_graph_runs(right):
        if {left.python_type(context), right.python_type(context)}.isdisjoint(_NEVER_NUMBERS):
            raise unsupported("data-dependent-value", f"{left.describe(context)} == {right.describe(context)}")
        return False
    left, right = _as_container(context, left), _as_container(context, right)
    for one in (left, right):
        raw = context.class_lookup(one.python_type(context), "__eq__")  # one in Python has been called before
        in_c = isinstance(raw, types.WrapperDescriptorType) and raw is not object.__eq__
        if in_c and not _is_builtin_family(one):
            raise unsupported("operator", f"comparing {left.describe(context)} and {right.describe(context)}")
    if left is right:
        return True
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and left.builtin is right.builtin:
        return len(left.items) == len(right.items) and _equal_items(context, left, right)
    if isinstance(left, DictValue) and isinstance(right, DictValue):
        keys, others = left.keys(context), right.keys(context)
        if set(keys) != set(others):
            return False
        if keys != others and issubclass(left.cls, OrderedDict) and issubclass(right.cls, OrderedDict):
            return False
        pairs = ((left.find(context, key), right.find(context, key)) for key in left.keys(context))
        return all(context.same_or_equal(one, other) for one, other in pairs)  # type: ignore[arg-type]
    if isinstance(left, SetValue) and isinstance(right, SetValue):
        return left.members.keys() == right.members.keys()
    if isinstance(left, BoundMethodValue) and isinstance(right, BoundMethodValue):
        return context.same(left.owner, right.owner) and context.equal(left.function, right.function)
    if isinstance(left, BuiltinMethodValue) and isinstance(right, BuiltinMethodValue):
        return context.same(left.owner, right.owner) and left.name == right.name
    return context.same(left, right)


def _holds_sizes(value: Value) -> bool:
    """Whether items are numbers that a comparison one by one need not make constants of."""
    return isinstance(value, SequenceValue) and any(
        type(item) is SymbolicNumber or _holds_sizes(item) for item in value.items
    )


_NEVER_NUMBERS = (type(None), str, bytes, list, tuple, dict, set)


def _as_container(context: CaptureContext, value: Value) -> Value:
    """A constant tuple or frozenset as a container of values, to compare it with such a container."""
    if isinstance(value, ConstantValue) and type(value.value) in (tuple, frozenset):
        return context.known(value.value) if type(value.value) is tuple else context.wrap(value.value, None)
    return value


def _equal_items(context: CaptureContext, left: SequenceValue, right: SequenceValue) -> bool:
    """Compares items as long as both have some, because an `__eq__` may remove items."""
    at = 0
    while at < len(left.items) and at < len(right.items):
        one, other = left.at(context, at), right.at(context, at)
        if not context.same_or_equal(one, other):
            break
        at += 1
    if at < len(left.items) and at < len(right.items):
        return False
    return len(left.items) == len(right.items)


def _is_builtin_family(value: Value) -> bool:
    """Whether a value equals only values of its own family."""
    containers = (SequenceValue, DictValue, SetValue)
    return isinstance(value, (*containers, ConstantValue, SymbolicNumber, FunctionValue, ClassValue, TensorValue))


def _register_unary(function: Any, name: str) -> None:
    def handler(context: CaptureContext, value: Value) -> Value:
        if isinstance(value, ArrayValue):
            return apply_operator(context, function, [value])
        if isinstance(value, TensorValue):
            return context.record_function(function, [value], {})
        method = _method(context, value, name)
        if method is not None:
            return method.call(context, [], {})
        found = _folded(context, function, [value])
        if found is None:
            raise unsupported("operator", f"{function.__name__} of {value.describe(context)}")
        return found

    calls(function)(handler)


# ---- containers ----


def _family(value: Value) -> str:
    if isinstance(value, DictViewValue) and value.kind == "values":
        return ""  # no set
    return _FAMILIES.get(type(value), "")


_FAMILIES: dict[type, str] = {
    ListValue: "list",
    AppendOnlyList: "list",
    TupleValue: "tuple",
    VaryingTuple: "tuple",
    SetValue: "set",
    DictValue: "dict",
    DictViewValue: "view",
    ConstantValue: "constant",
    SourcedConstant: "constant",
    SymbolicNumber: "constant",
}


def _concatenate(context: CaptureContext, left: SequenceValue, right: SequenceValue) -> Value:
    for one, other in ((left, right), (right, left)):
        if one.cls is tuple and not other.items and other.cls is not torch.Size:
            return one  # the tuple itself
    kind = right if right.cls is torch.Size else left  # torch.Size answers from either side
    return kind.rebuilt([*left.items, *right.items])


def _repeat(context: CaptureContext, left: SequenceValue, right: Value) -> Value:
    if not issubclass(right.python_type(context), int):
        raise unsupported("operator", f"{left.describe(context)} times {right.describe(context)}")
    times = context.index_of(right)
    if left.cls is tuple and times == 1:
        return left
    _check_size(left, times)
    return left.rebuilt(left.items * times)


def _check_size(left: SequenceValue, times: int) -> None:
    if len(left.items) * times > _MOST_ITEMS:
        raise unsupported("operator", f"a sequence of more than {_MOST_ITEMS} items")


_MOST_ITEMS = 1_000_000


def _repeat_reflected(context: CaptureContext, left: Value, right: SequenceValue) -> Value:
    return _repeat(context, right, left)


def _set_operation(name: str) -> Callable[[CaptureContext, Value, Value], Value]:
    def run(context: CaptureContext, left: Value, right: Value) -> Value:
        both = isinstance(left, SetValue) and isinstance(right, SetValue)  # else the result is a plain set
        owner = left if both else SetValue.of(context, list(context.iterate(left)))
        assert isinstance(owner, SetValue)
        handler = owner.builtin_method(context, name)
        assert handler is not None
        return context.call_handler(handler, [owner, right], {})

    return run


def _merge(context: CaptureContext, left: DictValue, right: DictValue) -> Value:
    if left.cls is not dict or right.cls is not dict:
        raise unsupported("operator", f"merging {left.describe(context)} and {right.describe(context)}")
    made = DictValue({})
    for part in (left, right):
        for key, value in part.items(context):
            made.put(context, key, value)
    return made


_CONTAINERS: dict[tuple[Any, str, str], Callable[[CaptureContext, Any, Any], Value]] = {
    (operator.add, "list", "list"): _concatenate,
    (operator.add, "tuple", "tuple"): _concatenate,
    (operator.mul, "list", "constant"): _repeat,
    (operator.mul, "tuple", "constant"): _repeat,
    (operator.mul, "constant", "list"): _repeat_reflected,
    (operator.mul, "constant", "tuple"): _repeat_reflected,
    (operator.or_, "dict", "dict"): _merge,
}
for _left in ("set", "view"):
    for _right in ("set", "view"):
        for _function, _name in (
            (operator.or_, "union"),
            (operator.and_, "intersection"),
            (operator.sub, "difference"),
            (operator.xor, "symmetric_difference"),
        ):
            _CONTAINERS[_function, _left, _right] = _set_operation(_name)

for _function, (_name, _reflected) in _BINARY.items():
    _register_binary(_function, _name, _reflected)
for _function, (_name, _plain) in _IN_PLACE.items():
    _register_in_place(_function, _name, _plain)
for _function, (_name, _reflected) in _COMPARE.items():
    _register_compare(_function, _name, _reflected)
for _function, _name in _UNARY.items():
    _register_unary(_function, _name)


@calls(operator.contains)
def membership(context: CaptureContext, container: Value, item: Value) -> Value:
    """`item in container`: a bool of the graph where tensors, or numbers that the graph computes, are compared."""
    if isinstance(container, TensorValue) and (isinstance(item, TensorValue) or item.python_type(context) in _NUMBERS):
        equal = context.compare(operator.eq, item, container)
        return context.call(context.known(bool), [context.record_method("any", [equal], {})], {})
    if not isinstance(container, SequenceValue) or container.cls not in (list, tuple):
        return ConstantValue(context.contains(container, item))
    members = list(map(context.realized, container.items))
    if not any(isinstance(one, TensorValue) or is_known_when_the_graph_runs(one) for one in (item, *members)):
        return ConstantValue(context.contains(container, item))
    found: Value = ConstantValue(False)
    for one in members:
        is_number = is_known_when_the_graph_runs(one) or is_known_when_the_graph_runs(item)
        if one is item or (not is_number and context.same(one, item)):
            return ConstantValue(True)
        equal = context.call(context.known(bool), [context.compare(operator.eq, one, item)], {})
        if type(equal) is ConstantValue and equal.value:
            return equal
        found = equal if type(found) is ConstantValue else context.binary(operator.or_, found, equal)
    return found


_NUMBERS = (int, float, complex, bool)


@calls(operator.not_)
def negation(context: CaptureContext, value: Value) -> Value:
    if isinstance(value, TensorValue):
        value = context.call(context.known(bool), [value], {})
    if is_known_when_the_graph_runs(value):
        return context.compare(operator.eq, value, ConstantValue(value.python_type(context)()))
    return ConstantValue(not context.truth(value))


handlers.add_all(
    {
        operator.getitem: lambda context, owner, key: context.get_item(owner, key),
        operator.setitem: lambda context, owner, key, value: owner.set_item(context, key, value),
        operator.delitem: lambda context, owner, key: owner.del_item(context, key),
        operator.truth: lambda context, value: ConstantValue(context.truth(value)),
        operator.is_: lambda context, left, right: ConstantValue(context.identical(left, right)),
        operator.is_not: lambda context, left, right: ConstantValue(not context.identical(left, right)),
        operator.index: lambda context, value: ConstantValue(context.index_of(value)),
    }
)
