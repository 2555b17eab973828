"""The lines that a captured frame executed, for line tracing (sys.settrace; the tool COVERAGE_ID of sys.monitoring).
LineLog records the lines during capture; emitted code calls a function of just these lines. Works without torch."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from stator.dynamo.host.native_status import native as _native

# instructions before the first line of a function
_ENTERING = frozenset(("RESUME", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR"))


def lines_are_traced() -> bool:
    """Whether a trace function or a coverage tool receives line events in this thread."""
    return _native is not None and _native.lines_traced()


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedLines:
    """One run of a function: its lines and the runs of functions that it called, in order. Loop iterations that took
    equal paths are recorded once."""

    code: CodeType
    module: Any  # `__name__` of the defining module
    steps: tuple[int | ExecutedLines, ...]


@dataclass(slots=True)
class _Running:
    code: CodeType | None  # None: without line events
    module: Any = None
    steps: list[int | ExecutedLines] = field(default_factory=list)
    ways: set[tuple[int, int]] = field(default_factory=set)  # (line, next line)
    line: int = 0
    told: int = 0  # the line that `steps` ends with, without calls

    def at(self, line: int) -> None:
        way = self.line, line
        if line == self.line or way in self.ways:
            self.line = line
            return
        self.ways.add(way)
        if self.told != self.line:
            self.steps.append(self.line)
        self.steps.append(line)
        self.line = self.told = line


class LineLog:
    """The lines of one capture. Code that is `unseen` is left out; functions that it calls are not."""

    def __init__(self, unseen: Callable[[CodeType], bool]) -> None:
        self._unseen = unseen
        self._open: list[_Running] = [_Running(None)]
        self._seen: set[tuple[int, tuple[int | ExecutedLines, ...]]] = set()

    def enter(self, code: CodeType, module: Any) -> None:
        self._open.append(_Running(None if self._unseen(code) else code, module))

    def at(self, opname: str, line: int | None) -> None:
        running = self._open[-1]
        if running.code is not None and line is not None and opname not in _ENTERING:
            running.at(line)

    def leave(self) -> None:
        done = self._open.pop()
        if done.code is None:
            return
        around = next((running for running in reversed(self._open) if running.code is not None), self._open[0])
        run = ExecutedLines(done.code, done.module, tuple(done.steps))
        key = id(run.code), run.steps
        if key not in self._seen:  # `_seen` holds the code
            self._seen.add(key)
            around.steps.append(run)

    def ran(self) -> tuple[ExecutedLines, ...]:
        """The finished runs of the captured frame."""
        return tuple(step for step in self._open[0].steps if isinstance(step, ExecutedLines))


def line_reporter(ran: tuple[ExecutedLines, ...]) -> Callable[[], None] | None:
    """A function that does nothing but execute these lines, so that tracers see them; None if there are none."""
    made = [_function(one) for one in ran if one.steps]

    def tell() -> None:
        for one in made:
            one()

    return tell if len(made) > 1 else made[0] if made else None


def _function(ran: ExecutedLines) -> FunctionType:
    """A function compiled from a syntax tree with a `pass` for each line, so that the interpreter reports the lines
    itself."""
    names: dict[str, Any] = {"__name__": ran.module}
    body: list[ast.stmt] = []
    line, numbers = ran.code.co_firstlineno, itertools.count()
    for step in ran.steps:
        statement: ast.stmt
        if isinstance(step, int):
            line = step
            statement = ast.Pass()
        elif step.steps:
            name = f"_{next(numbers)}"
            names[name] = _function(step)
            statement = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], []))
        else:
            continue
        body.append(_placed(statement, line))
    arguments = ast.arguments([], [], None, [], [], None, [])
    more: dict[str, Any] = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}
    definition = ast.FunctionDef("lines", arguments, body or [_placed(ast.Pass(), line)], [], None, **more)
    module = ast.Module([_placed(definition, ran.code.co_firstlineno)], [])
    whole = compile(module, ran.code.co_filename, "exec", dont_inherit=True)
    code = next(constant for constant in whole.co_consts if isinstance(constant, CodeType))
    return FunctionType(code.replace(co_name=ran.code.co_name, co_qualname=ran.code.co_qualname), names)


def _placed(statement: Any, line: int) -> Any:
    """Set the line of a statement and of its expressions."""
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt | ast.expr) and not hasattr(node, "lineno"):
            node.lineno = node.end_lineno = max(line, 1)
            node.col_offset = node.end_col_offset = 0
    return statement
