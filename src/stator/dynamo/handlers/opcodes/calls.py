"""Calls, and the creation of functions."""

from __future__ import annotations

import operator
from types import GeneratorType

from stator.dynamo.bytecode import Instruction
from stator.dynamo.interpreter.frame import Frame
from stator.dynamo.interpreter.generators import STOPPED_GENERATOR
from stator.dynamo.interpreter.object_model.iteration import may_iterate
from stator.dynamo.ir.prepared_code import opcode
from stator.dynamo.values.base import unsupported
from stator.dynamo.values.containers.iterators import stopped_inside
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.functions import FunctionValue


@opcode("KW_NAMES")
def kw_names(frame: Frame, instruction: Instruction) -> None:
    frame.kw_names = instruction.argval


@opcode("CALL")
def call(frame: Frame, instruction: Instruction) -> None:
    names, frame.kw_names = frame.kw_names, ()
    _call(frame, instruction.arg, names)  # type: ignore[arg-type]


@opcode("CALL_KW")
def call_kw(frame: Frame, instruction: Instruction) -> None:
    names = frame.context.constant_of(frame.stack.pop(), "names of keyword arguments")
    _call(frame, instruction.arg, names)  # type: ignore[arg-type]


def _call(frame: Frame, count: int, names: tuple[str, ...]) -> None:
    """Below the arguments are a callable and a NULL, in the order of this CPython version."""
    args = frame.pop_many(count)
    second = frame.stack.pop()
    first = frame.stack.pop()
    callee = second if first is None else first
    if first is not None and second is not None:
        args.insert(0, second)
    if names:
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:], strict=True))
        args = args[:split]
    else:
        kwargs = {}
    frame.context.enters(callee)
    frame.stack.append(callee.call(frame.context, args, kwargs))


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, instruction: Instruction) -> None:
    context = frame.context
    kwargs = {}
    if instruction.arg & 1:  # type: ignore[operator]
        for key, value in context.mapping_items(frame.stack.pop()):
            name = context.constant_of(key, "name of a keyword argument")
            if not isinstance(name, str):
                raise unsupported("call", "keyword arguments whose names are not strings")
            kwargs[name] = value
    items = frame.stack.pop()
    if not may_iterate(context, items):
        raise unsupported("call", f"{items.describe(context)} as the arguments behind a star")
    callee = frame.stack.pop()
    if callee is None:  # 3.13 keeps the NULL above the callable
        callee = frame.stack.pop()
    elif frame.stack and frame.stack[-1] is None:
        frame.stack.pop()
    args = list(context.listed(items))
    context.enters(callee)
    frame.stack.append(callee.call(context, args, kwargs))


@opcode("MAKE_FUNCTION")
def make_function(frame: Frame, instruction: Instruction) -> None:
    flags = instruction.arg or 0
    code = frame.context.constant_of(frame.stack.pop(), "a code object")
    made = FunctionValue.made(frame, code)
    for flag, part in ((8, "closure"), (4, "annotations"), (2, "kwdefaults"), (1, "defaults")):
        if flags & flag:
            made.set_part(frame.context, part, frame.stack.pop())
    frame.stack.append(made)


_PARTS = {1: "defaults", 2: "kwdefaults", 4: "annotations", 8: "closure"}


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(frame: Frame, instruction: Instruction) -> None:
    function = frame.stack.pop()
    function.set_part(frame.context, _PARTS[instruction.arg], frame.stack.pop())  # type: ignore[index]
    frame.stack.append(function)


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(frame: Frame, instruction: Instruction) -> None:
    top = frame.stack.pop()
    if instruction.arg == 3 and isinstance(top, ExceptionValue):  # StopIteration leaving a generator
        stopped = issubclass(top.python_type(frame.context), StopIteration)
        if stopped and frame.generator is not None and frame.generator.cls is not GeneratorType:
            raise stopped_inside()
        frame.stack.append(frame.context.raised(RuntimeError, STOPPED_GENERATOR).value if stopped else top)
    elif instruction.arg == 5:
        frame.stack.append(frame.context.unary(operator.pos, top))
    elif instruction.arg == 6 and isinstance(top, ListValue):
        frame.stack.append(TupleValue(list(top.items)))
    else:
        raise unsupported("opcode", f"intrinsic function {instruction.arg}")
