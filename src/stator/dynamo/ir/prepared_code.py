"""A code object prepared for symbolic execution: decoded once, with its opcode handlers, and cached. The handlers
themselves live in handlers/opcodes/."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from types import CodeType, FunctionType, ModuleType
from typing import Any

from stator.base.registry import Registry
from stator.dynamo.bytecode import Instruction, decode, live_locals, reachable
from stator.dynamo.host.hook import is_skipped

from .resume import resumption_of

Handler = Callable[[Any, Instruction], Any]  # (symbolic frame, instruction) -> signal or None

opcodes: Registry[str, Handler] = Registry("opcode")


def opcode(*names: str) -> Callable[[Handler], Handler]:
    """Decorator: registers `handler(frame, instruction)` for one or several opcodes. A handler that ends the frame's
    run (return, yield) returns a signal; every other handler returns None."""
    return opcodes.register(*names)


def pushes(values: Mapping[str, Callable[[Any, Any], Any]]) -> None:
    """Register opcodes that push one value, each with the function that makes it."""
    for name, make in values.items():
        opcodes.add(name, partial(_push, make))


def _push(make: Handler, frame: Any, instruction: Instruction) -> None:
    frame.stack.append(make(frame, instruction))


class PreparedCode:
    """The instructions of a code object and, at the same indices, their handlers. The owner keeps the code alive."""

    __slots__ = (
        "_code",
        "_live",
        "_used",
        "finishes_call",
        "handlers",
        "instructions",
        "is_generator",
        "is_one_frame",
        "loop_starts",
        "resumption",
        "truths_to_go_on",
    )

    def __init__(self, code: CodeType) -> None:
        self._code = weakref.ref(code)
        self.instructions = decode(code)
        self.handlers = [opcodes.get(instruction.opname) for instruction in self.instructions]
        self.resumption = resumption_of(code)
        self.is_generator = bool(code.co_flags & (0x20 | 0x80 | 0x200))
        # by index of a conditional jump; handlers/torch_calls/data_assertions.py fills it
        self.truths_to_go_on: dict[int, bool | None] = {}
        # by index of a conditional jump; interpreter/varying_loops.py fills it
        self.loop_starts: dict[int, int | None] = {}
        self.is_one_frame = _is_one_frame(code, self.instructions)
        # the instruction by which code that resumes a frame inside a call resumes the called function
        self.finishes_call = -1 if self.resumption is None else self.resumption.finishes_call()
        self._live: dict[int, frozenset[str]] = {}
        self._used: dict[int, frozenset[str]] = {}

    @property
    def code(self) -> CodeType:
        code = self._code()
        assert code is not None
        return code

    def user_index(self, index: int) -> int:
        """The index of an instruction in the user's code, from which this code may have been made."""
        return index if self.resumption is None else self.resumption.index(index)

    def live_locals(self, index: int) -> frozenset[str]:
        """Names of variables that may be read, from an instruction on, before they are assigned."""
        found = self._live.get(index)
        if found is None:
            found = self._live[index] = live_locals(self.instructions, index)
        return found

    def names_used(self, index: int) -> frozenset[str]:
        """Names of variables and cells that the instructions from this index on may refer to."""
        found = self._used.get(index)
        if found is None:
            instructions = reachable(self.instructions, self.instructions[index])
            found = frozenset(one.argval for one in instructions if type(one.argval) is str)
            pairs = (name for one in instructions if type(one.argval) is tuple for name in one.argval)
            found = self._used[index] = found.union(name for name in pairs if type(name) is str)
        return found


def item_parameter(code: CodeType) -> str | None:
    """The parameter of the item, if this code resumes a frame behind a FOR_ITER that took one. None otherwise."""
    resumption = resumption_of(code)
    if resumption is None or resumption.point.inner is not None or not resumption.point.index:
        return None
    point = resumption.point
    loop = prepare_code(point.code).instructions[point.index - 1]
    if loop.opname != "FOR_ITER" or loop.target is None or loop.target.index == point.index:
        return None
    return point.stack_parameter(len(point.stack) - 1)


# functions that return the program's own frame, which must then be a single frame from beginning to end
_KEEPS_FRAMES = frozenset({"_getframe", "currentframe"})


def _is_one_frame(code: CodeType, instructions: Sequence[Instruction]) -> bool:
    """Whether the program gets hold of its own frame, which must then be a single frame from beginning to end. Before
    3.13, `locals()` returns one dictionary per frame and updates it at each call."""
    if not _KEEPS_FRAMES.isdisjoint(code.co_names):
        return True
    if sys.version_info >= (3, 13) or "locals" not in code.co_names:
        return False
    asked = sum(one.argval == "locals" and one.opname in ("LOAD_GLOBAL", "LOAD_NAME") for one in instructions)
    return asked > 1 or any("BACKWARD" in one.opname for one in instructions)


_LOOKS_AT_VARIABLES = frozenset({"locals", "vars", "eval", "exec", "dir", "breakpoint", "stack"})
_THEIR_MODULES = frozenset({"builtins", "inspect"})
_LOADS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM"})


def global_names(code: CodeType) -> set[str]:
    """The names of global variables that the code, or a function or class inside of it, reads."""
    inside = [global_names(constant) for constant in code.co_consts if type(constant) is CodeType]
    return {one.argval for one in prepare_code(code).instructions if one.opname in _LOADS_GLOBAL}.union(*inside)


def reads_no_frame(code: CodeType) -> bool:
    """Whether the code uses none of the functions by which a program reads all variables of its own frame. Attributes
    of other objects, such as `torch.stack` and `model.eval`, share the names of some of them."""
    if not _KEEPS_FRAMES.isdisjoint(code.co_names):
        return False
    if _LOOKS_AT_VARIABLES.isdisjoint(code.co_names):
        return True
    if not _THEIR_MODULES.isdisjoint(code.co_names):
        return False
    instructions = prepare_code(code).instructions
    return not any(one.argval in _LOOKS_AT_VARIABLES and one.opname in _LOADS_GLOBAL for one in instructions)


def callees_read_frames(code: CodeType, names: Mapping[str, Any]) -> bool:
    """Whether a function among the global variables that this code names, or a function that such a function names,
    reads the variables of its caller's frame, like a function `evaluate("a * b")` does."""
    return any(_gets_at_variables(function, _CALLS_DEEP) for function in _functions_named(code, names))


TWO_OF_A_NAME = "in which a free variable and one of a comprehension, read by a function inside, share a name"
RENAME = "rename one of the two variables"


def has_two_of_a_name(code: CodeType) -> bool:
    """Whether an inlined comprehension (since 3.12) has a cell with the name of a free variable. CPython's own
    instructions confuse the two there."""
    return any(name in code.co_freevars for name in code.co_cellvars)


def must_stay_one_frame(code: CodeType, names: Mapping[str, Any]) -> bool:
    """Whether a frame of this code cannot continue as another frame behind a break: the program keeps the frame, or a
    function that the code names returns the frame's variables."""
    return prepare_code(code).is_one_frame or any(map(_gives_back_variables, _functions_named(code, names)))


def _gives_back_variables(function: FunctionType) -> bool:
    """Whether a function returns a frame's `f_locals`, directly or by a variable."""
    if "f_locals" not in function.__code__.co_names:
        return False
    steps = prepare_code(function.__code__).instructions
    pairs = list(pairwise(steps))
    returned = {one.argval for one, after in pairs if one.opname.startswith("LOAD") and after.opname == "RETURN_VALUE"}
    stored = {after.argval for one, after in pairs if one.argval == "f_locals" and after.opname == "STORE_FAST"}
    return "f_locals" in returned or not stored.isdisjoint(returned)


_CALLS_DEEP = 2


def _gets_at_variables(function: FunctionType, depth: int) -> bool:
    code = function.__code__
    if "f_locals" in code.co_names:
        return True
    if not depth or is_skipped(code):
        return False
    return any(_gets_at_variables(one, depth - 1) for one in _functions_named(code, function.__globals__))


def _functions_named(code: CodeType, names: Mapping[str, Any]) -> Iterator[FunctionType]:
    """The functions among the named global variables and in modules among these, without those of skipped files."""
    found = [names[name] for name in code.co_names if name in names]
    for one in found:
        if type(one) is FunctionType:
            yield one
        elif type(one) is ModuleType:
            inside = vars(one)
            if str(inside.get("__name__")).partition(".")[0] not in _WITHOUT_INTEREST:
                yield from (inside[name] for name in code.co_names if type(inside.get(name)) is FunctionType)


_WITHOUT_INTEREST = frozenset((*sys.stdlib_module_names, "torch", "numpy"))


# by the id of the code, because distinct code objects compare equal; the weak reference removes the entry
_programs: dict[int, tuple[weakref.ref[CodeType], PreparedCode]] = {}


def prepare_code(code: CodeType) -> PreparedCode:
    key = id(code)
    found = _programs.get(key)
    if found is None or found[0]() is not code:
        found = _programs[key] = weakref.ref(code, partial(_forget, key)), PreparedCode(code)
    return found[1]


def _forget(key: int, reference: object) -> None:
    found = _programs.get(key)
    if found is not None and found[0] is reference:
        del _programs[key]
