"""What one symbolic execution of a frame found: data handed from the interpreter to code emission and to the cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from stator.base.errors import Unsupported, UserPlace
from stator.dynamo.guards.guard import Guard

from .covered_lines import ExecutedLines
from .reconstruct_ir import Effect, RaisedAt, Recipe

if TYPE_CHECKING:
    import torch
    from torch import fx

    from .torch_state import TorchState


class CaptureState:
    """Base of objects that live only while a frame is captured. No part of a capture's result is one."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One placeholder of the graph, in order: how to load it, the example that was seen, and whether it is a module's
    parameter or buffer (then it is guarded by identity and may be bound once). An example is a tensor, or a number
    that changes from call to call."""

    name: str
    recipe: Recipe
    example: torch.Tensor | float
    is_static: bool = False


@dataclass(frozen=True, slots=True)
class SideEffects:
    """What running a graph does besides computing.

    repeatable: when it has failed, putting generators and torch's modes back is as if it had never begun: it writes to
        no memory that was there before, and speaks with no other process.
    drawn_on: the devices whose random number generators it draws from.
    generators: Python's and NumPy's, that numbers are drawn from ahead of it.
    noticed: the program's frames would do something where some operator fails, and maybe go on.
    checked: it checks what was relied on about numbers that only the run can tell, before it writes to such memory.
    """

    repeatable: bool = False
    drawn_on: tuple[torch.device, ...] = ()
    generators: tuple[Recipe, ...] = ()
    noticed: bool = False
    checked: bool = False


@dataclass(frozen=True, slots=True)
class BreakReason:
    """Why a graph ended early. `kind` is from the taxonomy in docs/graph-breaks.md."""

    kind: str
    reason: str
    place: UserPlace
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.kind}: {self.reason}\n  {self.place}"
        return f"{text}\n  Hint: {self.hint}" if self.hint else text

    def as_error(self) -> Unsupported:
        return Unsupported(self.kind, self.reason, place=self.place, hint=self.hint)


@dataclass(frozen=True, slots=True)
class Return:
    """The frame ran to its end."""

    value: Recipe


@dataclass(frozen=True, slots=True)
class InnerFrame:
    """A frame that was called by the one before it in `Break.inner`, the first of them by the captured frame.

    code: the user's, never one that was made. `index`: the instruction of it that the frame stops before, or, of all
    but the last, the call of the next. stack: below what that call takes; None marks a NULL. locals: in the order of
    the code's variables. cells: of all free variables, then of the cell variables that exist, in the code's order.
    """

    code: CodeType
    namespace: dict[str, Any]
    index: int
    stack: tuple[Recipe | None, ...] = ()
    locals: dict[str, Recipe] = field(default_factory=dict)
    cells: dict[str, Recipe] = field(default_factory=dict)

    def values(self) -> list[Recipe]:
        """What the code that goes on there takes: cells, variables, then the stack but for NULLs and offsets."""
        on_stack = [recipe for recipe in self.stack if recipe is not None and not isinstance(recipe, RaisedAt)]
        return [*self.cells.values(), *self.locals.values(), *on_stack]


@dataclass(frozen=True, slots=True)
class Break:
    """The frame stops before instruction `index` (position in the decoded instruction list of the original code).

    That instruction runs natively with `stack` (bottom first; None marks a NULL slot) and `locals` (live ones only; a
    name that is absent is unbound) and `cells` (names of cell variables already created, with their cells as recipes)
    put back; then a resume function continues behind it. For a conditional jump both ways are resumed.

    With `inner`, instruction `index` called a function and the frame is in it: `stack` is what is below the operands of
    the call, and the instruction that runs natively is the one that the last of those frames stops before.
    """

    index: int
    stack: tuple[Recipe | None, ...]
    locals: dict[str, Recipe]
    cells: dict[str, Recipe]
    reason: BreakReason
    # handlers of exceptions that are running, outermost first: (stack position that keeps what was handled before,
    # the exception); the first so many were running when the frame was entered
    handlers: tuple[tuple[int, Recipe], ...] = ()
    handlers_kept: int = 0
    inner: tuple[InnerFrame, ...] = ()

    def inner_values(self) -> list[Recipe]:
        return [value for frame in self.inner for value in frame.values()]


@dataclass(slots=True)
class CapturedFrame:
    """A frame, symbolically executed. `graph` is None when nothing was recorded.

    executed_lines: the lines that it stands for, if somebody was told of lines when it was made.
    runs_original: the frame's own code does the same up to the exit, and nothing of it is to be compiled. There are no
    effects then, and recipes say no more than what kind of thing there is.
    """

    function: FunctionType
    code: CodeType
    graph: fx.GraphModule | None
    inputs: list[GraphInput]
    effects: list[Effect]
    exit: Return | Break
    guards: list[Guard]
    op_count: int = 0
    break_reasons: list[BreakReason] = field(default_factory=list)
    # what was handled before the outermost of the handlers that were running at entry and have ended meanwhile
    handled_before: Recipe | None = None
    entry_modes: TorchState | None = None
    side_effects: SideEffects = SideEffects()
    draws: list[Recipe] = field(default_factory=list)  # made in this order before the graph runs
    runs_original: bool = False
    executed_lines: tuple[ExecutedLines, ...] | None = None
