"""Instructions that build, unpack and subscript containers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from stator.dynamo.bytecode import Instruction
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, ReadSource
from stator.dynamo.host.naming import class_name, full_name, is_python_class
from stator.dynamo.interpreter.frame import Frame
from stator.dynamo.interpreter.object_model.formatting import CONVERSIONS
from stator.dynamo.ir.prepared_code import opcode, pushes
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.sets import SetValue, set_methods
from stator.dynamo.values.containers.slices import SliceValue
from stator.dynamo.values.deferred_text import NumberText, PendingTextValue, joined, number_text
from stator.dynamo.values.symbolic_numbers import SymbolicNumber, is_known_when_the_graph_runs
from stator.dynamo.values.tensors.tensor import TensorValue


@opcode("BUILD_MAP")
def build_map(frame: Frame, instruction: Instruction) -> None:
    flat = frame.pop_many(2 * instruction.arg)  # type: ignore[operator]
    made = DictValue({})
    for at in range(0, len(flat), 2):
        made.put(frame.context, flat[at], flat[at + 1])
    frame.stack.append(made)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: Frame, instruction: Instruction) -> None:
    keys = frame.stack.pop()
    values = frame.pop_many(instruction.arg)  # type: ignore[arg-type]
    made = DictValue({})
    for key, value in zip(frame.context.iterate(keys), values, strict=True):
        made.put(frame.context, key, value)
    frame.stack.append(made)


@opcode("BUILD_STRING")
def build_string(frame: Frame, instruction: Instruction) -> None:
    context = frame.context
    values = frame.pop_many(instruction.arg)  # type: ignore[arg-type]
    pending = next((value for value in values if isinstance(value, PendingTextValue)), None)
    if pending is None:
        parts = [
            value if isinstance(value, NumberText) else ConstantValue(context.constant_of(value, "part of an f-string"))
            for value in values
        ]
        frame.stack.append(joined(parts))
    else:
        frame.stack.append(pending)


@opcode("BUILD_SLICE")
def build_slice(frame: Frame, instruction: Instruction) -> None:
    parts = frame.pop_many(instruction.arg)  # type: ignore[arg-type]
    if len(parts) == 2:
        parts.append(frame.context.constant(None))
    frame.stack.append(SliceValue(*parts))


# This expression made the container below on the stack. Behind a graph break in the middle of the expression it is an
# argument, and additions to it are mutations.


@opcode("LIST_APPEND")
def list_append(frame: Frame, instruction: Instruction) -> None:
    item = frame.stack.pop()
    target = frame.stack[-instruction.arg]  # type: ignore[operator]
    target.add(item)
    frame.context.mutations.content(target)


@opcode("SET_ADD")
def set_add(frame: Frame, instruction: Instruction) -> None:
    item = frame.stack.pop()
    target = frame.stack[-instruction.arg]  # type: ignore[operator]
    target.add(frame.context, item)
    frame.context.mutations.content(target)


@opcode("MAP_ADD")
def map_add(frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    key = frame.stack.pop()
    frame.stack[-instruction.arg].store(frame.context, key, value)  # type: ignore[operator]


@opcode("LIST_EXTEND")
def list_extend(frame: Frame, instruction: Instruction) -> None:
    more = frame.stack.pop()
    target = frame.stack[-instruction.arg]  # type: ignore[operator]
    _check_iterable(frame, more, "Value after * must be an iterable, not {}")
    target.add(*frame.context.listed(more))
    frame.context.mutations.content(target)


@opcode("SET_UPDATE")
def set_update(frame: Frame, instruction: Instruction) -> None:
    more = frame.stack.pop()
    target = frame.stack[-instruction.arg]  # type: ignore[operator]
    set_methods["update"](frame.context, target, more)


@opcode("DICT_UPDATE")
def dict_update(frame: Frame, instruction: Instruction) -> None:
    more = frame.stack.pop()
    target = frame.stack[-instruction.arg]  # type: ignore[operator]
    for key, value in frame.context.mapping_items(more):
        target.store(frame.context, key, value)


@opcode("DICT_MERGE")
def dict_merge(frame: Frame, instruction: Instruction) -> None:
    more = frame.stack.pop()
    target = frame.stack[-instruction.arg]  # type: ignore[operator]
    for key, value in frame.context.mapping_items(more):
        if target.has(frame.context, key):
            raise unsupported("call", "a keyword argument that is given twice")
        target.store(frame.context, key, value)


def _check_iterable(frame: Frame, value: Value, message: str) -> None:
    """Raise TypeError, with the text of the instruction, for a constant or number that has no items."""
    value = frame.context.realized(value)
    if isinstance(value, (ConstantValue, SymbolicNumber)):
        kind = value.python_type(frame.context)
        if not hasattr(kind, "__iter__"):
            raise frame.context.raised(TypeError, message.format(class_name(kind)))


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(frame: Frame, instruction: Instruction) -> None:
    wanted: int = instruction.arg  # type: ignore[assignment]
    unpacked = frame.stack.pop()
    _check_iterable(frame, unpacked, "cannot unpack non-iterable {} object")
    items = list(itertools.islice(frame.context.iterate(unpacked), wanted + 1))  # like Python, take no more
    if len(items) > wanted:
        raise frame.context.raised(ValueError, f"too many values to unpack (expected {wanted})")
    if len(items) < wanted:
        raise frame.context.raised(ValueError, f"not enough values to unpack (expected {wanted}, got {len(items)})")
    frame.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(frame: Frame, instruction: Instruction) -> None:
    before, after = instruction.arg & 0xFF, instruction.arg >> 8  # type: ignore[operator]
    unpacked = frame.stack.pop()
    _check_iterable(frame, unpacked, "cannot unpack non-iterable {} object")
    items = list(frame.context.iterate(unpacked))
    if len(items) < before + after:
        raise frame.context.raised(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    rest = ListValue(items[before : len(items) - after])
    tail = items[len(items) - after :]
    parts: list[Value] = [*items[:before], rest, *tail]
    frame.stack.extend(reversed(parts))


@opcode("STORE_SUBSCR")
def store_subscr(frame: Frame, instruction: Instruction) -> None:
    key = frame.stack.pop()
    owner = frame.stack.pop()
    value = frame.stack.pop()
    owner.set_item(frame.context, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(frame: Frame, instruction: Instruction) -> None:
    key = frame.stack.pop()
    owner = frame.stack.pop()
    owner.del_item(frame.context, key)


@opcode("STORE_SLICE")
def store_slice(frame: Frame, instruction: Instruction) -> None:
    between = _slice(frame)
    owner = frame.stack.pop()
    owner.set_item(frame.context, between, frame.stack.pop())


def _slice(frame: Frame) -> SliceValue:
    start, stop = frame.pop_many(2)
    return SliceValue(start, stop, frame.context.constant(None))


@opcode("FORMAT_VALUE")
def format_value(frame: Frame, instruction: Instruction) -> None:
    flags: int = instruction.arg  # type: ignore[assignment]
    spec = _specification(frame) if flags & 4 else ""
    frame.stack.append(_formatted(frame, frame.stack.pop(), flags & 3, spec))


def _specification(frame: Frame) -> str:
    return frame.context.constant_of(frame.stack.pop(), "format specification")  # type: ignore[no-any-return]


def _is_pending(context: CaptureContext, value: Value) -> bool:
    """Whether the text of this value is made after the capture. torch's own text of a tensor has no effects and never
    fails."""
    if isinstance(value, TensorValue):
        kind = value.python_type(context)
        return all(
            context.class_lookup(kind, name) is getattr(owner, name)
            for owner, name in ((torch.Tensor, "__format__"), (torch.Tensor, "__repr__"), (object, "__str__"))
        )
    return isinstance(value, PendingTextValue) or is_known_when_the_graph_runs(value)


_OF_TEXT_AS_IT_IS = (0, 1)  # none and !s; !r and !a quote it


def _formatted(frame: Frame, value: Value, conversion: int, spec: str) -> Value:
    context = frame.context
    if not spec and _is_pending(context, value):
        as_it_is = isinstance(value, PendingTextValue) and conversion in _OF_TEXT_AS_IT_IS
        return value if as_it_is else PendingTextValue(getattr(value, "made_at", context.end_step()))
    shown = number_text(context, CONVERSIONS[conversion], [value]) if conversion else value
    text = None if shown is None else number_text(context, format, [shown, ConstantValue(spec)])
    if text is not None:
        return text
    return context.constant(context.format_value(value, conversion, spec))


@opcode("CONVERT_VALUE")
def convert_value(frame: Frame, instruction: Instruction) -> None:
    value = frame.stack.pop()
    if _is_pending(frame.context, value) or number_text(frame.context, str, [value]) is not None:
        frame.stack.append(_formatted(frame, value, instruction.arg, ""))  # type: ignore[arg-type]
        return
    frame.stack.append(frame.context.constant(frame.context.text_of(value, instruction.arg)))  # type: ignore[arg-type]


_SEQUENCE, _MAPPING = 1 << 5, 1 << 6  # flags of types


def _whether(frame: Frame, is_such: Callable[[type], bool]) -> Value:
    """A program may register a class of its own as a sequence or mapping later, so a guard holds the class's flag."""
    kind = frame.stack[-1].python_type(frame.context)
    found = is_such(kind)
    if not found and is_python_class(kind):
        of_class = ConstantSource(full_name(kind), kind)
        frame.context.guard(ReadSource(is_such, (of_class,)), GuardKind.EQUALS, False)
    return frame.context.constant(found)


def _is_sequence(kind: type) -> bool:
    return bool(kind.__flags__ & _SEQUENCE)


def _is_mapping(kind: type) -> bool:
    return bool(kind.__flags__ & _MAPPING)


@opcode("MATCH_KEYS")
def match_keys(frame: Frame, instruction: Instruction) -> None:
    """Push the tuple of the subject's values under the keys of a pattern, or None if one is missing."""
    context = frame.context
    subject, keys = frame.stack[-2:]
    missing = TupleValue([])
    wanted, values = list(context.iterate(keys)), list[Value]()
    if len({key.key(context) for key in wanted}) < len(wanted):
        raise unsupported("call", "a pattern that asks for one key twice")
    for key in wanted:
        values.append(subject.call_method(context, "get", [key, missing], {}))
        if values[-1] is missing:
            frame.stack.append(context.constant(None))
            return
    frame.stack.append(TupleValue(values))


pushes(
    {
        "BUILD_TUPLE": lambda frame, at: TupleValue(frame.pop_many(at.arg)),
        "BUILD_LIST": lambda frame, at: ListValue(frame.pop_many(at.arg)),
        "BUILD_SET": lambda frame, at: SetValue.of(frame.context, frame.pop_many(at.arg)),
        "LIST_TO_TUPLE": lambda frame, at: TupleValue(list(frame.stack.pop().items)),
        "BINARY_SUBSCR": lambda frame, at: frame.context.get_item(*frame.pop_many(2)),
        "BINARY_SLICE": lambda frame, at: frame.context.get_item(frame.stack.pop(-3), _slice(frame)),
        "FORMAT_SIMPLE": lambda frame, at: _formatted(frame, frame.stack.pop(), 0, ""),
        "FORMAT_WITH_SPEC": lambda frame, at: _formatted(frame, frame.stack.pop(-2), 0, _specification(frame)),
        "GET_LEN": lambda frame, at: frame.context.constant(frame.stack[-1].length(frame.context)),
        "MATCH_SEQUENCE": lambda frame, at: _whether(frame, _is_sequence),
        "MATCH_MAPPING": lambda frame, at: _whether(frame, _is_mapping),
    }
)
