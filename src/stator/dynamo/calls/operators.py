"""The `operator` module: arithmetic, comparison and subscripts on every kind of value."""

from __future__ import annotations

import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..array_operations import apply_in_place, apply_operator
from ..calling import calls
from ..finishing import Finish, Role, Way
from ..numpy_boundary import TRUTH
from ..plain import plain_converter
from ..values.arrays import ArrayValue
from ..values.base import NotConstant, Value, unsupported
from ..values.classes import ClassValue
from ..values.constants import ConstantValue, SourcedConstant
from ..values.deques import DequeValue, deque_methods
from ..values.functions import BoundMethodValue, BuiltinMethodValue, FunctionValue
from ..values.grown_lists import GrownList
from ..values.mappings import DictValue, DictViewValue
from ..values.numbers import NumberValue, is_changing
from ..values.objects import MISSING, ObjectValue
from ..values.sequences import ListValue, SequenceValue, TupleValue
from ..values.sets import SetValue
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


def _method(tracer: Tracer, value: Value, name: str) -> Value | None:
    """The special method that the value's class defines in Python, bound; None when it has none, or one in C."""
    if isinstance(value, (ConstantValue, TensorValue)):
        return None
    kind = value.python_type(tracer)
    raw = tracer.class_lookup(kind, name)
    if raw is None:
        raise tracer.raised(TypeError, "'NoneType' object is not callable")
    if raw is MISSING or isinstance(raw, types.WrapperDescriptorType):
        return None
    return tracer.bind(value, kind, name, raw)


def _answer(
    tracer: Tracer, value: Value, name: str, other: Value, way: Way | None = None, finish: Finish = Finish.ANSWER
) -> Value | None:
    """What one side's special method says; None for NotImplemented, or when there is none.

    way: how an instruction enters it; finish: what it would ask then."""
    method = _method(tracer, value, name)
    if method is None:
        return None
    if way is not None and type(value) is ObjectValue:
        tracer.enters(method, replace(way, finish=finish, by=Role.CALL))
    result = method.call(tracer, [other], {})
    if isinstance(result, ConstantValue) and not is_changing(result) and result.value is NotImplemented:
        return None
    return result


def _is_proper_subtype(kind: type, base: type) -> bool:
    """By inheritance alone: Python's operators do not ask `__subclasscheck__`."""
    return kind is not base and base in kind.__mro__


def _through_methods(tracer: Tracer, left: Value, right: Value, name: str, reflected: str) -> Value | None:
    """Special methods of a binary operator written in Python, in Python's order; None when neither side answers."""
    way = _way(tracer, left)
    left_type, right_type = left.python_type(tracer), right.python_type(tracer)
    if left_type is right_type:
        return _answer(tracer, left, name, right, way)
    way = way if _is_plain(left, left_type) and _is_plain(right, right_type) else None
    overridden = tracer.class_lookup(right_type, reflected) is not tracer.class_lookup(left_type, reflected)
    if overridden and _is_proper_subtype(right_type, left_type):
        first = _answer(tracer, right, reflected, left, way, Finish.RIGHT_ANSWER)
        return first or _answer(tracer, left, name, right, way)
    first = _answer(tracer, left, name, right, way, Finish.LEFT_ANSWER)
    return first or _answer(tracer, right, reflected, left, way)


def _way(tracer: Tracer, left: Value) -> Way | None:
    """How the instruction at hand enters special methods of the operands, if it is that of the operator."""
    return tracer.way if tracer.direct is left and tracer.role is Role.OPERAND else None


def _is_plain(value: Value, kind: type) -> bool:
    """Whether an operator asks it by special methods in Python only."""
    return type(value) is ObjectValue or kind in _NUMBERS


_NUMBERS = frozenset((int, float, bool, complex, types.NoneType))


def _through_comparisons(tracer: Tracer, left: Value, right: Value, name: str, reflected: str) -> Value | None:
    """The same for comparisons: a subtype on the right is asked first, and both sides are asked also if they are of
    one type."""
    left_type, right_type = left.python_type(tracer), right.python_type(tracer)
    way = _way(tracer, left) if _is_plain(left, left_type) and _is_plain(right, right_type) else None
    if _is_proper_subtype(right_type, left_type):
        first = _compared(tracer, right, reflected, left, way, Finish.RIGHT_ANSWER)
        return first or _compared(tracer, left, name, right, way)
    first = _compared(tracer, left, name, right, way, Finish.LEFT_ANSWER)
    return first or _compared(tracer, right, reflected, left, way)


def _compared(
    tracer: Tracer, value: Value, name: str, other: Value, way: Way | None = None, finish: Finish = Finish.ANSWER
) -> Value | None:
    inherits = name == "__ne__" and not isinstance(value, (ConstantValue, TensorValue))
    if inherits and tracer.class_lookup(value.python_type(tracer), "__ne__") is object.__ne__:
        equal = _answer(tracer, value, "__eq__", other)
        return None if equal is None else ConstantValue(not tracer.truth(equal))
    return _answer(tracer, value, name, other, way, finish)


def answered(tracer: Tracer, left: Value, right: Value, answer: Value, how: Value) -> Value:
    """What an operator gives when a special method that it asked has answered; `how` as `native.answered` takes it."""
    symbol, following, of_left, _ = (tracer.constant_of(one, "what an operator asks") for one in tracer.iterate(how))
    if not isinstance(answer, ConstantValue) or is_changing(answer) or answer.value is not NotImplemented:
        return answer
    found = None
    if isinstance(following, str):
        asked, other = (left, right) if of_left else (right, left)
        found = _compared(tracer, asked, following, other)
    elif following is not None:
        found = tracer.binary(following, left, right)
    if found is None:
        raise unsupported("operator", f"{left.describe(tracer)} {symbol} {right.describe(tracer)}")
    return found


def _register_binary(function: Any, name: str, reflected: str) -> None:
    def handler(tracer: Tracer, left: Value, right: Value) -> Value:
        if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
            return apply_operator(tracer, function, [left, right])
        if isinstance(left, TensorValue) or isinstance(right, TensorValue):
            return tracer.record_function(function, [left, right], {})
        found = _through_methods(tracer, left, right, name, reflected)
        if found is not None:
            return found
        special = _CONTAINERS.get((function, _family(left), _family(right)))
        if special is not None:
            return special(tracer, left, right)
        found = _folded(tracer, function, [left, right])
        if found is None:
            raise unsupported(
                "operator", f"{function.__name__} of {left.describe(tracer)} and {right.describe(tracer)}"
            )
        return found

    calls(function)(handler)


def _register_in_place(function: Any, name: str, plain: Any) -> None:
    def handler(tracer: Tracer, left: Value, right: Value) -> Value:
        if isinstance(left, ArrayValue) and not left.scalar:
            return apply_in_place(tracer, plain, left, right)
        if isinstance(left, TensorValue):
            return tracer.record_function(function, [left, right], {})
        way = _way(tracer, left)
        found = _answer(tracer, left, name, right, way, Finish.IN_PLACE_ANSWER)
        if found is not None:
            return found
        if way is not None:
            tracer.enters(left, way)
        if isinstance(left, DequeValue) and plain is operator.add:
            deque_methods["extend"](tracer, left, right)
            return left
        if isinstance(left, ListValue) and plain is operator.add:
            left.extend(tracer, right)
            return left
        if isinstance(left, ListValue) and left.builtin in (list, deque) and plain is operator.mul:
            times = tracer.index_of(right)
            _check_size(left, times)
            if isinstance(left, DequeValue) and (times == 1 or not left.items):
                return left  # what goes through it goes on
            left.items[:] = left.items * times
            if isinstance(left, DequeValue):
                left.trim(left=True)
            left.changed(tracer)
            return left
        if isinstance(left, SetValue) and left.cls is set and isinstance(right, SetValue) and plain in _SET_CHANGES:
            handler_of = left.builtin_method(tracer, _SET_CHANGES[plain])
            assert handler_of is not None
            result = handler_of(tracer, left, right)
            left.members = dict(result.members)  # type: ignore[attr-defined]
            left.do_with(_SET_UPDATES[plain], right)
            left.changed(tracer)
            return left
        if isinstance(left, SetValue) and left.cls is set and isinstance(right, SetValue) and plain is operator.or_:
            left.builtin_method(tracer, "update")(tracer, left, right)  # type: ignore[misc]
            return left
        if isinstance(left, DictValue) and plain is operator.or_:
            for key, value in tracer.pairs(right):
                left.set_item(tracer, key, value)
            return left
        return tracer.binary(plain, left, right)

    calls(function)(handler)


_SET_UPDATES = {
    operator.and_: "intersection_update",
    operator.sub: "difference_update",
    operator.xor: "symmetric_difference_update",
}
_SET_CHANGES = {
    operator.and_: "intersection",
    operator.sub: "difference",
    operator.xor: "symmetric_difference",
}


def _register_compare(function: Any, name: str, reflected: str) -> None:
    def handler(tracer: Tracer, left: Value, right: Value) -> Value:
        if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
            return apply_operator(tracer, function, [left, right])
        if isinstance(left, TensorValue) or isinstance(right, TensorValue):
            return tracer.record_function(function, [left, right], {})
        found = _through_comparisons(tracer, left, right, name, reflected)
        if found is not None:
            return found
        left, right = _keys_as_sets(tracer, left, right)
        if function in (operator.eq, operator.ne):
            if _is_of_numpy(tracer, left) or _is_of_numpy(tracer, right):  # which compare to truths of their own type
                return _compared_by_numpy(tracer, function, left, right)
            return ConstantValue(structurally_equal(tracer, left, right) is (function is operator.eq))
        if isinstance(left, SetValue) and isinstance(right, SetValue):
            return ConstantValue(function(left.members.keys(), right.members.keys()))
        found = _folded(tracer, function, [left, right])
        if found is None and isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
            found = _in_order(tracer, function, left, right)
        if found is None:
            raise unsupported("operator", f"comparing {left.describe(tracer)} and {right.describe(tracer)}")
        return found

    calls(function)(handler)


def _is_of_numpy(tracer: Tracer, value: Value) -> bool:
    kind = value.python_type(tracer) if isinstance(value, ConstantValue) else None
    return kind is not None and (kind is TRUTH or plain_converter(kind) is not None)


def _compared_by_numpy(tracer: Tracer, function: Any, left: Value, right: Value) -> Value:
    """With a list or an array it gives an array, and with other objects what these answer."""
    found = None
    if all(isinstance(one, ConstantValue) for one in (left, right)):
        found = _folded(tracer, function, [left, right])
    if found is None:
        raise unsupported("operator", f"comparing {left.describe(tracer)} and {right.describe(tracer)}")
    return found


def _keys_as_sets(tracer: Tracer, left: Value, right: Value) -> tuple[Value, Value]:
    """Where the keys of a dictionary are compared with a set or other keys: as sets."""
    keys = [isinstance(one, DictViewValue) and one.kind == "keys" for one in (left, right)]
    if not any(keys) or not all(
        is_keys or isinstance(one, SetValue) for is_keys, one in zip(keys, (left, right), strict=True)
    ):
        return left, right
    one, other = (
        SetValue.of(tracer, list(tracer.iterate(side))) if is_keys else side
        for is_keys, side in zip(keys, (left, right), strict=True)
    )
    return one, other


def _in_order(tracer: Tracer, function: Any, left: SequenceValue, right: SequenceValue) -> Value | None:
    """Two tuples, or two lists, by the first items that differ; None for others."""
    if left.builtin is not right.builtin:
        return None
    mine, theirs = list(left.raw_items(tracer)), list(right.raw_items(tracer))
    for one, other in zip(mine, theirs, strict=False):
        if not tracer.same(one, other) and not tracer.equal(one, other):
            return tracer.compare(function, one, other)
    return ConstantValue(function(len(mine), len(theirs)))


def structurally_equal(tracer: Tracer, left: Value, right: Value) -> bool:
    """`left == right` where neither class defines __eq__ in Python."""
    try:
        return bool(left.constant() == right.constant())  # before identity: a NaN is not equal to itself
    except NotConstant:
        pass
    left, right = _taken_apart(tracer, left), _taken_apart(tracer, right)
    for one in (left, right):
        raw = tracer.class_lookup(one.python_type(tracer), "__eq__")  # one written in Python was asked before
        in_c = isinstance(raw, types.WrapperDescriptorType) and raw is not object.__eq__
        if in_c and not _is_builtin_family(one):
            raise unsupported("operator", f"comparing {left.describe(tracer)} and {right.describe(tracer)}")
    if left is right:
        return True
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and left.builtin is right.builtin:
        return len(left.items) == len(right.items) and _equal_items(tracer, left, right)
    if isinstance(left, DictValue) and isinstance(right, DictValue):
        keys, others = left.keys(tracer), right.keys(tracer)
        if set(keys) != set(others):
            return False
        if keys != others and issubclass(left.cls, OrderedDict) and issubclass(right.cls, OrderedDict):
            return False
        pairs = ((left.find(tracer, key), right.find(tracer, key)) for key in left.keys(tracer))
        return all(tracer.same(one, other) or tracer.equal(one, other) for one, other in pairs)  # type: ignore[arg-type]
    if isinstance(left, SetValue) and isinstance(right, SetValue):
        return left.members.keys() == right.members.keys()
    if isinstance(left, BoundMethodValue) and isinstance(right, BoundMethodValue):
        return tracer.same(left.owner, right.owner) and tracer.equal(left.function, right.function)
    if isinstance(left, BuiltinMethodValue) and isinstance(right, BuiltinMethodValue):
        return tracer.same(left.owner, right.owner) and left.name == right.name
    return tracer.same(left, right)


def _taken_apart(tracer: Tracer, value: Value) -> Value:
    """A constant that is a tuple or a set, beside one of which not all items are known."""
    if isinstance(value, ConstantValue) and type(value.value) in (tuple, frozenset):
        return tracer.known(value.value) if type(value.value) is tuple else tracer.wrap(value.value, None)
    return value


def _equal_items(tracer: Tracer, left: SequenceValue, right: SequenceValue) -> bool:
    """As long as both have items: an `__eq__` may take some away."""
    at = 0
    while at < len(left.items) and at < len(right.items):
        one, other = left.at(tracer, at), right.at(tracer, at)
        if not (tracer.same(one, other) or tracer.equal(one, other)):
            break
        at += 1
    if at < len(left.items) and at < len(right.items):
        return False
    return len(left.items) == len(right.items)


def _is_builtin_family(value: Value) -> bool:
    """Values of different ones of these are never equal, nor equal to other objects."""
    families = (SequenceValue, DictValue, SetValue, ConstantValue, FunctionValue, ClassValue, TensorValue)
    return isinstance(value, families)


def _register_unary(function: Any, name: str) -> None:
    def handler(tracer: Tracer, value: Value) -> Value:
        if isinstance(value, ArrayValue):
            return apply_operator(tracer, function, [value])
        if isinstance(value, TensorValue):
            return tracer.record_function(function, [value], {})
        method = _method(tracer, value, name)
        if method is not None:
            tracer.enters_through(value, method, Role.OPERAND)
            return method.call(tracer, [], {})
        found = _folded(tracer, function, [value])
        if found is None:
            raise unsupported("operator", f"{function.__name__} of {value.describe(tracer)}")
        return found

    calls(function)(handler)


# ---- containers ----


def _family(value: Value) -> str:
    if isinstance(value, DictViewValue) and value.kind == "values":
        return ""  # no set
    if isinstance(value, DequeValue) and value.cls is not deque:
        return ""  # its class is called for the result
    return _FAMILIES.get(type(value), "")


_FAMILIES: dict[type, str] = {
    ListValue: "list",
    GrownList: "list",
    TupleValue: "tuple",
    DequeValue: "deque",
    SetValue: "set",
    DictValue: "dict",
    DictViewValue: "view",
    ConstantValue: "constant",
    SourcedConstant: "constant",
    NumberValue: "constant",
}


def _concatenate(tracer: Tracer, left: SequenceValue, right: SequenceValue) -> Value:
    for one, other in ((left, right), (right, left)):
        if one.cls is tuple and not other.items and other.cls is not torch.Size:
            return one  # the tuple itself
    kind = right if right.cls is torch.Size else left  # torch.Size answers from either side
    return kind.rebuilt([*left.items, *right.items])


def _repeat(tracer: Tracer, left: SequenceValue, right: Value) -> Value:
    if not isinstance(right.constant(), int):
        raise unsupported("operator", f"{left.describe(tracer)} times {right.describe(tracer)}")
    times = tracer.index_of(right)
    if left.cls is tuple and times == 1:
        return left
    _check_size(left, times)
    return left.rebuilt(left.items * times)


def _check_size(left: SequenceValue, times: int) -> None:
    if len(left.items) * times > _MOST_ITEMS:
        raise unsupported("operator", f"a sequence of more than {_MOST_ITEMS} items")


_MOST_ITEMS = 1_000_000


def _repeat_reflected(tracer: Tracer, left: Value, right: SequenceValue) -> Value:
    return _repeat(tracer, right, left)


def _set_operation(name: str) -> Callable[[Tracer, Value, Value], Value]:
    def run(tracer: Tracer, left: Value, right: Value) -> Value:
        both = isinstance(left, SetValue) and isinstance(right, SetValue)  # with a view of a dict it is always a set
        owner = left if both else SetValue.of(tracer, list(tracer.iterate(left)))
        assert isinstance(owner, SetValue)
        handler = owner.builtin_method(tracer, name)
        assert handler is not None
        return handler(tracer, owner, right)

    return run


def _merge(tracer: Tracer, left: DictValue, right: DictValue) -> Value:
    kinds = {left.cls, right.cls}
    if not kinds <= {dict, OrderedDict} and not (left.cls is defaultdict and right.cls is dict):
        raise unsupported("operator", f"merging {left.describe(tracer)} and {right.describe(tracer)}")
    cls = left.cls if left.cls is not dict else right.cls
    made = DictValue({}, cls=cls, factory=left.factory)
    for part in (left, right):
        for key, value in part.items(tracer):
            made.put(tracer, key, value)
    return made


_CONTAINERS: dict[tuple[Any, str, str], Callable[[Tracer, Any, Any], Value]] = {
    (operator.add, "list", "list"): _concatenate,
    (operator.add, "tuple", "tuple"): _concatenate,
    (operator.add, "deque", "deque"): _concatenate,
    (operator.mul, "list", "constant"): _repeat,
    (operator.mul, "tuple", "constant"): _repeat,
    (operator.mul, "deque", "constant"): _repeat,
    (operator.mul, "constant", "list"): _repeat_reflected,
    (operator.mul, "constant", "deque"): _repeat_reflected,
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
    return ConstantValue(tracer.identical(left, right))


@calls(operator.is_not)
def _is_not(tracer: Tracer, left: Value, right: Value) -> Value:
    return ConstantValue(not tracer.identical(left, right))


@calls(operator.index)
def _index(tracer: Tracer, value: Value) -> Value:
    return ConstantValue(tracer.index_of(value))
