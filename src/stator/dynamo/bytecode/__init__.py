"""CPython bytecode as data: decode a code object into instructions, and assemble instructions into a code object.

Covers CPython 3.11 to 3.14; `version.py` describes their differences. torch is never imported here.
"""

from .assemble import BytecodeError, assemble
from .builder import CodeBuilder
from .decode import decode
from .instruction import NOWHERE, Handler, Instruction, Position
from .liveness import always_bound, live_locals, stored_variables
from .stack import reachable, stack_depths, stack_effect
from .text import instructions_text
from .version import OPERAND_KINDS, VERSION, Version
