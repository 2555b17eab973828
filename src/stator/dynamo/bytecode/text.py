"""Instructions as text for dumps and logs."""

from __future__ import annotations

from collections.abc import Sequence

from .instruction import Instruction
from .version import OPERAND_KINDS


def instructions_text(instructions: Sequence[Instruction]) -> str:
    """One line per instruction: source line when it changes, index, mark of jump targets, opname, operand, handler."""
    place = {id(instruction): index for index, instruction in enumerate(instructions)}
    targets = {id(instruction.target) for instruction in instructions if instruction.target is not None}
    targets |= {id(instruction.handler.target) for instruction in instructions if instruction.handler is not None}
    lines = []
    previous: int | None = None
    for index, instruction in enumerate(instructions):
        line = instruction.line
        shown = "" if line is None or line == previous else str(line)
        previous = line if line is not None else previous
        mark = ">>" if id(instruction) in targets else "  "
        text = f"{shown:>5} {mark} {index:4} {instruction.opname:<24}{_operand_text(instruction, place)}"
        if instruction.handler is not None:
            handler = instruction.handler
            text = f"{text:<72} ! to {place[id(handler.target)]} at depth {handler.depth}"
        lines.append(text.rstrip())
    return "\n".join(lines) + "\n"


def _operand_text(instruction: Instruction, place: dict[int, int]) -> str:
    if instruction.target is not None:
        return f"to {place[id(instruction.target)]}"
    if instruction.arg is None and instruction.argval is None and instruction.opname not in OPERAND_KINDS:
        return ""
    value = instruction.argval
    if OPERAND_KINDS.get(instruction.opname) == "const":
        text = _short(value)
    elif isinstance(value, tuple):
        text = ", ".join(map(str, value))
    else:
        text = str(instruction.arg if value is None else value)
    return f"{text} (flags {instruction.flags})" if instruction.flags else text


# read past metaclasses, which may define properties
_class_name = type.__dict__["__name__"].__get__
_qualified_name = type.__dict__["__qualname__"].__get__
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def _short(value: object) -> str:
    """A repr that is short and cannot fail: large objects are named by type."""
    if isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(item, _PLAIN) for item in value)):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    name = _qualified_name(value) if isinstance(value, type) else getattr(value, "__qualname__", None)
    return f"<{_class_name(type(value))} {name}>" if isinstance(name, str) else f"<{_class_name(type(value))}>"
