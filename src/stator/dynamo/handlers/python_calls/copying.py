"""`copy.copy` and `copy.deepcopy`. Modules, parameters and what copies itself in C are copied outside of graphs."""

from __future__ import annotations

import copy
import copyreg
import enum
import math
import operator
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from stator.dynamo.graph.input_value_guards import share_memory
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource
from stator.dynamo.host.numpy_scalars import is_python_class
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Raised, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue, combined
from stator.dynamo.values.functions import BuiltinValue, FunctionValue
from stator.dynamo.values.objects import MISSING, ObjectValue, lookup_in_class
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.dynamo.values.tensors.tensor_methods import rely_on_method

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@calls(copy.copy)
def _copy(context: CaptureContext, value: Value) -> Value:
    if _is_its_own_copy(value) or _is_plain_tuple(value):
        return value
    if isinstance(value, ListValue) and value.cls is list:
        return ListValue(list(value.items))
    if isinstance(value, SetValue) and value.cls in (set, frozenset):
        return value if value.cls is frozenset else combined(context, value, "copy")
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict, defaultdict):
        made = DictValue({}, cls=value.cls, factory=value.factory)
        for key, item in value.items(context):
            made.put(context, key, item)
        for name in value.own_names(context) if value.cls is OrderedDict else ():
            made.set_own(context, name, value.own_attribute(context, name))
        return made
    if type(value) is ObjectValue:
        method = value.special(context, "__copy__")
        if method is not None:
            return method.call(context, [], {})
        _rely_on_default_copying(context, value, "copy.copy")
        twin = ObjectValue(value.cls)
        for name in value.own_names(context):
            twin.set_own(context, name, value.own_attribute(context, name))
        return twin
    raise unsupported("copy", f"copy.copy of {value.describe(context)}")


def _is_its_own_copy(value: Value) -> bool:
    """Functions and constants; not what is made of a program's own class of numbers or text."""
    if type(value) is SymbolicNumber:
        return True
    if isinstance(value, ConstantValue):
        kind = type(value.value)
        return not is_python_class(kind) or issubclass(kind, enum.Enum)
    return isinstance(value, (FunctionValue, BuiltinValue))


def _is_plain_tuple(value: Value) -> bool:
    return isinstance(value, TupleValue) and value.cls is tuple


@dataclass(slots=True)
class _Memo:
    """What one deepcopy has made, by the id of what it was made from, and which tensors were among that; and the copies
    of tuples that were there before, which are wrapped anew wherever they are found."""

    copies: dict[int, Value] = field(default_factory=dict)
    tensors: list[TensorValue] = field(default_factory=list)
    tuples: list[tuple[TupleValue, TupleValue]] = field(default_factory=list)


@calls(copy.deepcopy)
def _deepcopy(context: CaptureContext, value: Value, memo: Value | None = None) -> Value:
    if memo is not None and not context.is_none(memo):
        raise unsupported("copy", "copy.deepcopy with a memo of the caller")
    return _deep(context, value, _Memo())


def _deep(context: CaptureContext, value: Value, memo: _Memo) -> Value:
    value = context.realized(value)
    if id(value) in memo.copies:
        return memo.copies[id(value)]
    if isinstance(value, ConstantValue) and _holds_frozenset(value.value):
        raise unsupported("copy", "copy.deepcopy of a constant frozenset, which gives another one in each call")
    if _is_its_own_copy(value):
        return value
    if isinstance(value, TensorValue):
        memo.copies[id(value)] = made_tensor = _deep_tensor(context, value, memo)
        memo.tensors.append(value)
        return made_tensor
    if isinstance(value, ListValue) and value.cls is list:
        made_list = memo.copies[id(value)] = ListValue([])
        made_list.items.extend(_deep(context, item, memo) for item in value.items)
        return made_list
    if isinstance(value, TupleValue) and (value.cls is tuple or value.is_named):
        return _deep_tuple(context, value, memo)
    ordered = isinstance(value, DictValue) and value.cls is OrderedDict and value.own_names(context)
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict, defaultdict) and not ordered:
        made = memo.copies[id(value)] = DictValue({}, cls=value.cls, factory=value.factory)
        for key, item in value.items(context):
            made.put(context, _deep(context, key, memo), _deep(context, item, memo))
        return made
    if isinstance(value, SetValue) and value.cls in (set, frozenset) and value.is_constant():
        made_set = memo.copies[id(value)] = combined(context, value, "copy")
        return made_set
    if type(value) is ObjectValue:
        return _deep_object(context, value, memo)
    raise unsupported("copy", f"copy.deepcopy of {value.describe(context)}")


def _holds_frozenset(constant: object) -> bool:
    return isinstance(constant, frozenset) or (isinstance(constant, tuple) and any(map(_holds_frozenset, constant)))


def _deep_tuple(context: CaptureContext, value: TupleValue, memo: _Memo) -> Value:
    items = [_deep(context, item, memo) for item in value.items]
    if id(value) in memo.copies:  # it holds itself
        return memo.copies[id(value)]
    if value.cls is tuple and all(map(operator.is_, items, map(context.realized, value.items))):
        return value
    for known, copied in memo.tuples if value.source is not None else ():
        if _may_be_equal(copied.items, items) and context.same(known, value):
            return copied
    memo.copies[id(value)] = made = TupleValue(items, cls=value.cls)
    if value.source is not None:
        memo.tuples.append((value, made))
    return made


def _may_be_equal(items: list[Value], others: list[Value]) -> bool:
    """Of copies: whether what they were made from can have been one tuple."""
    constant = ConstantValue
    return len(items) == len(others) and all(
        one is other or (isinstance(one, constant) and isinstance(other, constant))
        for one, other in zip(items, others, strict=True)
    )


_COPY_HOOKS = (
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
    *("__getnewargs__", "__getnewargs_ex__", "__slots__", "__new__"),
)


def _rely_on_default_copying(context: CaptureContext, value: ObjectValue, what: str) -> None:
    """Copying makes an object of the class and fills its `__dict__`: unless its class says otherwise."""
    own = [name for name in _COPY_HOOKS if context.class_lookup(value.cls, name) is not lookup_in_class(object, name)]
    if _in_its_own_way(context, value):
        if what == "copy.deepcopy" and _is_answered(context, value, "__deepcopy__"):
            own.append("__deepcopy__")
        if not _is_answered(context, value, "__reduce_ex__"):
            own.append("attributes without __reduce_ex__")
        if _is_answered(context, ObjectValue(value.cls), "__setstate__"):
            own.append("__setstate__")
    if value.cls in copyreg.dispatch_table:
        own.append("an entry of copyreg")
    if not all(map(is_python_class, value.cls.__mro__[:-1])):
        own.append("a part in C")
    if own:
        raise unsupported("copy", f"{what} of {value.describe(context)}, which defines {', '.join(own)}")


def _in_its_own_way(context: CaptureContext, value: ObjectValue) -> bool:
    looks = context.class_lookup(value.cls, "__getattribute__") is not object.__getattribute__
    return looks or context.class_lookup(value.cls, "__getattr__") is not MISSING


def _is_answered(context: CaptureContext, value: ObjectValue, name: str) -> bool:
    """hasattr(value, name), which runs code of the class."""
    try:
        value.get_attr(context, name)
    except Raised as raised:
        if not issubclass(raised.value.python_type(context), AttributeError):
            raise
        return False
    return True


def _deep_tensor(context: CaptureContext, value: TensorValue, memo: _Memo) -> Value:
    """A copy of its memory, which of a dense tensor that fills it is a clone. What else there is to copy is not
    followed: attributes, the gradient, the rest of the memory, tensors of one copy that share theirs."""
    rely_on_method(context, value.cls, "__deepcopy__")
    fake = value.fake
    dense = fake.is_contiguous() or (fake.dim() == 4 and fake.is_contiguous(memory_format=torch.channels_last))
    plain = value.cls is torch.Tensor and not fake.requires_grad and dense and not fake.is_conj() and not fake.is_neg()
    if not plain or context.recorder.transforms or not _is_whole(context, value) or value.attributes:
        raise unsupported("copy", f"copy.deepcopy of {value.describe(context)}")
    if any(not _are_apart(context, value, other) for other in memo.tensors):
        raise unsupported("copy", "copy.deepcopy of tensors that share memory")
    return context.record_method("clone", [value], {})


def _is_whole(context: CaptureContext, value: TensorValue) -> bool:
    """Whether a tensor has all of its memory, and nothing of the program's is attached to it."""
    if value.obj is not None:
        if not is_whole(value.obj):
            return False
        context.guard(CallSource(is_whole, (value.source,)), GuardKind.EQUALS, True)  # type: ignore[arg-type]
        return True
    mine, memory = value.fake.meta, value.fake.fake_storage  # type: ignore[attr-defined]
    given = context.recorder.by_fake.values()
    if any(one.obj is not None and one.fake.fake_storage is memory for one in given):  # type: ignore[attr-defined]
        return False  # a view of an input
    if mine is memory.meta:
        return True
    known = all(type(size) is int for size in (*mine.shape, *memory.meta.shape, mine.offset))
    fills = known and mine.offset == 0 and math.prod(mine.shape) == math.prod(memory.meta.shape)
    return fills and mine.dtype is memory.meta.dtype


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all that is in its storage, without gradient and attributes of the program's."""
    size = tensor.numel() * tensor.element_size()
    whole = tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == size
    return whole and tensor.grad is None and not tensor.__dict__


def _are_apart(context: CaptureContext, one: TensorValue, other: TensorValue) -> bool:
    """Whether two tensors are known to have storages of their own."""
    if one.fake.fake_storage is other.fake.fake_storage:  # type: ignore[attr-defined]
        return False
    if one.obj is not None and other.obj is not None:
        if share_memory(one.obj, other.obj):
            return False
        overlap = CallSource(share_memory, (one.source, other.source))  # type: ignore[arg-type]
        context.guard(overlap, GuardKind.EQUALS, False)
    return True


def _deep_object(context: CaptureContext, value: ObjectValue, memo: _Memo) -> Value:
    if "__deepcopy__" in value.own_names(context):
        raise unsupported("copy", f"copy.deepcopy of {value.describe(context)}, which has a __deepcopy__ of its own")
    method = value.special(context, "__deepcopy__")
    if method is not None:
        if memo.copies:
            raise unsupported(
                "copy", f"copy.deepcopy of {value.describe(context)}, which is told what was copied before"
            )
        made = memo.copies[id(value)] = method.call(context, [DictValue({})], {})
        return made
    _rely_on_default_copying(context, value, "copy.deepcopy")
    twin = memo.copies[id(value)] = ObjectValue(value.cls)
    for name in value.own_names(context):
        attribute = value.own_attribute(context, name)
        assert attribute is not None
        twin.set_own(context, name, _deep(context, attribute, memo))
    return twin
