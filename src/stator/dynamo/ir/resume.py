"""Code that resumes a frame in the middle, behind a graph break. It is made from the original code.

Resume code keeps the user's file, name and lines, so that tracebacks show the program as it was written. If resume
code breaks in turn, its resume code is made from the original again, so a frame has at most one per break.
"""

from __future__ import annotations

import enum
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType

from stator.dynamo.bytecode import OPERAND_KINDS, CodeBuilder, Instruction, assemble, decode, reachable

_STACK_PREFIX = "__stack_"  # prefix of resume code's parameters that bring the value stack


def is_stack_name(name: str) -> bool:
    """Whether a parameter of resume code, maybe of the function it resumes inside a call, brings a stack slot."""
    return name.startswith(_STACK_PREFIX)


class Slot(enum.Enum):
    """The content of a slot of the value stack when a frame is resumed."""

    VALUE = "value"  # passed as an argument
    NULL = "NULL"
    # the offset of the instruction that raised, below its exception; only `f_lineno` of the frame, once it has ended,
    # depends on it, so 0 stands for it
    LASTI = "lasti"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The position and the state in which a frame is resumed.

    code: the user's code, never generated code.
    index: the instruction of the decoded `code` to resume at.
    stack: the value stack there, bottom first.
    locals: names of bound local variables, passed as arguments, in this order.
    cells: names of cell variables that exist; their cells are the last of the closure.
    handlers: positions of stack slots that keep the previously handled exception, one for each running handler.
    private_cells: names of those cells that only the frame holds.
    inner: names of the arguments for the code that resumes a called function. The instruction before `index` is that
        call; the resumed frame calls that code first and pushes its result. None: the frame is not inside a call.
    varying: parameters that bring lists and tuples whose lengths change from call to call.
    """

    code: CodeType
    index: int
    stack: tuple[Slot, ...]
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    handlers: tuple[int, ...] = ()
    private_cells: tuple[str, ...] = ()
    inner: tuple[str, ...] | None = None
    varying: tuple[str, ...] = ()

    @property
    def calling(self) -> int:
        """The index of the call instruction, if the frame is inside a call."""
        return self.index - 1

    def stack_parameter(self, position: int) -> str:
        """The parameter that brings the value of this stack slot."""
        return self.stack_parameters[self.stack[:position].count(Slot.VALUE)]

    @property
    def stack_parameters(self) -> list[str]:
        taken = set(self.locals) | set(self.code.co_varnames)
        names: list[str] = []
        for slot in self.stack:
            if slot is Slot.VALUE:
                name = f"{_STACK_PREFIX}{len(names)}"
                while name in taken:
                    name += "_"
                names.append(name)
        return names

    def values_of_stacks(self) -> list[str]:
        """The parameters that bring values of stack slots, those of called functions included."""
        inside = (name for name in self.inner or () if is_stack_name(name))
        return [*self.stack_parameters, *inside]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the resume code."""
        return (*self.locals, *self.stack_parameters, *(self.inner or ()))

    @property
    def closure(self) -> tuple[str, ...]:
        """The variables of the cells in the resume code's closure: free variables, then cell variables of the frame."""
        return self.code.co_freevars + self.cells


@dataclass(frozen=True, slots=True)
class Resumption:
    """The facts about a code object made here.

    indices: for each decoded instruction, its index in the user's code; None for added instructions.
    first_call: a function that the code calls first of all, without arguments.
    last_call: a function that the code calls right before the user's instructions.
    """

    point: ResumePoint
    indices: tuple[int | None, ...]
    first_call: Callable[[], object] | None
    last_call: Callable[[], object] | None

    def finishes_call(self) -> int:
        """The instruction that calls the resume code of a called function; -1 if there is none."""
        return -1 if self.point.inner is None else self.indices.index(self.point.calling)

    def index(self, instruction: int) -> int:
        """The user's instruction at which to resume if this code would be resumed at `instruction`."""
        while self.indices[instruction] is None:  # an added instruction stands in front of the user's
            instruction += 1
        return self.indices[instruction]  # type: ignore[return-value]


_made: dict[int, tuple[weakref.ref[CodeType], Resumption]] = {}  # by id: distinct code objects compare equal


def resumption_of(code: CodeType) -> Resumption | None:
    """The facts about resume code; None for other code."""
    found = _made.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def _forget(key: int, _: object) -> None:
    _made.pop(key, None)


def closure_of(code: CodeType) -> tuple[str, ...]:
    """The variables of the cells that a function of this code is called with, in the order of its `__closure__`."""
    resumption = resumption_of(code)
    return code.co_freevars if resumption is None else resumption.point.closure


def take_cells(builder: CodeBuilder, handed_over: Sequence[str], closure: Sequence[str]) -> None:
    """Take the cells of the closure. The last cells belong to variables of the frame itself; `first_call` takes those.
    They stay cell variables, because the interpreter's message for unbound variables depends on that, and so does
    `frame.f_locals`, which looks for a MAKE_CELL: the code has one, in a place that is never reached."""
    if handed_over:
        behind = builder.label()
        builder.jump(behind)
        for name in handed_over:
            builder.make_cell(name)
        builder.append(behind)
    free = len(closure) - len(handed_over)
    if free:
        builder.add("COPY_FREE_VARS", free, free)


def resume_code(
    point: ResumePoint,
    first_call: Callable[[], object] | None = None,
    callee: Callable[..., object] | None = None,
    last_call: Callable[[], object] | None = None,
) -> CodeType:
    """Code that takes `point.locals`, then the values of the stack, as positional arguments, and resumes there.

    `first_call` also has to move the cells of `point.cells` from the closure to the variables just before the free
    variables. Without `first_call` they are free variables, too, which changes the message for unbound ones. `callee`
    resumes the called function, if `point.inner` is not None. `last_call` runs under the program's own handlers, which
    therefore see its exceptions.
    """
    original = decode(point.code)
    entry = original[point.index]
    kept = _reached(original, point)
    own = () if first_call is None else point.cells
    builder = CodeBuilder()
    builder.position = entry.position
    take_cells(builder, own, point.closure)
    builder.resume()
    if first_call is not None:
        _call_and_drop(builder, first_call)
    _push_stack(builder, point)
    if point.inner is not None:
        _call_inner(builder, original[point.calling], callee, point)
    if last_call is not None:
        before = len(builder.instructions)
        _call_and_drop(builder, last_call)
        for instruction in builder.instructions[before:]:
            instruction.handler = entry.handler
    start = Instruction("NOP", position=entry.position, handler=entry.handler)
    jump = builder.jump(start)
    if point.inner is not None:
        jump.index = entry.index  # the call may be the break of this code, and then resumes here
    instructions = builder.instructions
    instructions += _with_regions_closed(kept, entry, start)
    pairs = [instruction for instruction in instructions if OPERAND_KINDS.get(instruction.opname) == "pair"]
    code = _assemble(point, instructions, point.parameters, own)
    key = id(code)
    resumption = Resumption(point, _indices(instructions, pairs), first_call, last_call)
    _made[key] = weakref.ref(code, partial(_forget, key)), resumption
    return code


def _push_stack(builder: CodeBuilder, point: ResumePoint) -> None:
    names = iter(point.stack_parameters)
    for slot in point.stack:
        if slot is Slot.NULL:
            builder.null()
        elif slot is Slot.LASTI:
            builder.const(0)
        else:
            name = next(names)
            builder.load_bound(name)
            builder.delete(name)  # so that an object dies as soon as the stack drops it


def _call_and_drop(builder: CodeBuilder, function: Callable[[], object]) -> None:
    builder.const_callee(function)
    builder.call(0)
    builder.pop()


def _reached(original: Sequence[Instruction], point: ResumePoint) -> list[Instruction]:
    """The instructions that can run when the frame is resumed there."""
    kept = reachable(original, original[point.index])
    handler = original[point.calling].handler if point.inner is not None else None
    indices = {instruction.index for instruction in kept}
    if handler is not None and handler.target.index not in indices:
        indices.update(instruction.index for instruction in reachable(original, handler.target))
    return [original[index] for index in sorted(indices)]


def _call_inner(
    builder: CodeBuilder, call: Instruction, callee: Callable[..., object] | None, point: ResumePoint
) -> None:
    """Push the result of the called function's resume code. The frame's handler of the call catches its exceptions."""
    assert callee is not None and point.inner is not None
    before, position = len(builder.instructions), builder.position
    builder.position = call.position
    builder.const_callee(callee)
    for name in point.inner:
        builder.load_bound(name)
        builder.delete(name)
    builder.call(len(point.inner))
    builder.instructions[-1].index = call.index
    builder.position = position
    for instruction in builder.instructions[before:]:
        instruction.handler = call.handler


def _indices(instructions: Sequence[Instruction], pairs: Sequence[Instruction]) -> tuple[int | None, ...]:
    """For each assembled instruction, its index in the original code. No code resumes between the two halves of an
    instruction on a `pair` of variables."""
    split = {id(pair) for pair in pairs if OPERAND_KINDS.get(pair.opname) != "pair"}
    found: list[int | None] = []
    for instruction in instructions:
        found.append(instruction.index if instruction.index >= 0 else None)
        if id(instruction) in split:
            found.append(None)
    return tuple(found)


def _with_regions_closed(kept: Sequence[Instruction], entry: Instruction, start: Instruction) -> list[Instruction]:
    """`kept` with `start`, a NOP, before `entry`. A NOP in its exception region precedes each instruction that lost
    its predecessor: 3.13 looks up an exception of a called Python function one unit before the call."""
    closed: list[Instruction] = []
    previous = -1
    for instruction in kept:
        if instruction is entry:
            closed.append(start)
        elif instruction.index != previous + 1 and instruction.handler is not None:
            closed.append(Instruction("NOP", position=instruction.position, handler=instruction.handler))
        closed.append(instruction)
        previous = instruction.index
    return closed


def _assemble(
    point: ResumePoint, instructions: list[Instruction], parameters: tuple[str, ...], own_cells: tuple[str, ...]
) -> CodeType:
    code = point.code
    used = {name for instruction in instructions for name in _local_names(instruction)}
    others = tuple(
        name for name in code.co_varnames if name in used and name not in parameters and name not in point.cells
    )
    variables = parameters + others
    return assemble(
        instructions,
        code,
        co_argcount=len(parameters),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        co_varnames=variables,
        co_nlocals=len(variables),
        co_cellvars=(*(name for name in code.co_cellvars if name not in point.cells), *own_cells),
        co_freevars=point.closure[: len(point.closure) - len(own_cells)],
        co_consts=code.co_consts,
    )


def _local_names(instruction: Instruction) -> tuple[str, ...]:
    kind = OPERAND_KINDS.get(instruction.opname)
    if kind == "local":
        return (instruction.argval,)
    return instruction.argval if kind == "pair" else ()
