"""The `operator` module: arithmetic, comparison and subscripts on every kind of value."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..calling import calls
from ..values.base import NotConstant, Value, unsupported
from ..values.constants import ConstantValue
from ..values.containers import ListValue, SequenceValue, SetValue, TupleValue
from ..values.grown_lists import GrownList
from ..values.mappings import DictValue, DictViewValue
from ..values.objects import ObjectValue
from ..values.tensors import TensorValue

if TYPE_CHECKING:
    from ..tracer import Tracer

# operator -> (special method, reflected special method, in-place special method or None)
_BINARY: dict[Any, tuple[str, str]] = {
    operator.add: ("__add__", "__radd__"),
    operator.sub: ("__sub__", "__rsub__"),
    operator.mul: ("__mul__", "__rmul__"),
    operator.truediv: ("__truediv__", "__rtruediv__"),
    operator.floordiv: ("__floordiv__", "__rfloordiv__"),
    operator.mod: ("__mod__", "__rmod__"),
    operator.pow: ("__pow__", "__rpow__"),
    operator.matmul: ("__matmul__", "__rmatmul__"),
    operator.and_: ("__and__", "__rand__"),
    operator.or_: ("__or__", "__ror__"),
    operator.xor: ("__xor__", "__rxor__"),
    operator.lshift: ("__lshift__", "__rlshift__"),
    operator.rshift: ("__rshift__", "__rrshift__"),
}
_IN_PLACE: dict[Any, tuple[str, Any]] = {
    operator.iadd: ("__iadd__", operator.add),
    operator.isub: ("__isub__", operator.sub),
    operator.imul: ("__imul__", operator.mul),
    operator.itruediv: ("__itruediv__", operator.truediv),
    operator.ifloordiv: ("__ifloordiv__", operator.floordiv),
    operator.imod: ("__imod__", operator.mod),
    operator.ipow: ("__ipow__", operator.pow),
    operator.imatmul: ("__imatmul__", operator.matmul),
    operator.iand: ("__iand__", operator.and_),
    operator.ior: ("__ior__", operator.or_),
    operator.ixor: ("__ixor__", operator.xor),
    operator.ilshift: ("__ilshift__", operator.lshift),
    operator.irshift: ("__irshift__", operator.rshift),
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


def _folded(tracer: Tracer, function: Any, values: list[Value]) -> Value | None:
    """The real operator on constants, or None when something is not one."""
    try:
        constants = tuple(value.constant() for value in values)
    except NotConstant:
        return None
    return tracer.wrap_result(tracer.run_real(function, constants), "the result of an operator")


def _through_methods(tracer: Tracer, left: Value, right: Value, name: str, reflected: str) -> Value | None:
    """Special methods written in Python, tried in Python's order; None when neither side has an answer."""
    attempts = [(left, name, right), (right, reflected, left)]
    left_type, right_type = left.python_type(tracer), right.python_type(tracer)
    if left_type is not right_type and issubclass(right_type, left_type):
        attempts.reverse()
    for owner, method_name, other in attempts:
        if isinstance(owner, ObjectValue):
            method = owner.special(tracer, method_name)
            if method is not None:
                result = method.call(tracer, [other], {})
                if not (isinstance(result, ConstantValue) and result.value is NotImplemented):
                    return result
    return None


def _register_binary(function: Any, name: str, reflected: str) -> None:
    def handler(tracer: Tracer, left: Value, right: Value) -> Value:
        if isinstance(left, TensorValue) or isinstance(right, TensorValue):
            return tracer.record_function(function, [left, right], {})
        special = _CONTAINERS.get((function, _family(left), _family(right)))
        if special is not None:
            return special(tracer, left, right)
        found = _through_methods(tracer, left, right, name, reflected)
        if found is None:
            found = _folded(tracer, function, [left, right])
        if found is None:
            raise unsupported(
                "operator", f"{function.__name__} of {left.describe(tracer)} and {right.describe(tracer)}"
            )
        return found

    calls(function)(handler)


def _register_in_place(function: Any, name: str, plain: Any) -> None:
    def handler(tracer: Tracer, left: Value, right: Value) -> Value:
        if isinstance(left, TensorValue):
            return tracer.record_function(function, [left, right], {})
        if isinstance(left, ListValue) and plain is operator.add:
            left.extend(tracer, right)
            return left
        if isinstance(left, SetValue) and left.cls is set and plain is operator.or_:
            for item in tracer.iterate(right):
                left.add(tracer, item)
            left.changed(tracer)
            return left
        if isinstance(left, DictValue) and plain is operator.or_:
            for key, value in tracer.pairs(right):
                left.set_item(tracer, key, value)
            return left
        if isinstance(left, ObjectValue):
            method = left.special(tracer, name)
            if method is not None:
                return method.call(tracer, [right], {})
        return tracer.binary(plain, left, right)

    calls(function)(handler)


def _register_compare(function: Any, name: str, reflected: str) -> None:
    def handler(tracer: Tracer, left: Value, right: Value) -> Value:
        if isinstance(left, TensorValue) or isinstance(right, TensorValue):
            return tracer.record_function(function, [left, right], {})
        found = _through_methods(tracer, left, right, name, reflected)
        if found is not None:
            return found
        if function in (operator.eq, operator.ne):
            return ConstantValue(structurally_equal(tracer, left, right) is (function is operator.eq))
        if isinstance(left, SetValue) and isinstance(right, SetValue):
            return ConstantValue(function(left.members.keys(), right.members.keys()))
        found = _folded(tracer, function, [left, right])
        if found is None:
            raise unsupported("operator", f"comparing {left.describe(tracer)} and {right.describe(tracer)}")
        return found

    calls(function)(handler)


def structurally_equal(tracer: Tracer, left: Value, right: Value) -> bool:
    """`left == right` where neither class defines __eq__ in Python."""
    try:
        return bool(left.constant() == right.constant())  # before identity: a NaN is not equal to itself
    except NotConstant:
        pass
    if left is right:
        return True
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and left.builtin is right.builtin:
        return len(left.items) == len(right.items) and all(
            tracer.same(one, other) or tracer.equal(one, other)
            for one, other in zip(left.raw_items(tracer), right.raw_items(tracer), strict=True)
        )
    if isinstance(left, DictValue) and isinstance(right, DictValue):
        if set(left.keys(tracer)) != set(right.keys(tracer)):
            return False
        pairs = ((left.find(tracer, key), right.find(tracer, key)) for key in left.keys(tracer))
        return all(tracer.same(one, other) or tracer.equal(one, other) for one, other in pairs)  # type: ignore[arg-type]
    if isinstance(left, SetValue) and isinstance(right, SetValue):
        return left.members.keys() == right.members.keys()
    return tracer.same(left, right)


def _register_unary(function: Any, name: str) -> None:
    def handler(tracer: Tracer, value: Value) -> Value:
        if isinstance(value, TensorValue):
            return tracer.record_function(function, [value], {})
        if isinstance(value, ObjectValue):
            method = value.special(tracer, name)
            if method is not None:
                return method.call(tracer, [], {})
        found = _folded(tracer, function, [value])
        if found is None:
            raise unsupported("operator", f"{function.__name__} of {value.describe(tracer)}")
        return found

    calls(function)(handler)


# ---- containers ----


def _family(value: Value) -> str:
    return _FAMILIES.get(type(value), "")


_FAMILIES: dict[type, str] = {
    ListValue: "list",
    GrownList: "list",
    TupleValue: "tuple",
    SetValue: "set",
    DictValue: "dict",
    DictViewValue: "view",
    ConstantValue: "constant",
}


def _concatenate(tracer: Tracer, left: SequenceValue, right: SequenceValue) -> Value:
    kind = right if right.cls is torch.Size else left  # torch.Size answers from either side
    return kind.rebuilt([*left.items, *right.items])


def _repeat(tracer: Tracer, left: SequenceValue, right: Value) -> Value:
    return left.rebuilt(left.items * tracer.index_of(right))


def _repeat_reflected(tracer: Tracer, left: Value, right: SequenceValue) -> Value:
    return _repeat(tracer, right, left)


def _set_operation(name: str) -> Callable[[Tracer, Value, Value], Value]:
    def run(tracer: Tracer, left: Value, right: Value) -> Value:
        owner = left if isinstance(left, SetValue) else SetValue.of(tracer, list(tracer.iterate(left)))
        handler = owner.builtin_method(tracer, name)
        assert handler is not None
        return handler(tracer, owner, right)

    return run


def _merge(tracer: Tracer, left: DictValue, right: DictValue) -> Value:
    made = DictValue({}, cls=left.cls if left.cls in (dict, OrderedDict) else dict)
    for part in (left, right):
        for key, value in part.items(tracer):
            made.put(tracer, key, value)
    return made


_CONTAINERS: dict[tuple[Any, str, str], Callable[[Tracer, Any, Any], Value]] = {
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


@calls(operator.getitem)
def _getitem(tracer: Tracer, owner: Value, key: Value) -> Value:
    return tracer.get_item(owner, key)


@calls(operator.setitem)
def _setitem(tracer: Tracer, owner: Value, key: Value, value: Value) -> Value:
    owner.set_item(tracer, key, value)
    return ConstantValue(None)


@calls(operator.delitem)
def _delitem(tracer: Tracer, owner: Value, key: Value) -> Value:
    owner.del_item(tracer, key)
    return ConstantValue(None)


@calls(operator.contains)
def _contains(tracer: Tracer, container: Value, item: Value) -> Value:
    return ConstantValue(tracer.contains(container, item))


@calls(operator.not_)
def _not(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(not tracer.truth(value))


@calls(operator.truth)
def _truth(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(tracer.truth(value))


@calls(operator.is_)
def _is(tracer: Tracer, left: Value, right: Value) -> Value:
    return ConstantValue(tracer.same(left, right))


@calls(operator.is_not)
def _is_not(tracer: Tracer, left: Value, right: Value) -> Value:
    return ConstantValue(not tracer.same(left, right))


@calls(operator.index)
def _index(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(tracer.index_of(value))
