"""A code object prepared for symbolic execution: decoded once, its opcode handlers looked up once, then cached.

The handlers themselves live in opcodes/.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from stator.base.registry import Registry

from .bytecode import Instruction, decode

if TYPE_CHECKING:
    from .frame import Frame

Handler = Callable[["Frame", Instruction], Any]

opcodes: Registry[str, Handler] = Registry("opcode")


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Decorator: the handler of one or several opcodes, `handler(frame, instruction)`.

    A handler that ends the frame's run (return, yield) returns a signal; every other handler returns None.
    """
    return opcodes.register(*names)


class Program:
    """The instructions of a code object with their handlers, side by side."""

    __slots__ = ("code", "handlers", "instructions", "is_generator")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.instructions = decode(code)
        self.handlers = [opcodes.get(instruction.opname) for instruction in self.instructions]
        self.is_generator = bool(code.co_flags & (0x20 | 0x80 | 0x200))


_programs: dict[int, Program] = {}  # by the identity of the code, which the program keeps alive
_MOST = 4096  # so that a process which makes code without end does not keep all of it


def program_of(code: CodeType) -> Program:
    found = _programs.get(id(code))
    if found is None:
        if len(_programs) >= _MOST:
            _programs.clear()
        found = _programs[id(code)] = Program(code)
    return found
