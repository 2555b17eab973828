"""Reading and writing of names: locals, cells, globals, attributes, imports. Capture runs an import, and guards rely on
the module; values/modules.py reads names of modules."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from typing import Any

from stator.dynamo.bytecode import VERSION, Instruction
from stator.dynamo.graph.finalizers import check_cell, check_variable
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import BuiltinSource, ConstantSource, ItemSource
from stator.dynamo.interpreter.frame import Frame
from stator.dynamo.ir.prepared_code import opcode, opcodes, pushes
from stator.dynamo.values.base import CaptureContext, Lazy, Raised, Value, unsupported
from stator.dynamo.values.scopes import CellValue


def _unbound(frame: Frame, name: str) -> Raised:
    if name in frame.program.code.co_freevars:
        text = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
        return frame.context.raised(NameError, text)
    text = f"cannot access local variable '{name}' where it is not associated with a value"
    return frame.context.raised(UnboundLocalError, text)


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
def load_fast(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    value = frame.locals.get(name)
    if value is None:
        cell = frame.cells.get(name)  # 3.13 loads the cells themselves this way
        if cell is None:
            raise _unbound(frame, name)
        frame.stack.append(cell)
        return
    if type(value) is Lazy:
        value = frame.locals[name] = value.realize(frame.context)
    frame.stack.append(value)


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    value = frame.cells.pop(name) if name in frame.cells else frame.locals.pop(name, None)
    frame.stack.append(value.realize(frame.context) if type(value) is Lazy else value)


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        one = instruction.copy()
        one.argval = name
        load_fast(frame, one)


@opcode("STORE_FAST")
def store_fast(frame: Frame, instruction: Instruction) -> None:
    # 3.12 restores the variables of an inlined comprehension, which may be unbound or cells; behind a break, the cells
    # come from the code before it
    name, value = instruction.argval, frame.stack.pop()
    code = frame.program.code
    if type(value) is CellValue and (name in code.co_cellvars or name in code.co_freevars):
        frame.cells[name] = value
    elif value is None:
        frame.cells.pop(name, None)
        frame.locals.pop(name, None)
    else:
        check_variable(frame, frame.locals.get(name))
        frame.locals[name] = value
        frame.cells.pop(name, None)


@opcode("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(frame: Frame, instruction: Instruction) -> None:
    stored, loaded = instruction.argval
    check_variable(frame, frame.locals.get(stored))
    frame.locals[stored] = frame.stack.pop()
    frame.push_read(frame.locals[loaded])


@opcode("STORE_FAST_STORE_FAST")
def store_fast_store_fast(frame: Frame, instruction: Instruction) -> None:
    for name in instruction.argval:
        check_variable(frame, frame.locals.get(name))
        frame.locals[name] = frame.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(frame: Frame, instruction: Instruction) -> None:
    old = frame.locals.pop(instruction.argval, None)
    if old is None:
        raise _unbound(frame, instruction.argval)
    check_variable(frame, old)


# ---- cells ----


@opcode("MAKE_CELL")
def make_cell(frame: Frame, instruction: Instruction) -> None:
    name = instruction.argval
    frame.cells[name] = CellValue(frame.locals.pop(name, None))


@opcode("LOAD_DEREF")
def load_deref(frame: Frame, instruction: Instruction) -> None:
    cell = frame.cells[instruction.argval]
    if cell.content is None:
        raise _unbound(frame, instruction.argval)
    frame.push_read(cell.content)


@opcode("STORE_DEREF")
def store_deref(frame: Frame, instruction: Instruction) -> None:
    cell = frame.cells[instruction.argval]
    check_cell(frame, cell.content)
    cell.content = frame.stack.pop()
    frame.context.mutations.cell(cell)


@opcode("DELETE_DEREF")
def delete_deref(frame: Frame, instruction: Instruction) -> None:
    cell = frame.cells[instruction.argval]
    if cell.content is None:
        raise _unbound(frame, instruction.argval)
    check_cell(frame, cell.content)
    cell.content = None
    frame.context.mutations.cell(cell)


# ---- globals ----


@opcode("LOAD_GLOBAL")
def load_global(frame: Frame, instruction: Instruction) -> None:
    found = frame.globals.load(frame.context, instruction.argval)
    if instruction.flags & 1:
        push_callable(frame, found)
    else:
        frame.stack.append(found)


# ---- attributes ----


@opcode("LOAD_ATTR")
def load_attr(frame: Frame, instruction: Instruction) -> None:
    owner = frame.stack.pop()
    found = frame.context.get_attr(owner, instruction.argval)
    if instruction.flags & 1:  # 3.12: as LOAD_METHOD
        push_callable(frame, found)
    else:
        frame.stack.append(found)


def push_callable(frame: Frame, callee: Value) -> None:
    """Push a callable and a NULL in the order of this version's calling convention."""
    pair = (callee, None) if VERSION.callee_first else (None, callee)
    frame.stack.extend(pair)


@opcode("LOAD_METHOD")
def load_method(frame: Frame, instruction: Instruction) -> None:
    owner = frame.stack.pop()
    push_callable(frame, frame.context.get_attr(owner, instruction.argval))


@opcode("STORE_ATTR")
def store_attr(frame: Frame, instruction: Instruction) -> None:
    owner = frame.stack.pop()
    value = frame.stack.pop()
    owner.set_attr(frame.context, instruction.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(frame: Frame, instruction: Instruction) -> None:
    owner = frame.stack.pop()
    owner.del_attr(frame.context, instruction.argval)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(frame: Frame, instruction: Instruction) -> None:
    superclass, cls, owner = frame.pop_many(3)
    arguments: list[Value] = [cls, owner]
    value = frame.context.call(superclass, arguments, {})
    found = frame.context.get_attr(value, instruction.argval)
    if instruction.flags & 1:
        push_callable(frame, found)
    else:
        frame.stack.append(found)


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: Frame, instruction: Instruction) -> None:
    context = frame.context
    frame.push_read(context.scope_of(vars(builtins)).load(context, "__build_class__"))


# ---- imports ----


@opcode("IMPORT_NAME")
def import_name(frame: Frame, instruction: Instruction) -> None:
    names = frame.context.constant_of(frame.stack.pop(), "names of an import")
    level = frame.context.constant_of(frame.stack.pop(), "level of an import")
    frame.stack.append(imported(frame.context, frame.globals.names, instruction.argval, names, level))


_IMPORT = builtins.__import__


def imported(context: CaptureContext, namespace: dict[str, Any], name: Any, names: Any = (), level: int = 0) -> Value:
    """The module of `import name`, or of `from name import names`, in a module with these globals."""
    if builtins.__import__ is not _IMPORT:
        raise unsupported("call-builtin", "an import, while the program has replaced __import__")
    context.guard(BuiltinSource("__import__"), GuardKind.IS, _IMPORT)
    package = namespace.get("__package__") or namespace.get("__name__")
    known = {"__package__": package, "__name__": namespace.get("__name__")}
    module = context.run_real(_IMPORT, (name, known, None, names, level))
    whole = importlib.util.resolve_name("." * level + name, package) if level else name
    for part in {whole, whole if names or level else whole.partition(".")[0]}:
        if part in sys.modules:
            found = ItemSource(ConstantSource("sys.modules", sys.modules), part)
            context.guard(found, GuardKind.IS, sys.modules[part])
    return context.known(module)


pushes(
    {
        "LOAD_CLOSURE": lambda frame, at: frame.cells[at.argval],
        "LOAD_ASSERTION_ERROR": lambda frame, at: frame.context.known(AssertionError),
        "IMPORT_FROM": lambda frame, at: frame.context.get_attr(frame.stack[-1], at.argval),
    }
)


opcodes.add_all(
    {
        "LOAD_CONST": lambda frame, instruction: frame.stack.append(frame.context.code_constant(instruction.argval)),
        "STORE_FAST_MAYBE_NULL": lambda frame, instruction: store_fast(frame, instruction),
        "STORE_GLOBAL": lambda frame, instruction: frame.globals.store(
            frame.context, instruction.argval, frame.stack.pop()
        ),
        "DELETE_GLOBAL": lambda frame, instruction: frame.globals.store(frame.context, instruction.argval, None),
    }
)
