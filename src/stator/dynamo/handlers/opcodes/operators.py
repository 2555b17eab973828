"""Unary, binary and comparison operators; tests of identity and membership."""

from __future__ import annotations

import operator

from stator.dynamo.bytecode import Instruction
from stator.dynamo.bytecode.arithmetic import ARITHMETIC, COMPARISONS
from stator.dynamo.handlers.python_calls.operators import membership, negation
from stator.dynamo.handlers.torch_calls.data_assertions import decide, jump_behind
from stator.dynamo.interpreter.frame import Frame
from stator.dynamo.ir.prepared_code import opcode, pushes
from stator.dynamo.values.base import Value
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue

BINARY = {
    **ARITHMETIC,
    "[]": operator.getitem,
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
}


@opcode("COMPARE_OP")
def compare_op(frame: Frame, instruction: Instruction) -> None:
    right = frame.stack.pop()
    left = frame.stack.pop()
    result = frame.context.compare(COMPARISONS[instruction.argval], left, right)
    if instruction.flags & 16:  # 3.13: the result is made a bool
        result = _truth(frame, result)
    frame.stack.append(result)


def _truth(frame: Frame, value: Value) -> Value:
    """The truth of a value. A jump behind this instruction decides it; that of a number stays open until the jump."""
    context = frame.context
    if type(value) is SymbolicNumber:
        return value if value.kind is bool else context.compare(operator.ne, value, context.constant(0))
    jump = jump_behind(frame, frame.now)
    if jump is None and isinstance(value, TensorValue):  # for `not value`
        return context.call(context.known(bool), [value], {})
    return context.constant(context.truth(value) if jump is None else decide(frame, value, jump))


@opcode("CONTAINS_OP")
def contains_op(frame: Frame, instruction: Instruction) -> None:
    container = frame.stack.pop()
    item = frame.stack.pop()
    found = membership(frame.context, container, item)
    frame.stack.append(negation(frame.context, found) if instruction.arg else found)


pushes(
    {
        "BINARY_OP": lambda frame, at: frame.context.binary(BINARY[at.argval], *frame.pop_many(2)),
        "IS_OP": lambda frame, at: frame.context.constant(
            frame.context.identical(*frame.pop_many(2)) is not bool(at.arg)
        ),
        "TO_BOOL": lambda frame, at: _truth(frame, frame.stack.pop()),
        "UNARY_NOT": lambda frame, at: negation(frame.context, frame.stack.pop()),
        "UNARY_NEGATIVE": lambda frame, at: frame.context.unary(operator.neg, frame.stack.pop()),
        "UNARY_POSITIVE": lambda frame, at: frame.context.unary(operator.pos, frame.stack.pop()),
        "UNARY_INVERT": lambda frame, at: frame.context.unary(operator.invert, frame.stack.pop()),
    }
)
