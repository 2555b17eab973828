"""CPython bytecode as data: decode a code object into instructions, assemble instructions into a code object.

Covers CPython 3.11 to 3.13. What differs between them is described in `version.py`; torch is never imported here.
"""

from .assemble import BytecodeError, assemble
from .builder import Builder
from .decode import decode
from .instruction import NOWHERE, Handler, Instruction, Position
from .stack import stack_depths
from .text import instructions_text
from .version import VERSION, Version

__all__ = [
    "NOWHERE",
    "VERSION",
    "Builder",
    "BytecodeError",
    "Handler",
    "Instruction",
    "Position",
    "Version",
    "assemble",
    "decode",
    "instructions_text",
    "stack_depths",
]
