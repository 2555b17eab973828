"""Instructions as text for dumps and logs."""

from __future__ import annotations

from collections.abc import Sequence

from .instruction import Instruction


def instructions_text(instructions: Sequence[Instruction]) -> str:
    """One line per instruction: source line when it changes, index, mark of jump targets, opname, operand, handler."""
    place = {id(instruction): index for index, instruction in enumerate(instructions)}
    targets = {id(instruction.target) for instruction in instructions if instruction.target is not None}
    targets |= {id(instruction.handler.target) for instruction in instructions if instruction.handler is not None}
    lines = []
    previous: int | None = None
    for index, instruction in enumerate(instructions):
        line = instruction.position.line
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
    if instruction.arg is None and instruction.argval is None:
        return ""
    value = (
        instruction.arg
        if instruction.argval is None and not instruction.opname.startswith(("LOAD_CONST", "RETURN_CONST"))
        else instruction.argval
    )
    text = value if isinstance(value, str) else _short(value)
    return f"{text} (flags {instruction.flags})" if instruction.flags else str(text)


def _short(value: object) -> str:
    """A repr that cannot flood a dump or fail: large objects are named by type."""
    if isinstance(value, (int, float, complex, str, bytes, bool, type(None), tuple, frozenset)):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    name = getattr(value, "__qualname__", None)
    return f"<{type(value).__name__} {name}>" if isinstance(name, str) else f"<{type(value).__name__}>"
