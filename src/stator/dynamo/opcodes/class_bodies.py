"""The body of a class: names that are looked up in, and put into, the namespace of the class to be. How the class is
made of them is in calls/class_statements.py."""

from __future__ import annotations

import builtins
import enum

from ..bytecode import Instruction
from ..frame import Frame
from ..program import opcode
from ..values.base import Value, unsupported
from ..values.made_classes import StandInValue
from .names import load_deref


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: Frame, instruction: Instruction) -> None:
    tracer = frame.tracer
    frame.push_read(tracer.scope_of(vars(builtins)).load(tracer, "__build_class__"))


def _namespace(frame: Frame) -> dict[str, Value]:
    if frame.namespace is None:
        raise unsupported("opcode", "names of a class body or module outside of one")
    return frame.namespace


def _found(frame: Frame, name: str) -> Value | None:
    found = (frame.locals if frame.namespace is None else frame.namespace).get(name)
    if isinstance(found, StandInValue) and isinstance(found.stand_in, enum.auto):
        raise unsupported("class-definition", f"{name}, to which the enumeration being made gives a value")
    return found


@opcode("LOAD_NAME")
def load_name(frame: Frame, instruction: Instruction) -> None:
    value = _found(frame, instruction.argval)
    frame.push_read(value if value is not None else frame.globals.load(frame.tracer, instruction.argval))


@opcode("STORE_NAME")
def store_name(frame: Frame, instruction: Instruction) -> None:
    _namespace(frame)[instruction.argval] = frame.stack.pop()


@opcode("DELETE_NAME")
def delete_name(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    if _namespace(frame).pop(name, None) is None:
        raise frame.tracer.raised(NameError, f"name '{name}' is not defined")


@opcode("LOAD_CLASSDEREF")
def load_classderef(frame: Frame, instruction: Instruction) -> None:
    value = _found(frame, instruction.argval)
    if value is not None:
        frame.push_read(value)
    else:
        load_deref(frame, instruction)


@opcode("LOAD_LOCALS")
def load_locals(frame: Frame, instruction: Instruction) -> None:
    """Followed by one of the two below, which know whose they are."""
    following = frame.program.instructions[frame.now + 1].opname
    if frame.namespace is None or following not in ("LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"):
        raise unsupported("opcode", "the variables of a class body as a dictionary")
    frame.stack.append(None)


@opcode("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(frame: Frame, instruction: Instruction) -> None:
    if frame.stack.pop() is not None:
        raise unsupported("opcode", "names looked up in another dictionary than a class body's")
    load_classderef(frame, instruction)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(frame: Frame, instruction: Instruction) -> None:
    if frame.stack.pop() is not None:
        raise unsupported("opcode", "names looked up in another dictionary than a class body's")
    load_name(frame, instruction)


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(frame: Frame, instruction: Instruction) -> None:
    _namespace(frame).setdefault("__annotations__", frame.tracer.dict_of([]))
