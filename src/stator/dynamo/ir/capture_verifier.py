"""The rules of a capture, checked before anything is compiled from it. Nothing here changes the capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from types import CodeType
from typing import Any

from stator.base.errors import VerificationError
from stator.dynamo.bytecode import Instruction, always_bound, decode, live_locals, stack_depths
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.guard_tree import bound_count
from stator.dynamo.guards.source import (
    AttrSource,
    BuiltinSource,
    CallSource,
    CellSource,
    ConstantSource,
    FunctionSource,
    GlobalSource,
    InstanceDictSource,
    LocalSource,
    ModuleGlobalSource,
    SizeSource,
    Source,
    StrideSource,
    TypeSource,
)
from stator.graph.fake.fake_mode import FakeTensor

from .capture_parts import members, parts
from .capture_result import Break, CapturedFrame, CaptureState, InnerFrame, Return
from .reconstruct_ir import FrameCell, GraphOutput, Load, NewCell, NewDict, NewList, Recipe
from .resume import closure_of

_ROOTS = (LocalSource, CellSource, FunctionSource, GlobalSource, ModuleGlobalSource, BuiltinSource, ConstantSource)
_LEAK = (CaptureState, FakeTensor)
_CLOSES_CYCLES = (NewCell, NewList, NewDict)  # objects that can be created empty and filled later
_EXCLUSIVE = frozenset((GuardKind.TYPE, GuardKind.EQUALS, GuardKind.LENGTH, GuardKind.DICT_KEYS, GuardKind.CODE))


def verify(captured: CapturedFrame) -> None:
    """Raises VerificationError for the first rule that a capture breaks.

    Graph: placeholders are the inputs, in order; each output is used; no recipe evaluated before the graph needs an
        output.
    Recipes: each source can be reached from the frame; recursive objects contain an object that can be created empty.
    Break: the stack is as deep as the code needs it there, and each variable that must be bound is bound.
    Guards: no two contradict one another. No part of the result belongs to the capture's own state.
    """
    for rule in RULES:
        for problem in rule(captured):
            raise VerificationError(f"the capture of {captured.code.co_qualname} is wrong: {problem}")


def _no_state_is_left(captured: CapturedFrame) -> Iterator[str]:
    for one in _everything(captured):
        if isinstance(one, _LEAK):
            yield f"it holds a {type(one).__name__}, which belongs to the capture alone"


# ---- graph ----


def _graph_fits(captured: CapturedFrame) -> Iterator[str]:
    used = {one.index for root in _after_graph(captured) for one in _within(root) if isinstance(one, GraphOutput)}
    if captured.graph is None:
        if used:
            yield f"output {min(used)} of a graph that is not there is used"
        return
    nodes = list(captured.graph.graph.nodes)
    placeholders = [node.name for node in nodes if node.op == "placeholder"]
    if [node.name for node in nodes[: len(placeholders)]] != placeholders:
        yield "a placeholder comes behind an operator"
    inputs = [entry.name for entry in captured.inputs]
    if placeholders != inputs:
        yield f"the graph takes {placeholders}, and its inputs are {inputs}"
    outputs = set(range(len(nodes[-1].args[0]))) if nodes and nodes[-1].op == "output" else set()
    if not outputs >= used:
        yield f"output {min(used - outputs)} is used, and the graph has {len(outputs)}"
    if outputs - used:
        yield f"output {min(outputs - used)} of the graph is not used"
    for recipe in (*captured.draws, *(entry.recipe for entry in captured.inputs)):
        if any(isinstance(one, GraphOutput) for one in _within(recipe)):
            yield "what the graph needs is made of its outputs"


# ---- recipes ----


def _sources_are_closed(captured: CapturedFrame) -> Iterator[str]:
    code = captured.code
    closure = closure_of(code)
    known = {*code.co_varnames[: bound_count(code)], *closure}
    cells = {*closure, *code.co_cellvars}
    for one in _everything(captured):
        if isinstance(one, LocalSource) and one.name not in known:
            yield f"it reads {one.name}, which is no parameter"
        elif isinstance(one, CellSource) and one.name not in closure:
            yield f"it reads the cell {one.name}, which the function has not"
        elif isinstance(one, FrameCell) and one.name not in cells:
            yield f"it reads the cell {one.name}, which the frame has not"
    guarded: set[Source] = set()
    for guard in captured.guards:
        _add_with_bases(guard.source, guarded)
    for root in (*(entry.recipe for entry in captured.inputs), *_after_graph(captured)):
        for one in _within(root):
            if isinstance(one, Load):
                yield from (f"it reads {base}, which no guard is about" for base in _unguarded(one.source, guarded))


def _add_with_bases(source: Source, found: set[Source]) -> None:
    """A guard on a source reads all bases of the source, too."""
    if source not in found:
        found.add(source)
        for base in members(source, Source):
            _add_with_bases(base, found)


def _unguarded(source: Source, guarded: set[Source]) -> Iterator[Source]:
    """Sources on the path to a source that no guard covers and whose kind of object is unknown."""
    for base in members(source, Source):
        if not isinstance(base, _ROOTS) and base not in guarded and not _is_known(base):
            yield base
        yield from _unguarded(base, guarded)


def _is_known(source: Source) -> bool:
    """Whether the kind of object there follows from another source: a call takes whatever it is given, each object has
    a class and may have a dictionary, a function its closure and defaults, a constant its attributes, a tensor
    sizes."""
    if isinstance(source, (CallSource, InstanceDictSource, SizeSource, StrideSource, TypeSource)):
        return True
    of_constant = isinstance(source, AttrSource) and isinstance(source.base, ConstantSource)
    return of_constant or (isinstance(source, AttrSource) and source.name in ("__closure__", "__kwdefaults__"))


def _objects_can_be_made(captured: CapturedFrame) -> Iterator[str]:
    roots = [*(entry.recipe for entry in captured.inputs), *captured.draws, *_after_graph(captured)]
    done: set[int] = set()
    for root in roots:
        path: list[Recipe] = []
        waiting: list[tuple[Recipe, int]] = [(root, 0)]
        while waiting:
            recipe, depth = waiting.pop()
            del path[depth:]
            if any(one is recipe for one in path):
                cycle = path[next(at for at, one in enumerate(path) if one is recipe) :]
                if not any(isinstance(one, _CLOSES_CYCLES) for one in cycle):
                    yield f"a {type(recipe).__name__} is a part of itself"
                continue
            if id(recipe) in done:
                continue
            done.add(id(recipe))
            path.append(recipe)
            waiting += [(child, depth + 1) for child in members(recipe, Recipe)]
    if captured.runs_original and captured.effects:
        yield "the frame's own code runs, and there are effects"


# ---- guards ----


def _guards_agree(captured: CapturedFrame) -> Iterator[str]:
    expected: dict[tuple[Source, GuardKind], Any] = {}
    for guard in captured.guards:
        if isinstance(guard.source, ConstantSource) and guard.kind is not GuardKind.LOOKUPS:
            yield f"a guard on the constant {guard.source} says nothing"
        if guard.kind in _EXCLUSIVE:
            key = guard.source, guard.kind
            known = expected.setdefault(key, guard.expected)
            both_nan = known != known and guard.expected != guard.expected
            if type(known) is not type(guard.expected) or (known != guard.expected and not both_nan):
                yield f"{guard} and {guard.kind.value} {known!r} cannot both hold"


# ---- exit ----


def _exit_fits(captured: CapturedFrame) -> Iterator[str]:
    exit_ = captured.exit
    if isinstance(exit_, Return):
        return
    instructions = decode(captured.code)
    if not 0 <= exit_.index < len(instructions):
        yield f"the frame stops before instruction {exit_.index} of {len(instructions)}"
        return
    if not exit_.inner:
        yield from _stack_fits(instructions, exit_.index, exit_.stack)
    yield from _variables_fit(captured.code, instructions, exit_)
    for frame in exit_.inner:
        yield from _names_fit(frame)
    if exit_.inner:
        last = exit_.inner[-1]
        yield from _stack_fits(decode(last.code), last.index, last.stack)


def _stack_fits(instructions: list[Instruction], index: int, stack: Sequence[Recipe | None]) -> Iterator[str]:
    while index and instructions[index - 1].opname in _BEFORE_CALLS:
        index -= 1
    depths, _ = stack_depths(instructions, [one.arg or 0 for one in instructions])
    depth = depths.get(id(instructions[index]))
    if depth is None:
        yield f"instruction {index}, before which the frame stops, is never run"
    elif depth != len(stack):
        yield f"the stack holds {len(stack)} before instruction {index}, which finds {depth}"


_BEFORE_CALLS = ("KW_NAMES", "PRECALL")  # parts of a call; CPython's table of stack effects does not separate them


def _variables_fit(code: CodeType, instructions: list[Instruction], exit_: Break) -> Iterator[str]:
    known = {*code.co_varnames, *code.co_cellvars, *closure_of(code)}
    for name in (*exit_.locals, *exit_.cells):
        if name not in known:
            yield f"{name} is no variable of the frame"
    bound = always_bound(instructions, exit_.index, frozenset(code.co_varnames[: bound_count(code)]))
    for name in live_locals(instructions, exit_.index) & bound:
        if name not in exit_.locals and name not in exit_.cells:
            yield f"{name} is read behind the break, and is left unbound"
    for position, _ in exit_.handlers:
        if position >= len(exit_.stack):
            yield f"a handler keeps its exception at {position} of a stack of {len(exit_.stack)}"
    if exit_.handlers_kept > len(exit_.handlers):
        yield f"{exit_.handlers_kept} handlers were running at entry, and {len(exit_.handlers)} run now"


def _names_fit(frame: InnerFrame) -> Iterator[str]:
    code = frame.code
    for name in (*frame.locals, *frame.cells):
        if name not in code.co_varnames and name not in code.co_cellvars and name not in code.co_freevars:
            yield f"{name} is no variable of {code.co_qualname}"
    missing = [name for name in code.co_freevars if name not in frame.cells]
    if missing:
        yield f"{code.co_qualname} goes on without its cell {missing[0]}"


# ---- what a capture consists of ----


def _after_graph(captured: CapturedFrame) -> list[Recipe]:
    """The recipes of effects and exit."""
    kept = [] if captured.handled_before is None else [captured.handled_before]
    return [*members(captured.effects, Recipe), *members(captured.exit, Recipe), *kept]  # type: ignore[list-item]


def _within(root: Recipe) -> Iterator[Recipe]:
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += members(one, Recipe)


def _everything(captured: CapturedFrame) -> Iterator[object]:
    """All parts of a capture, without its graph and without the contents of the program's objects."""
    seen: set[int] = set()
    waiting: list[object] = [
        *(getattr(captured, field.name) for field in fields(captured) if field.name not in _NOT_LOOKED_INTO)
    ]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += parts(one)


_NOT_LOOKED_INTO = frozenset(("function", "code", "graph", "entry_modes"))


RULES = (_no_state_is_left, _graph_fits, _sources_are_closed, _objects_can_be_made, _guards_agree, _exit_fits)
