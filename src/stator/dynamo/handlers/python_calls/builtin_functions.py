"""Functions of `builtins`: isinstance, getattr, len, iterators, aggregates, conversions.

Containers are in collections_functions.py, classes in python_classes.py."""

from __future__ import annotations

import abc
import itertools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch

from stator.dynamo.graph.number_reads import may_be_read
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource
from stator.dynamo.handlers.polyfills.itertools_module import called_until
from stator.dynamo.host.naming import class_name, full_name, module_of, qualified_name
from stator.dynamo.interpreter.calling import calls, fold, handlers, run_folded
from stator.dynamo.interpreter.long_loops import counted
from stator.dynamo.values.base import CaptureContext, NotConstant, Raised, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantMethod, ConstantValue
from stator.dynamo.values.containers.iterators import EnumerateValue, IteratorValue, MapValue, ZipValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, SequenceValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue
from stator.dynamo.values.containers.slices import RangeValue, range_of
from stator.dynamo.values.functions import (
    BoundMethodValue,
    BuiltinMethodValue,
    BuiltinValue,
    FunctionValue,
)
from stator.dynamo.values.number_arithmetic import may_be_checked
from stator.dynamo.values.objects import MISSING, ObjectValue, is_generated
from stator.dynamo.values.partials import PartialValue
from stator.dynamo.values.symbolic_numbers import is_open
from stator.dynamo.values.tensors.arrays import ArrayValue
from stator.dynamo.values.tensors.tensor import TensorMethodValue, TensorValue
from stator.dynamo.values.tensors.tensor_methods import rely_on_method
from stator.dynamo.values.tensors.tensor_subclasses import TensorSubclassValue
from stator.graph.fake.wrapper_subclasses import storages_of
from stator.prims.operators.checks import ASSUMPTION

fold(chr, ord, hex, oct, bin, ascii, round, divmod, format, complex, bytes)


def _classes(context: CaptureContext, value: Value) -> tuple[type, ...]:
    if isinstance(value, TupleValue):
        return tuple(cls for item in context.iterate(value) for cls in _classes(context, item))
    real = context.real_of(value, "a class")
    if typing.get_origin(real) in (typing.Union, types.UnionType):
        parts = typing.get_args(real)
    else:  # typing.Mapping and its like stand for a class
        parts = (typing.get_origin(real) if isinstance(real, _ALIASES) else real,)
    if all(isinstance(part, type) for part in parts):
        return parts
    raise unsupported("call-builtin", f"isinstance() or issubclass() with {value.describe(context)}")


_ALIASES: type = typing._SpecialGenericAlias  # type: ignore[attr-defined]


@calls(isinstance)
def _isinstance(context: CaptureContext, value: Value, classes: Value) -> Value:
    wanted = _classes(context, classes)
    kind = value.python_type(context)
    if isinstance(value, (TensorValue, TensorSubclassValue)):
        return ConstantValue(any(_is_tensor_of(context, value, kind, cls) for cls in wanted))
    return ConstantValue(any(_is_instance(context, value, kind, cls) for cls in wanted))


def _is_instance(context: CaptureContext, value: Value, kind: type, wanted: type) -> bool:
    """isinstance(value, wanted)."""
    if kind is wanted:
        return True
    check = _check_of(context, wanted, "__instancecheck__")
    if check is type.__instancecheck__:
        found = wanted in (kind.__mro__ or ())  # type.__instancecheck__ does not call __subclasscheck__
    elif _looks_at_object(check, wanted):
        return context.truth(context.call(context.known(check), [context.known(wanted), value], {}))
    else:
        found = _is_subclass(context, kind, wanted)
    if found:
        return True
    has_own_lookup = type(context.class_lookup(kind, "__getattribute__")) is FunctionType
    if has_own_lookup or context.class_lookup(kind, "__class__") is not _REAL_CLASS:
        raise unsupported("call-builtin", f"isinstance() of {value.describe(context)}, whose __class__ is computed")
    return False


_REAL_CLASS = vars(object)["__class__"]  # the getter of type(value)


def _check_of(context: CaptureContext, wanted: type, name: str) -> Any:
    """The check of a class's metaclass. Breaks the graph for a check of `typing` that looks at an object's members."""
    if getattr(wanted, "_is_protocol", False) or wanted is typing.Any:
        raise unsupported(
            "call-builtin", f"isinstance() or issubclass() with {qualified_name(wanted)}, whose metaclass decides"
        )
    return context.class_lookup(type(wanted), name)


def _looks_at_object(check: Any, wanted: type) -> bool:
    """Whether the check of a metaclass may look at more than the classes, so that capture has to follow it."""
    if type(check) is not FunctionType:
        return False
    origin = module_of(type(wanted))
    of_torch = origin.partition(".")[0] == "torch"
    return origin not in _KNOWN_CHECKS and not (of_torch and issubclass(wanted, torch.Tensor))


# modules whose checks look at classes alone, or beyond them only at objects of torch.export
_KNOWN_CHECKS = frozenset({"abc", "typing", "_py_abc", "enum", "torch._opaque_base"})


def _is_subclass(context: CaptureContext, kind: type, wanted: type) -> bool:
    """issubclass() of classes. A guard checks that nobody registers `kind` with an abstract class."""
    found = bool(context.run_real(issubclass, (kind, wanted)))
    if not found:
        _rely_on_no_registration(context, kind, wanted)
    return found


def _rely_on_no_registration(context: CaptureContext, kind: type, wanted: type) -> None:
    if isinstance(wanted, abc.ABCMeta):
        source = CallSource(issubclass, (_class_source(kind), _class_source(wanted)))
        context.guard(source, GuardKind.EQUALS, False)


def _class_source(cls: type) -> ConstantSource:
    return ConstantSource(full_name(cls), cls)


def _is_tensor_of(context: CaptureContext, value: TensorValue | TensorSubclassValue, kind: type, wanted: type) -> bool:
    """isinstance(value, wanted). Legacy classes such as torch.FloatTensor and nn.Parameter look at the tensor."""
    check = type.__instancecheck__ if kind is wanted else context.class_lookup(type(wanted), "__instancecheck__")
    if _looks_at_object(check, wanted):
        return context.truth(context.call(context.known(check), [context.known(wanted), value], {}))
    if isinstance(value, TensorSubclassValue) and value.obj is None:
        plain = value.plain(context)
        return issubclass(value.cls, wanted) or _is_tensor_of(context, plain, plain.python_type(context), wanted)
    stand_in = value.obj if value.obj is not None else value.fake  # type: ignore[union-attr]
    if isinstance(stand_in, wanted) and (
        value.obj is not None
        or issubclass(value.cls, wanted)
        or any(module_of(cls) == "torch" for cls in (type(wanted), wanted))
    ):
        return True
    _check_of(context, wanted, "__instancecheck__")  # breaks for a protocol, of which issubclass() may know nothing
    _rely_on_no_registration(context, kind, wanted)
    return False


@calls(issubclass)
def _issubclass(context: CaptureContext, cls: Value, classes: Value) -> Value:
    wanted = _classes(context, classes)
    kind = context.real_of(cls, "a class")
    return ConstantValue(any(_is_checked_subclass(context, cls, kind, parent) for parent in wanted))


def _is_checked_subclass(context: CaptureContext, cls: Value, kind: type, parent: type) -> bool:
    """issubclass(kind, parent), where `cls` is the value of `kind`."""
    check = _check_of(context, parent, "__subclasscheck__")
    if _looks_at_object(check, parent):
        return context.truth(context.call(context.known(check), [context.known(parent), cls], {}))
    return _is_subclass(context, kind, parent)


@calls(callable)
def _callable(context: CaptureContext, value: Value) -> Value:
    if isinstance(value, (FunctionValue, BoundMethodValue, BuiltinMethodValue, BuiltinValue, ClassValue, PartialValue)):
        return ConstantValue(True)
    if isinstance(value, (ConstantMethod, TensorMethodValue)):
        return ConstantValue(True)
    return ConstantValue(context.class_lookup(value.python_type(context), "__call__") is not MISSING)


@calls(id)
def _id(context: CaptureContext, value: Value) -> Value:
    try:
        real = value.real()
        context.guards.identity_once(value)
        return ConstantValue(id(real))
    except NotConstant:
        raise unsupported("call-builtin", f"id() of {value.describe(context)}") from None


# ---- attributes ----


def _attribute_name(context: CaptureContext, name: Value) -> str:
    attribute = context.constant_of(name, "an attribute's name")
    if type(attribute) is not str:
        raise unsupported("attribute", f"an attribute whose name is {name.describe(context)}")
    return attribute


@calls(getattr)
def _getattr(context: CaptureContext, owner: Value, name: Value, default: Value | None = None) -> Value:
    attribute = _attribute_name(context, name)
    if default is None:
        return context.get_attr(owner, attribute)
    try:
        return context.get_attr(owner, attribute)
    except Raised as raised:
        if not issubclass(raised.value.python_type(context), AttributeError):
            raise
        return default


@calls(hasattr)
def _hasattr(context: CaptureContext, owner: Value, name: Value) -> Value:
    try:
        context.get_attr(owner, _attribute_name(context, name))
    except Raised as raised:
        if not issubclass(raised.value.python_type(context), AttributeError):
            raise
        return ConstantValue(False)
    return ConstantValue(True)


@calls(object.__setattr__)
def _object_setattr(context: CaptureContext, owner: Value, name: Value, value: Value) -> None:
    attribute = _attribute_name(context, name)
    if isinstance(owner, ObjectValue):
        owner.generic_set_attr(context, attribute, value)
    elif isinstance(owner, ClassValue):
        raise unsupported("attribute-write", "object.__setattr__ of a class, which raises")
    else:
        owner.set_attr(context, attribute, value)


@calls(object.__getattribute__)
def _object_getattribute(context: CaptureContext, owner: Value, name: Value) -> Value:
    attribute = _attribute_name(context, name)
    if isinstance(owner, ObjectValue):
        return owner.generic_get_attr(context, attribute)
    return context.get_attr(owner, attribute)


@calls(vars)
def _vars(context: CaptureContext, owner: Value) -> Value:
    if context.class_lookup(owner.python_type(context), "__dict__") is MISSING:
        raise unsupported("call-builtin", f"vars() of {owner.describe(context)}")
    return context.get_attr(owner, "__dict__")


@calls(hash)
def _hash(context: CaptureContext, value: Value) -> Value:
    value = context.realized(value)
    if isinstance(value, ObjectValue) and not isinstance(value, TupleValue):
        hasher = context.class_lookup(value.cls, "__hash__")
        if is_generated(hasher):
            return ConstantValue(hash(value.key(context)))
        if value.obj is None or hasher is not object.__hash__:
            raise unsupported("call-builtin", f"hash() of {value.describe(context)}")
        context.guards.identity_once(value)
        return ConstantValue(hash(value.obj))
    return run_folded(context, hash, [value], {})


# ---- size and iteration ----


@calls(len)
def _len(context: CaptureContext, value: Value) -> Value:
    if isinstance(value, TensorValue) and value.fake.dim():
        rely_on_method(context, value.cls, "__len__")
        return context.wrap_result(value.fake.shape[0], "the length of a tensor")
    if isinstance(value, RangeValue) and value.open_bounds:
        return context.wrap_result(value.symbolic_length(), "the length of a range")
    return ConstantValue(value.length(context))


@calls(iter)
def _iter(context: CaptureContext, value: Value, sentinel: Value | None = None) -> Value:
    if sentinel is not None:
        return context.call(context.known(called_until), [value, sentinel], {})
    return context.iterator(value)


@calls(next)
def _next(context: CaptureContext, iterator: Value, default: Value | None = None) -> Value:
    kind = iterator.python_type(context)
    if context.class_lookup(kind, "__next__") is MISSING:
        raise context.raised(TypeError, f"'{class_name(kind)}' object is not an iterator")
    context.ended_by = None
    item = context.next_item(iterator)
    if item is not None:
        return item
    if default is not None:
        return default
    raise context.end_of_items()


def _lazy_items(context: CaptureContext, value: Value) -> Iterator[Value]:
    """Items on demand. The iterator is made at once, so that a value without one fails now."""
    return _items_of(context, context.iterator(value))


def _items_of(context: CaptureContext, iterator: Value) -> Iterator[Value]:
    return iter(lambda: context.next_item(iterator), None)  # type: ignore[arg-type,return-value]


@calls(zip)
def _zip(context: CaptureContext, *values: Value, strict: Value | None = None) -> Value:
    iterators = [context.iterator(value) for value in values]
    check = strict is not None and context.truth(strict)
    sources = [_items_of(context, iterator) for iterator in iterators]
    rows = iter(lambda: _zipped_row(context, sources, check), None)
    return ZipValue(iterators, check, rows)  # type: ignore[arg-type]


def _zipped_row(context: CaptureContext, sources: list[Iterator[Value]], strict: bool) -> Value | None:
    row: list[Value] = []
    for source in sources:
        item = next(source, None)
        if item is None:
            if strict and row:
                raise context.raised(ValueError, _unequal(len(row), "shorter"))
            for at, other in enumerate(sources[1:] if strict else (), 1):
                if next(other, None) is not None:
                    raise context.raised(ValueError, _unequal(at, "longer"))
            return None
        row.append(item)
    return TupleValue(row) if row else None


def _unequal(before: int, how: str) -> str:
    return f"zip() argument {before + 1} is {how} than argument{' ' if before == 1 else 's 1-'}{before}"


@calls(enumerate)
def _enumerate(context: CaptureContext, iterable: Value, start: Value | None = None) -> Value:
    first = context.index_of(start) if start is not None else 0
    return EnumerateValue(context.iterator(iterable), first)


@calls(map)
def _map(context: CaptureContext, function: Value, *values: Value) -> Value:
    if not values:
        raise unsupported("call-builtin", "map() of a function alone")
    return MapValue(function, [context.iterator(value) for value in values])


def _register_chosen(cls: type, choose: Callable[[Callable[[Value], bool], Iterator[Value]], Iterator[Value]]) -> None:
    """An iterator over the items that `choose(test, items)` takes."""

    def handler(context: CaptureContext, function: Value, iterable: Value) -> Value:
        def keep(item: Value) -> bool:
            plain = cls in (filter, itertools.filterfalse) and context.is_none(function)
            return context.truth(item if plain else context.call(function, [item], {}))

        return IteratorValue(choose(keep, _lazy_items(context, iterable)), False, cls, context.end_step())

    calls(cls)(handler)


for _cls in (filter, itertools.filterfalse, itertools.takewhile, itertools.dropwhile):
    _register_chosen(_cls, _cls)


@calls(itertools.starmap)
def _starmap(context: CaptureContext, function: Value, iterable: Value) -> Value:
    rows = _lazy_items(context, iterable)
    results = (context.call(function, list(context.iterate(row)), {}) for row in rows)
    return IteratorValue(results, False, itertools.starmap, context.end_step())


@calls(itertools.compress)
def _compress(context: CaptureContext, data: Value, selectors: Value) -> Value:
    pairs = zip(_lazy_items(context, data), _lazy_items(context, selectors), strict=False)
    chosen = (item for item, selector in pairs if context.truth(selector))
    return IteratorValue(chosen, False, itertools.compress, context.end_step())


@calls(reversed)
def _reversed(context: CaptureContext, value: Value) -> Value:
    if isinstance(value, ObjectValue):
        raw = context.class_lookup(value.cls, "__reversed__")
        method = value.special(context, "__reversed__") if raw is not None else None
        if method is not None:
            return method.call(context, [], {})
        if raw is None:
            raise unsupported("call-builtin", f"reversed() of {value.describe(context)}")
        if not isinstance(value, (SequenceValue, DictValue)):  # by its length and items, as nn.ModuleList
            items = [context.get_item(value, ConstantValue(at)) for at in range(value.length(context))]
            return IteratorValue(iter(items[::-1]), cls=reversed, made_at=context.end_step())
    if isinstance(value, SequenceValue) and value.special(context, "__iter__") is None:
        return value.backwards(context)
    if isinstance(value, RangeValue):
        return context.iterator(value.backwards(context))
    return IteratorValue(iter(list(context.iterate(value))[::-1]), cls=reversed, made_at=context.end_step())


@calls(sorted)
def _sorted(context: CaptureContext, items: Value, key: Value | None = None, reverse: Value | None = None) -> Value:
    found = items.in_any_order() if isinstance(items, SetValue) and key is None else None
    return ListValue(context.sorted_items(list(context.listed(items)) if found is None else found, key, reverse))


# ---- aggregates ----


@calls(sum)
def _sum(context: CaptureContext, items: Value, start: Value | None = None) -> Value:
    total = start if start is not None else ConstantValue(0)
    if issubclass(total.python_type(context), (str, bytes, bytearray)):
        raise unsupported("call-builtin", "sum() of text, which raises")
    # The interpreter itself adds known numbers that come first: from 3.12 on it compensates the rounding of floats.
    numbers: list[Value] | None = [] if _is_known_number(total) else None
    for item in counted(_lazy_items(context, items)):  # adds each item before it makes the next
        if numbers is not None and _is_known_number(item):
            numbers.append(item)
            continue
        total = context.binary(operator.add, _sum_of_known(context, total, numbers), item)
        numbers = None
    return _sum_of_known(context, total, numbers)


@calls(math.prod)
def _product(context: CaptureContext, items: Value, *, start: Value | None = None) -> Value:
    total = start if start is not None else ConstantValue(1)
    for item in counted(_lazy_items(context, items)):  # multiplies by each item before it makes the next
        total = context.binary(operator.mul, total, item)
    return total


def _is_known_number(value: Value) -> bool:
    return type(value) is ConstantValue and type(value.value) in (int, float, bool, complex)


def _sum_of_known(context: CaptureContext, total: Value, numbers: list[Value] | None) -> Value:
    return run_folded(context, sum, [ListValue(numbers), total], {}) if numbers else total


def _extreme(
    context: CaptureContext, function: Any, better: Any, values: tuple[Value, ...], options: dict[str, Value]
) -> Value:
    if not values or options.keys() - {"key", "default"} or (len(values) > 1 and "default" in options):
        raise unsupported("call-builtin", f"arguments of {function.__name__}()")
    key, default = options.get("key"), options.get("default")
    by_key = key is not None and not context.is_none(key)
    best: Value | None = None
    measure_of_best: Value | None = None
    for item in context.iterate(values[0]) if len(values) == 1 else values:  # compares each before it makes the next
        measure = context.call(key, [item], {}) if by_key else item  # type: ignore[arg-type]
        if best is None or measure_of_best is None:
            best, measure_of_best = item, measure
        elif not by_key and len(values) != 2 and _are_open(context, best, item):
            best = measure_of_best = context.call(context.known(function), [best, item], {})
        else:
            found = context.compare(better, measure, measure_of_best)
            if not by_key and _is_selectable(context, found, best, item):
                best = measure_of_best = context.record_function(torch.where, [found, item, best], {})
            elif _is_better(context, found, measure, measure_of_best):
                best, measure_of_best = item, measure
    if best is not None:
        return best
    if default is not None:
        return default
    return context.run_real(function, ((),))  # raises the error of this Python version


def _is_selectable(context: CaptureContext, found: Value, *items: Value) -> bool:
    """Whether the graph may choose between two new tensors of equal form. A choice by torch.where gives both of them a
    gradient, so that neither may require one."""
    if not _is_open_under_fullgraph(context, found) or not all(isinstance(item, TensorValue) for item in items):
        return False
    fakes = [item.fake for item in items]  # type: ignore[attr-defined]
    held = {id(storage) for value in context.recorder.input_values for storage in storages_of(value.fake)}
    alike = len({(one.shape, one.dtype, one.device) for one in fakes}) == 1
    return alike and not any(one.requires_grad or any(id(it) in held for it in storages_of(one)) for one in fakes)


def _is_open_under_fullgraph(context: CaptureContext, found: Value) -> bool:
    known = not isinstance(found, TensorValue) or not may_be_checked(context, found)
    return context.recorder.fullgraph and not known and found.decided_truth(context) is None  # type: ignore[attr-defined]


def _is_better(context: CaptureContext, found: Value, measure: Value, best: Value) -> bool:
    """Under fullgraph, `max(t, 0)` is the tensor, and `max(t, u)` is `t`: the graph checks these assumptions, because
    the result would be another object for other data."""
    if not _is_open_under_fullgraph(context, found):
        return context.truth(found)
    wanted = isinstance(measure, TensorValue) and not isinstance(best, TensorValue)
    context.recorder.numbers.rely_on(found, wanted=wanted, kind=ASSUMPTION)
    return wanted


def _are_open(context: CaptureContext, *numbers: Value) -> bool:
    """Whether these are numbers of one type that are no constants: the larger one is an expression."""
    kinds = {one.python_type(context) for one in numbers}
    return (kinds == {int} or kinds == {float}) and any(map(is_open, numbers))


# ---- text and numbers ----


@calls(pow)
def _pow(context: CaptureContext, base: Value, exp: Value, mod: Value | None = None) -> Value:
    if mod is None or context.is_none(mod):
        return context.binary(operator.pow, base, exp)
    return run_folded(context, pow, [base, exp, mod], {})


@calls(str)
def _str(context: CaptureContext, value: Value | None = None) -> Value:
    if value is None:
        return ConstantValue("")
    return ConstantValue(context.text_of(value, 1))


@calls(bool)
def _bool(context: CaptureContext, value: Value | None = None) -> Value:
    if isinstance(value, TensorValue) and value.fake.numel() == 1 and may_be_read(context, value):
        known = value.decided_truth(context)  # a decision by guards, ahead of a bool that only the graph knows
        if known is not None:
            return ConstantValue(known)
        truth = value if value.fake.dtype is torch.bool else context.compare(operator.ne, value, ConstantValue(0))
        return context.call_tensor_method(truth, "item", [], {})  # type: ignore[arg-type]
    return ConstantValue(value is not None and context.truth(value))


def _number(context: CaptureContext, kind: Any, special: str, args: tuple[Value, ...]) -> Value:
    if args and isinstance(args[0], ArrayValue) and args[0].scalar:
        args = (args[0].tensor, *args[1:])
    if args and isinstance(args[0], TensorValue):
        rely_on_method(context, args[0].cls, special)
        known = context.recorder.known_number(args[0].fake)
        if known is not None:
            return ConstantValue(kind(known))
        read = context.call_tensor_method(args[0], "item", [], {})
        return context.call(context.known(kind), [read], {})
    if args and isinstance(args[0], ObjectValue):
        method = args[0].special(context, special)
        if method is not None:
            result = method.call(context, [], {})
            if result.python_type(context) is not kind:
                raise unsupported("special-method", f"{special} that returns no {class_name(kind)}")
            return result
    return run_folded(context, kind, list(args), {})


handlers.add_all(
    {
        range: lambda context, *bounds: range_of(context, bounds),
        all: lambda context, items: ConstantValue(all(context.truth(item) for item in _lazy_items(context, items))),
        any: lambda context, items: ConstantValue(any(context.truth(item) for item in _lazy_items(context, items))),
        max: lambda context, *values, **options: _extreme(context, max, operator.gt, values, options),
        min: lambda context, *values, **options: _extreme(context, min, operator.lt, values, options),
        setattr: lambda context, owner, name, value: owner.set_attr(context, _attribute_name(context, name), value),
        delattr: lambda context, owner, name: owner.del_attr(context, _attribute_name(context, name)),
        repr: lambda context, value: ConstantValue(context.text_of(value, 2)),
        int: lambda context, *args, base=None: (
            _number(context, int, "__int__", args)
            if base is None
            else run_folded(context, int, list(args), {"base": base})
        ),
        float: lambda context, *args: _number(context, float, "__float__", args),
    }
)
