"""Functions of `builtins` that look at values: isinstance, getattr, len, iterators, aggregates."""

from __future__ import annotations

import abc
import builtins
import operator
import types
import typing
from collections.abc import Iterator
from types import FunctionType, GetSetDescriptorType
from typing import TYPE_CHECKING, Any

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, ConstantSource
from stator.dynamo.handlers.polyfills.iteration import until_as_iterator
from stator.dynamo.host.naming import class_name, full_name, module_of, qualified_name
from stator.dynamo.interpreter.calling import calls, fold, folded_argument, run_folded
from stator.dynamo.interpreter.long_loops import counted
from stator.dynamo.interpreter.object_model.import_guards import imported
from stator.dynamo.values.base import NotConstant, Raised, Value, unsupported
from stator.dynamo.values.classes import ClassValue, is_immutable_class
from stator.dynamo.values.constants import ConstantMethod, ConstantValue
from stator.dynamo.values.containers.iterators import EnumerateValue, IteratorValue, MapValue, ZipValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, SequenceValue, TupleValue
from stator.dynamo.values.containers.slices import RangeValue
from stator.dynamo.values.functions import BoundMethodValue, BuiltinMethodValue, BuiltinValue, FunctionValue
from stator.dynamo.values.modules import PythonModuleValue
from stator.dynamo.values.objects import MISSING, ObjectValue
from stator.dynamo.values.partials import PartialValue
from stator.dynamo.values.symbolic_numbers import is_known_when_the_graph_runs
from stator.dynamo.values.tensors.arrays import ArrayValue
from stator.dynamo.values.tensors.tensor import TensorMethodValue, TensorValue
from stator.dynamo.values.tensors.tensor_methods import rely_on_method

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

fold(chr, ord, hex, oct, bin, ascii, round, divmod, pow, format, complex, bytes)


_MOST_NESTED = 50  # tuples of classes in one another: who goes on to the limit of recursion does so in the interpreter


def _classes(context: CaptureContext, value: Value, depth: int = 0) -> tuple[Any, ...]:
    if isinstance(value, TupleValue):
        if depth > _MOST_NESTED:
            raise unsupported("call-builtin", "isinstance() or issubclass() with tuples nested that deeply")
        return tuple(cls for item in context.iterate(value) for cls in _classes(context, item, depth + 1))
    real = context.real_of(value, "a class")
    if isinstance(real, types.UnionType) and all(isinstance(one, type) for one in real.__args__):
        return real.__args__
    if not isinstance(real, type | types.UnionType) and module_of(type(real)) != "typing":
        raise unsupported("call-builtin", f"isinstance() or issubclass() with {value.describe(context)}")
    return (real,)


@calls(isinstance)
def _isinstance(context: CaptureContext, value: Value, classes: Value) -> Value:
    wanted = _classes(context, classes)
    kind = value.python_type(context)
    if isinstance(value, TensorValue):
        found = _tensor_isinstance(value, wanted)
        for one in () if found else wanted:
            _rely_on_no_registration(context, kind, one)
        return ConstantValue(found)
    return ConstantValue(any(_is_instance(context, value, kind, one) for one in wanted))


def _is_instance(context: CaptureContext, value: Value, kind: type, wanted: Any) -> bool:
    """isinstance(value, wanted) for one class, through its metaclass's `__instancecheck__` where that is Python."""
    if kind is wanted:
        return True
    check = context.class_lookup(type(wanted), "__instancecheck__") if isinstance(wanted, type) else None
    if isinstance(check, FunctionType) and not _asks_class_alone(check):
        answer = context.class_function(type(wanted), "__instancecheck__", check)
        return context.truth(answer.call(context, [context.known(wanted), value], {}))
    if wanted is typing.Any or (isinstance(wanted, type) and getattr(wanted, "_is_protocol", False)):
        if _is_known_subclass(kind, wanted) or _has_members(context, value, kind, wanted):
            return True
        _rely_on_members_alone(context, wanted)
        return False
    if isinstance(wanted, type) and check is type.__instancecheck__:
        found = wanted in (kind.__mro__ or ())  # it asks no __subclasscheck__
    else:
        if isinstance(wanted, types.UnionType):
            context.run_real(isinstance, (None, wanted))  # which may refuse what it is made of
        found = _is_subclass(context, kind, wanted)
    if found:
        return True
    in_its_own_way = isinstance(context.class_lookup(kind, "__getattribute__"), FunctionType)
    by_class = not in_its_own_way and isinstance(context.class_lookup(kind, "__class__"), GetSetDescriptorType)
    if isinstance(value, ObjectValue) and not by_class:
        raise unsupported("call-builtin", f"isinstance() of {value.describe(context)}, which says what its class is")
    return False


def _is_subclass(context: CaptureContext, kind: type, wanted: Any) -> bool:
    """issubclass() of classes, which abstract ones answer by what was registered so far."""
    found = bool(context.run_real(issubclass, (kind, wanted)))
    if not found:
        _rely_on_no_registration(context, kind, wanted)
    return found


def _rely_on_no_registration(context: CaptureContext, kind: type, wanted: Any) -> None:
    """A class may be registered with an abstract one later; once it is, it stays so."""
    classes = wanted.__args__ if isinstance(wanted, types.UnionType) else (wanted,)
    for one in classes:
        if isinstance(one, abc.ABCMeta):
            source = CallSource(issubclass, (_class_source(kind), _class_source(one)))
            context.guard(source, GuardKind.EQUALS, False)


def _class_source(cls: type) -> ConstantSource:
    return ConstantSource(full_name(cls), cls)


def _has_members(context: CaptureContext, value: Value, kind: type, protocol: Any) -> bool:
    """Whether an object has all that a protocol names, in its class or by itself."""
    if not getattr(protocol, "_is_runtime_protocol", False) or not isinstance(value, (ObjectValue, ConstantValue)):
        raise unsupported("call-builtin", f"isinstance() with {protocol.__qualname__}, which looks at attributes")
    for name in sorted(typing._get_protocol_attrs(protocol)):  # type: ignore[attr-defined]
        found = context.class_lookup(kind, name)
        own = value.own_attribute(context, name) if isinstance(value, ObjectValue) else None
        if found is MISSING and own is None:
            return False
        if callable(getattr(protocol, name, None)) and (context.is_none(own) if own is not None else found is None):
            return False
    return True


def _rely_on_members_alone(context: CaptureContext, protocol: Any) -> None:
    """What lacks a protocol's members is no instance, as long as no class is registered with it or with one below."""
    if protocol is typing.Any:
        return
    if _has_registered(protocol):
        raise unsupported("call-builtin", f"isinstance() with {protocol.__qualname__}, where classes are registered")
    context.guard(CallSource(_has_registered, (_class_source(protocol),)), GuardKind.EQUALS, False)


def _has_registered(cls: Any) -> bool:
    return bool(abc._get_dump(cls)[0]) or any(map(_has_registered, type.__subclasses__(cls)))  # type: ignore[attr-defined]


def _is_known_subclass(kind: type, protocol: Any) -> bool:
    try:
        return protocol is not typing.Any and issubclass(kind, protocol)
    except TypeError:  # of protocols with more than methods, and those that are not checked when the program runs
        return getattr(protocol, "_is_runtime_protocol", False) and protocol in kind.__mro__


def _asks_class_alone(check: FunctionType) -> bool:
    """Whether a metaclass's check of instances or subclasses is known to look at nothing but the class."""
    return (check.__module__ or "").partition(".")[0] in _KNOWN_CHECKS


_KNOWN_CHECKS = frozenset({"abc", "typing", "torch", "_py_abc", "enum"})


def _tensor_isinstance(value: TensorValue, wanted: tuple[Any, ...]) -> bool:
    """Legacy classes such as torch.FloatTensor and nn.Parameter decide by looking at the tensor."""
    return isinstance(value.obj if value.obj is not None else value.fake, wanted) and (
        value.obj is not None
        or issubclass(value.cls, tuple(cls for cls in wanted if isinstance(cls, type)))
        or any(module_of(type(cls)) == "torch" or module_of(cls) == "torch" for cls in wanted)
    )


@calls(issubclass)
def _issubclass(context: CaptureContext, cls: Value, classes: Value) -> Value:
    wanted = _classes(context, classes)
    for one in wanted:
        check = context.class_lookup(type(one), "__subclasscheck__")
        if isinstance(check, FunctionType) and not _asks_class_alone(check):
            raise unsupported("call-builtin", f"issubclass() with {qualified_name(type(one))}.__subclasscheck__")
    kind = context.real_of(cls, "a class")
    return ConstantValue(any(_is_subclass(context, kind, one) for one in wanted))


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


@calls(setattr)
def _setattr(context: CaptureContext, owner: Value, name: Value, value: Value) -> Value:
    owner.set_attr(context, _attribute_name(context, name), value)
    return ConstantValue(None)


@calls(delattr)
def _delattr(context: CaptureContext, owner: Value, name: Value) -> Value:
    owner.del_attr(context, _attribute_name(context, name))
    return ConstantValue(None)


@calls(object.__setattr__)
def _object_setattr(context: CaptureContext, owner: Value, name: Value, value: Value) -> Value:
    attribute = _attribute_name(context, name)
    if isinstance(owner, ObjectValue):
        owner.generic_set_attr(context, attribute, value)
    elif isinstance(owner, ClassValue):
        raise unsupported("attribute-write", "object.__setattr__ of a class, which refuses")
    else:
        owner.set_attr(context, attribute, value)
    return ConstantValue(None)


@calls(object.__getattribute__)
def _object_getattribute(context: CaptureContext, owner: Value, name: Value) -> Value:
    attribute = _attribute_name(context, name)
    if isinstance(owner, ObjectValue):
        return owner.generic_get_attr(context, attribute)
    return context.get_attr(owner, attribute)


@calls(vars)
def _vars(context: CaptureContext, owner: Value) -> Value:
    try:
        return context.get_attr(owner, "__dict__")
    except Raised as raised:
        if not issubclass(raised.value.python_type(context), AttributeError):
            raise
        raise context.raised(TypeError, "vars() argument must have __dict__ attribute") from None


@calls(dir)
def _dir(context: CaptureContext, owner: Value) -> Value:
    if isinstance(owner, ClassValue) and not is_immutable_class(owner.cls):
        raise unsupported("call-builtin", f"dir() of {owner.describe(context)}, which may change")
    if isinstance(owner, (ClassValue, PythonModuleValue)):
        return ListValue([ConstantValue(name) for name in context.run_real(dir, (owner.real(),))])
    raise unsupported("call-builtin", f"dir() of {owner.describe(context)}")


@calls(hash)
def _hash(context: CaptureContext, value: Value) -> Value:
    return ConstantValue(_hash_of(context, value))


def _hash_of(context: CaptureContext, value: Value) -> int:
    value = context.realized(value)
    if isinstance(value, TupleValue) and value.cls is tuple:
        return hash(tuple(_Hashed(_hash_of(context, item)) for item in value.items))
    if isinstance(value, ObjectValue):
        if context.class_lookup(value.cls, "__hash__") is None:
            raise context.raised(TypeError, f"unhashable type: '{class_name(value.cls)}'")
        method = value.special(context, "__hash__")
        if method is not None:
            return hash(_Hashed(context.constant_of(method.call(context, [], {}), "a hash")))
        if value.obj is not None and context.class_lookup(value.cls, "__hash__") is object.__hash__:
            context.guards.identity_once(value)
            return hash(value.obj)
    real = folded_argument(context, value, "hash")
    found: int = context.run_real(hash, (real,))
    return found


class _Hashed:
    """Has the hash that an item of a tuple has."""

    __slots__ = ("hash",)

    def __init__(self, hash_: int) -> None:
        self.hash = hash_

    def __hash__(self) -> int:
        return self.hash


# ---- size and iteration ----


@calls(len)
def _len(context: CaptureContext, value: Value) -> Value:
    if isinstance(value, TensorValue) and value.fake.dim():
        rely_on_method(context, value.cls, "__len__")
        return context.wrap_result(value.fake.shape[0], "the length of a tensor")
    return ConstantValue(value.length(context))


@calls(iter)
def _iter(context: CaptureContext, value: Value, sentinel: Value | None = None) -> Value:
    if sentinel is not None:
        if context.class_lookup(value.python_type(context), "__call__") is MISSING:
            raise unsupported("call-builtin", "iter() of two arguments, the first of which cannot be called")
        return context.call(context.known(until_as_iterator), [value, sentinel], {})
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


def _steps(context: CaptureContext, value: Value) -> Iterator[Value]:
    """Items on demand, through the value's own iterator, which is made at once: what has none fails now."""
    return _items_of(context, context.iterator(value))


def _items_of(context: CaptureContext, iterator: Value) -> Iterator[Value]:
    return iter(lambda: context.next_item(iterator), None)  # type: ignore[arg-type,return-value]


@calls(zip)
def _zip(context: CaptureContext, *values: Value, strict: Value | None = None) -> Value:
    iterators = [context.iterator(value) for value in values]
    check = strict is not None and context.truth(strict)
    rows = _zipped(context, [_items_of(context, iterator) for iterator in iterators], check)
    return ZipValue(iterators, check, rows)


def _zipped(context: CaptureContext, sources: list[Iterator[Value]], strict: bool) -> Iterator[Value]:
    while sources:
        row: list[Value] = []
        for at, source in enumerate(sources):
            item = next(source, None)
            if item is None:
                if strict and (at or any(next(other, None) is not None for other in sources[1:])):
                    raise unsupported("iteration", "zip(strict=True) of iterables that end one after another")
                return
            row.append(item)
        yield TupleValue(row)


@calls(enumerate)
def _enumerate(context: CaptureContext, iterable: Value, start: Value | None = None) -> Value:
    first = context.index_of(start) if start is not None else 0
    return EnumerateValue(context.iterator(iterable), first)


@calls(map)
def _map(context: CaptureContext, function: Value, *values: Value) -> Value:
    if not values:
        raise unsupported("call-builtin", "map() of a function alone")
    return MapValue(function, [context.iterator(value) for value in values])


@calls(filter)
def _filter(context: CaptureContext, function: Value, iterable: Value) -> Value:
    def keep(item: Value) -> bool:
        return context.truth(item if context.is_none(function) else context.call(function, [item], {}))

    return IteratorValue((item for item in _steps(context, iterable) if keep(item)), False, filter, context.end_step())


@calls(reversed)
def _reversed(context: CaptureContext, value: Value) -> Value:
    if isinstance(value, ObjectValue) and context.class_lookup(value.cls, "__reversed__") is None:
        raise context.raised(TypeError, f"'{class_name(value.cls)}' object is not reversible")
    if isinstance(value, ObjectValue) and not isinstance(value, SequenceValue):
        method = value.special(context, "__reversed__")
        if method is not None:
            return method.call(context, [], {})
        if not isinstance(value, DictValue):
            items = [context.get_item(value, ConstantValue(at)) for at in range(value.length(context))]
            return IteratorValue(iter(items[::-1]), cls=reversed, made_at=context.end_step())
    if isinstance(value, SequenceValue) and value.special(context, "__iter__") is None:
        return value.backwards(context)
    if isinstance(value, RangeValue):
        return context.iterator(RangeValue(context.constant_of(value, "a range")[::-1]))
    return IteratorValue(iter(list(context.iterate(value))[::-1]), cls=reversed, made_at=context.end_step())


@calls(range)
def _range(context: CaptureContext, *bounds: Value) -> Value:
    return RangeValue(context.run_real(range, tuple(context.index_of(bound) for bound in bounds)))


@calls(sorted)
def _sorted(context: CaptureContext, items: Value, key: Value | None = None, reverse: Value | None = None) -> Value:
    return ListValue(context.sorted_items(list(context.listed(items)), key, reverse))


# ---- aggregates ----


@calls(all)
def _all(context: CaptureContext, items: Value) -> Value:
    return ConstantValue(all(context.truth(item) for item in _steps(context, items)))


@calls(any)
def _any(context: CaptureContext, items: Value) -> Value:
    return ConstantValue(any(context.truth(item) for item in _steps(context, items)))


@calls(sum)
def _sum(context: CaptureContext, items: Value, start: Value | None = None) -> Value:
    total = start if start is not None else ConstantValue(0)
    if issubclass(total.python_type(context), bytearray):
        raise unsupported("call-builtin", "sum() of bytes, which refuses")
    if issubclass(total.python_type(context), (str, bytes)):
        return context.run_real(sum, ((), context.constant_of(total, "the start of a sum")))  # refuses it
    # known numbers that come first are summed by the interpreter itself, which from 3.12 on adds floats with care
    numbers: list[Value] | None = [] if _is_known_number(total) else None
    for item in counted(_steps(context, items)):  # each is added before the next is made
        if numbers is not None and _is_known_number(item):
            numbers.append(item)
            continue
        total = context.binary(operator.add, _sum_of_known(context, total, numbers), item)
        numbers = None
    return _sum_of_known(context, total, numbers)


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
    for item in context.iterate(values[0]) if len(values) == 1 else values:  # each is looked at before the next is made
        measure = context.call(key, [item], {}) if by_key else item  # type: ignore[arg-type]
        if best is None or measure_of_best is None:
            best, measure_of_best = item, measure
        elif not by_key and len(values) != 2 and _is_of_unknown(context, best, item):
            best = measure_of_best = context.call(context.known(function), [best, item], {})
        elif context.truth(context.compare(better, measure, measure_of_best)):
            best, measure_of_best = item, measure
    if best is not None:
        return best
    if default is not None:
        return default
    return context.run_real(function, ((),))  # raises the error of this version


def _is_of_unknown(context: CaptureContext, *numbers: Value) -> bool:
    """Whether these are whole numbers, of which one only the run can tell: two of them are compared in the graph."""
    whole = all(one.python_type(context) is int for one in numbers)
    return whole and any(map(is_known_when_the_graph_runs, numbers))


@calls(max)
def _max(context: CaptureContext, *values: Value, **options: Value) -> Value:
    return _extreme(context, max, operator.gt, values, options)


@calls(min)
def _min(context: CaptureContext, *values: Value, **options: Value) -> Value:
    return _extreme(context, min, operator.lt, values, options)


# ---- text and numbers ----


@calls(repr)
def _repr(context: CaptureContext, value: Value) -> Value:
    return ConstantValue(context.text_of(value, 2))


@calls(str)
def _str(context: CaptureContext, value: Value | None = None) -> Value:
    if value is None:
        return ConstantValue("")
    text = context.text_of(value, 1)
    return ConstantValue(text)


@calls(bool)
def _bool(context: CaptureContext, value: Value | None = None) -> Value:
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


@calls(int)
def _int(context: CaptureContext, *args: Value, base: Value | None = None) -> Value:
    return (
        _number(context, int, "__int__", args) if base is None else run_folded(context, int, list(args), {"base": base})
    )


@calls(float)
def _float(context: CaptureContext, *args: Value) -> Value:
    return _number(context, float, "__float__", args)


# ---- what cannot be captured ----


@calls(builtins.locals, builtins.globals, builtins.eval, builtins.exec, builtins.compile, builtins.open, builtins.input)
def _refused(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    raise unsupported("call-builtin", "locals(), globals(), eval(), exec(), compile(), open() or input()")


@calls(builtins.__import__)
def _import(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    named = dict(zip(("name", "globals", "locals", "fromlist", "level"), args, strict=False)) | kwargs
    if len(args) > 5 or "name" not in named or kwargs.keys() - {"globals", "locals", "fromlist", "level"}:
        raise unsupported("call-builtin", "arguments of __import__()")
    if "level" in named and context.constant_of(named["level"], "the level of an import") != 0:
        raise unsupported("call-builtin", "__import__() of something beside the module")
    names = context.real_of(named["fromlist"], "the names of an import") if "fromlist" in named else ()
    return imported(context, {}, context.constant_of(named["name"], "a module's name"), names)
