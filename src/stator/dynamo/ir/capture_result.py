"""The result of the symbolic execution of a frame. Capture writes it; codegen and the cache read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from stator.base.errors import Unsupported, UserPlace
from stator.dynamo.guards.guard import Guard
from stator.dynamo.guards.source import Source

from .reconstruct_ir import Effect, RaisedAt, Recipe

if TYPE_CHECKING:
    import torch
    from torch import fx

    # bytecode is also written, and run, where there is no torch
    from .input_sizes import InputSizes
    from .torch_state import TorchState


class CaptureState:
    """Base of objects that live only during a capture. No part of a capture's result is an instance."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A placeholder of the graph: the recipe that loads it, the example value, and whether it is a parameter or buffer
    of a module (then an identity guard protects it, and emitted code may bind it once). An example is a tensor, or a
    number that changes from call to call."""

    name: str
    recipe: Recipe
    example: torch.Tensor | float
    is_static: bool = False


@dataclass(frozen=True, slots=True)
class SideEffects:
    """The side effects of a run of the graph.

    repeatable: restoring random generators and torch's modes undoes a failed run, because the graph neither writes to
        memory that existed before nor communicates with other processes.
    drawn_on: the devices whose random number generators the graph draws from.
    generators: Python's and NumPy's generators from which numbers are drawn before the graph runs.
    noticed: an operator that fails would make the program's frames handle the error, and maybe continue.
    checked: the graph checks its assumptions about data-dependent numbers before it writes to such memory.
    """

    repeatable: bool = False
    drawn_on: tuple[torch.device, ...] = ()
    generators: tuple[Recipe, ...] = ()
    noticed: bool = False
    checked: bool = False


@dataclass(frozen=True, slots=True)
class BreakReason:
    """The reason why a graph ended early. `kind` is from the taxonomy in docs/graph-breaks.md."""

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
    """A frame of a function called by the previous frame in `Break.inner`; the captured frame called the first.

    code: the user's code, never generated code. index: the instruction before which the frame stops; for all frames
        but the last, the call of the next frame. stack: the part of the value stack below the call's operands; None
        marks a NULL. locals: in the order of the code's variables. cells: of all free variables, then of the cell
        variables that exist, in the code's order. private_cells: names of cells that only this frame holds.
        changing: as of a Break.
    """

    code: CodeType
    namespace: dict[str, Any]
    index: int
    stack: tuple[Recipe | None, ...] = ()
    locals: dict[str, Recipe] = field(default_factory=dict)
    cells: dict[str, Recipe] = field(default_factory=dict)
    private_cells: tuple[str, ...] = ()
    changing: Mapping[Source, int] = field(default_factory=dict)

    def values(self) -> list[Recipe]:
        """The arguments of the code that resumes this frame: cells, variables, then the stack without NULLs and
        offsets."""
        on_stack = [recipe for recipe in self.stack if recipe is not None and not isinstance(recipe, RaisedAt)]
        return [*self.cells.values(), *self.locals.values(), *on_stack]


@dataclass(frozen=True, slots=True)
class Break:
    """The frame stops before instruction `index` (position in the decoded instruction list of the original code).

    Emitted code restores `stack` (bottom first; None marks a NULL slot), `locals` (live variables only; an absent name
    is unbound) and `cells` (recipes of the cells that exist, by cell variable), and runs the instruction natively.
    Then a resume function continues behind the instruction. A conditional jump has a resume function for each way.

    With `inner`, instruction `index` called a function, and the graph ends in that function. `stack` then ends below
    the operands of the call, and the instruction that runs natively is the one before which the last inner frame
    stops.
    """

    index: int
    stack: tuple[Recipe | None, ...]
    locals: dict[str, Recipe]
    cells: dict[str, Recipe]
    reason: BreakReason
    # exception handlers that are running, outermost first: (stack position of the previously handled exception, the
    # exception); the first `handlers_kept` of them ran already when the frame was entered
    handlers: tuple[tuple[int, Recipe], ...] = ()
    handlers_kept: int = 0
    inner: tuple[InnerFrame, ...] = ()
    private_cells: tuple[str, ...] = ()  # names of cells that only the frame holds
    # variables, and positions on the stack, of containers whose lengths change from call to call
    varying: frozenset[str | int] = frozenset()
    # numbers and sizes in the variables that change from call to call, with the number of changes seen
    changing: Mapping[Source, int] = field(default_factory=dict)

    def inner_values(self) -> list[Recipe]:
        return [value for frame in self.inner for value in frame.values()]


@dataclass(slots=True)
class CapturedFrame:
    """A frame after symbolic execution. `graph` is None if no operator was recorded.

    runs_original: the frame's own code does the work up to the exit, and nothing before the exit is compiled. Then
        there are no effects, and recipes only tell which kind of object is where.
    may_run_original: the frame's own code could do so, although a graph is compiled.
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
    # the exception handled before the outermost handler that was running at entry and has ended since
    handled_before: Recipe | None = None
    entry_modes: TorchState | None = None
    side_effects: SideEffects = SideEffects()
    draws: list[Recipe] = field(default_factory=list)  # objects that are made in this order before the graph runs
    runs_original: bool = False
    may_run_original: bool = False
    sizes: InputSizes | None = None  # the symbols in the graph; the backend may add facts about them
