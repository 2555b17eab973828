"""The lines that a captured frame ran, for who counts lines (sys.settrace; the tool COVERAGE_ID of sys.monitoring):
noted while it is followed, and told by a function of nothing but these lines, which emitted code calls. Works without
torch.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from stator.dynamo.host.native_status import native as _native

# before the first line of a function
_ENTERING = frozenset(("RESUME", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR"))


def lines_are_traced() -> bool:
    """Whether anybody is told of lines in this thread."""
    return _native is not None and _native.lines_traced()


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedLines:
    """One run of a function: lines, and runs of functions that it called, in order. Turns of a loop that took the same
    way are there once."""

    code: CodeType
    module: Any  # its `__name__` where it was defined
    steps: tuple[int | ExecutedLines, ...]


@dataclass(slots=True)
class _Running:
    code: CodeType | None  # None: not to be told of
    module: Any = None
    steps: list[int | ExecutedLines] = field(default_factory=list)
    ways: set[tuple[int, int]] = field(default_factory=set)  # from line to line
    line: int = 0
    told: int = 0  # the last of `steps` that is a line

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
    """What one capture follows. Code that is `unseen` is left out, not what it calls."""

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
        if key not in self._seen:  # the code is held by what was seen
            self._seen.add(key)
            around.steps.append(run)

    def ran(self) -> tuple[ExecutedLines, ...]:
        """What ran in the frame that was captured, and is left by now."""
        return tuple(step for step in self._open[0].steps if isinstance(step, ExecutedLines))


def line_reporter(ran: tuple[ExecutedLines, ...]) -> Callable[[], None] | None:
    """What runs these lines when it is called, and does nothing else; None: there are none."""
    made = [_function(one) for one in ran if one.steps]

    def tell() -> None:
        for one in made:
            one()

    return tell if len(made) > 1 else made[0] if made else None


def _function(ran: ExecutedLines) -> FunctionType:
    """Made from a syntax tree, as whatever tells of lines is then told as by any function: a `pass` for each line."""
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
    """With its place, and those of the expressions in it."""
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt | ast.expr) and not hasattr(node, "lineno"):
            node.lineno = node.end_lineno = max(line, 1)
            node.col_offset = node.end_col_offset = 0
    return statement
