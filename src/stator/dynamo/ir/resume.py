"""Code that continues a frame in the middle: made from the original code, entered behind a graph break.

Made code keeps the user's file, name and lines, so that tracebacks show the program as it was written. Where it breaks
in turn, it is continued by code made from the original again, so that a frame has no more of them than places to break.
"""

from __future__ import annotations

import enum
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType

from stator.dynamo.bytecode import OPERAND_KINDS, CodeBuilder, Instruction, assemble, code_units, decode, reachable

_STACK_PREFIX = "__stack_"  # of the parameters of made code that hold the value stack


def is_stack_name(name: str) -> bool:
    """Whether a parameter of made code, maybe on behalf of a function inside, brings a value of the stack."""
    return name.startswith(_STACK_PREFIX)


class Offset(int):
    """In made code: where an instruction stands that raised. `index`: which instruction of the user's code it was."""

    index: int


class Slot(enum.Enum):
    """What a slot of the value stack holds when a frame is continued."""

    VALUE = "value"  # passed as an argument
    NULL = "NULL"
    LASTI = "lasti"  # the offset of the instruction that raised, under its exception


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where and with what a frame is continued.

    code: the user's, never one that was made here.
    index: instruction of the decoded `code` to go on with.
    stack: the value stack there, bottom first.
    locals: names of bound local variables, passed as arguments, in this order.
    cells: names of cell variables that exist; their cells are the last of the closure.
    raised_at: for each LASTI slot, the index of the instruction that raised.
    handlers: positions of stack slots that keep what was handled before, one for each handler that is running.
    inner: the instruction before `index` called a function, and the frame goes on by calling what goes on with the
        function, with values that come in as arguments of these names, and pushing the result. None: the frame is not
        in a call.
    """

    code: CodeType
    index: int
    stack: tuple[Slot, ...]
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    raised_at: tuple[int, ...] = ()
    handlers: tuple[int, ...] = ()
    inner: tuple[str, ...] | None = None

    @property
    def calling(self) -> int:
        """The instruction that called the function, where the frame is in a call."""
        return self.index - 1

    def stack_parameter(self, position: int) -> str:
        """The name of the parameter that brings the value of this stack slot."""
        return self._stack_names()[self.stack[:position].count(Slot.VALUE)]

    def _stack_names(self) -> list[str]:
        taken = set(self.locals) | set(self.code.co_varnames)
        names: list[str] = []
        for slot in self.stack:
            if slot is Slot.VALUE:
                name = f"{_STACK_PREFIX}{len(names)}"
                while name in taken:
                    name += "_"
                names.append(name)
        return names

    @property
    def parameters(self) -> tuple[str, ...]:
        """Of the code that goes on there."""
        return (*self.locals, *self._stack_names(), *(self.inner or ()))

    @property
    def closure(self) -> tuple[str, ...]:
        """What the cells in the resume function's closure are: free variables, then variables of the frame."""
        return self.code.co_freevars + self.cells


@dataclass(frozen=True, slots=True)
class Resumption:
    """What is known of a code object made here.

    indices: of each of its decoded instructions, the one in the user's code; None for those that were added.
    first_call: what it calls, without arguments, before anything else.
    last_call: what it calls where the user's code goes on.
    """

    point: ResumePoint
    indices: tuple[int | None, ...]
    first_call: Callable[[], object] | None
    last_call: Callable[[], object] | None

    def finishes_call(self) -> int:
        """The instruction that calls what goes on with the function that the frame had called; -1: there is none."""
        return -1 if self.point.inner is None else self.indices.index(self.point.calling)

    def index(self, instruction: int) -> int:
        """The instruction of the user's code to go on with when the made code would go on with this one."""
        while self.indices[instruction] is None:  # added in front of it
            instruction += 1
        return self.indices[instruction]  # type: ignore[return-value]


_made: dict[int, tuple[weakref.ref[CodeType], Resumption]] = {}  # by the code's id, as equal code is not the same


def resumption_of(code: CodeType) -> Resumption | None:
    """None for code that was not made here."""
    found = _made.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def _forget(key: int, _: object) -> None:
    _made.pop(key, None)


def closure_of(code: CodeType) -> tuple[str, ...]:
    """The variables whose cells a function of this code is called with, in the order of its `__closure__`."""
    resumption = resumption_of(code)
    return code.co_freevars if resumption is None else resumption.point.closure


def take_cells(builder: CodeBuilder, handed_over: Sequence[str], closure: Sequence[str]) -> None:
    """Take the cells of the closure; the last, of variables of the frame itself, are taken by what is called first.
    They stay variables of the frame, for what the interpreter says of unbound ones. What it shows of a frame goes by
    whether its code has made a cell of the variable: so it has, in a place that is never come to."""
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
    """A code object that takes `point.locals`, then the stack's values, as positional arguments, and goes on there.

    `first_call` also has to take the cells of `point.cells` out of the closure, to the variables just before the free
    ones. Without it they are free variables, too, which shows in what is said of unbound ones.
    `callee` goes on with the function that the frame had called, if `point.inner` says that there is one.
    `last_call` is made where the code goes on: what it raises, the program's own handlers there see."""
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
    offsets = [_Unplaced(index) for index in point.raised_at]
    _push_stack(builder, point, offsets)
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
        jump.index = entry.index  # the call may be where the code is left, to go on here
    instructions = builder.instructions
    for offset in offsets:
        offset.marker = Instruction("NOP", position=original[offset.index].position)  # only its offset is used
        instructions.append(offset.marker)
    instructions += _with_regions_closed(kept, entry, start)
    pairs = [instruction for instruction in instructions if OPERAND_KINDS.get(instruction.opname) == "pair"]
    code = _assemble(point, instructions, point.parameters, own)
    if offsets:
        code = _with_places(code, instructions, offsets)
    key = id(code)
    resumption = Resumption(point, _indices(instructions, pairs), first_call, last_call)
    _made[key] = weakref.ref(code, partial(_forget, key)), resumption
    return code


def _push_stack(builder: CodeBuilder, point: ResumePoint, offsets: list[_Unplaced]) -> None:
    names, waiting = iter(point._stack_names()), iter(offsets)
    for slot in point.stack:
        if slot is Slot.NULL:
            builder.null()
        elif slot is Slot.LASTI:
            builder.const(next(waiting))
        else:
            name = next(names)
            builder.load_bound(name)
            builder.delete(name)  # the frame must not keep alive what the stack lets go


def _with_places(code: CodeType, instructions: list[Instruction], offsets: list[_Unplaced]) -> CodeType:
    """The code with the places of instructions that have raised, which are known when it is assembled."""
    units = code_units(code)
    placed = {id(offset): offset.placed(units[instructions.index(offset.marker)]) for offset in offsets}
    return code.replace(co_consts=tuple(placed.get(id(value), value) for value in code.co_consts))


def _call_and_drop(builder: CodeBuilder, function: Callable[[], object]) -> None:
    builder.const_callee(function)
    builder.call(0)
    builder.pop()


def _reached(original: Sequence[Instruction], point: ResumePoint) -> list[Instruction]:
    """The instructions that can run when the frame goes on there."""
    kept = reachable(original, original[point.index])
    handler = original[point.calling].handler if point.inner is not None else None
    indices = {instruction.index for instruction in kept}
    if handler is not None and handler.target.index not in indices:
        indices.update(instruction.index for instruction in reachable(original, handler.target))
    return [original[index] for index in sorted(indices)]


def _call_inner(
    builder: CodeBuilder, call: Instruction, callee: Callable[..., object] | None, point: ResumePoint
) -> None:
    """-> the result of the function. Where it raises, the frame's handler of the call takes over."""
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
    """Of each instruction as it was assembled, its index in the code that it was taken from. Nothing goes on between
    the two halves of an instruction on a `pair` of variables."""
    split = {id(pair) for pair in pairs if OPERAND_KINDS.get(pair.opname) != "pair"}
    found: list[int | None] = []
    for instruction in instructions:
        found.append(instruction.index if instruction.index >= 0 else None)
        if id(instruction) in split:
            found.append(None)
    return tuple(found)


class _Unplaced:
    """Stands in the constants for an Offset until the code is assembled."""

    marker: Instruction

    def __init__(self, index: int) -> None:
        self.index = index

    def placed(self, unit: int) -> Offset:
        offset = Offset(unit)
        offset.index = self.index
        return offset


def _with_regions_closed(kept: Sequence[Instruction], entry: Instruction, start: Instruction) -> list[Instruction]:
    """`kept` with `start`, a NOP, before `entry`; and a NOP of its region before each instruction that lost the one in
    front of it: 3.13 looks an exception that leaves a called Python function up one unit before the call."""
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
