"""Recipes: small expression trees that tell how to rebuild an object at run time. Codegen emits bytecode from them.

The symbolic interpreter turns its values into recipes when a graph ends; nothing here knows values or bytecode. Two
appearances of one `New*` recipe object (by identity) mean one object at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from stator.dynamo.bytecode import Position
from stator.dynamo.guards.source import Source


@dataclass(eq=False, slots=True)
class Recipe:
    """Base of all recipes. Recipes compare by identity."""


@dataclass(eq=False, slots=True)
class Load(Recipe):
    """Read the content of a source as it was when the frame was entered; effects are applied afterwards."""

    source: Source


@dataclass(eq=False, slots=True)
class ConstantRecipe(Recipe):
    """An object known at compile time, kept alive by the compiled code. Must not be mutable user state."""

    value: Any


@dataclass(eq=False, slots=True)
class RaisedAt(Recipe):
    """The instruction that raised, by its index, on the stack of a frame that is left inside an exception handler."""

    index: int


@dataclass(eq=False, slots=True)
class GraphOutput(Recipe):
    """The `index`-th output of the compiled graph."""

    index: int


@dataclass(eq=False, slots=True)
class NewTuple(Recipe):
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class NewList(Recipe):
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class NewSet(Recipe):
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class NewDict(Recipe):
    """A plain dict in the given insertion order."""

    items: list[tuple[Recipe, Recipe]]


@dataclass(eq=False, slots=True)
class NewSlice(Recipe):
    start: Recipe
    stop: Recipe
    step: Recipe


@dataclass(eq=False, slots=True)
class NewObject(Recipe):
    """Creation without __init__: `base_new(cls, *args)`; attributes follow as effects. `base_new` is e.g.
    object.__new__, dict.__new__, tuple.__new__, collections.OrderedDict.__new__."""

    cls: Recipe
    base_new: Any = object.__new__
    args: list[Recipe] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class NewCell(Recipe):
    """A fresh closure cell; `content` None leaves it empty."""

    content: Recipe | None


@dataclass(eq=False, slots=True)
class FrameCell(Recipe):
    """The cell object of a cell or free variable of the captured frame."""

    name: str


@dataclass(eq=False, slots=True)
class NewFunction(Recipe):
    """A function object: `closure` holds recipes of cells (NewCell, FrameCell, or Load of an existing cell)."""

    code: CodeType
    globals: Recipe
    name: str
    qualname: str
    defaults: Recipe | None = None
    kwdefaults: Recipe | None = None
    closure: list[Recipe] = field(default_factory=list)
    annotations: Recipe | None = None


@dataclass(eq=False, slots=True)
class CallRecipe(Recipe):
    """`function(*args, **kwargs)`, evaluated once however often the recipe occurs."""

    function: Recipe
    args: list[Recipe] = field(default_factory=list)
    kwargs: dict[str, Recipe] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class GetAttr(Recipe):
    base: Recipe
    name: str


@dataclass(eq=False, slots=True)
class GetItem(Recipe):
    base: Recipe
    key: Recipe


# ---- effects: statements, replayed in order after the graph has run and before the exit ----


@dataclass(eq=False, slots=True)
class Effect:
    """Base of all effects."""


@dataclass(eq=False, slots=True)
class SetAttr(Effect):
    """`raw` writes by object.__setattr__ or to the instance dict; otherwise setattr is used."""

    target: Recipe
    name: str
    value: Recipe
    raw: bool = False


@dataclass(eq=False, slots=True)
class DelAttr(Effect):
    target: Recipe
    name: str
    raw: bool = False


@dataclass(eq=False, slots=True)
class SetItem(Effect):
    target: Recipe
    key: Recipe
    value: Recipe


@dataclass(eq=False, slots=True)
class ReplaceList(Effect):
    """`target[:] = items`."""

    target: Recipe
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class ExtendList(Effect):
    """`list.extend(target, items)`."""

    target: Recipe
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class ReplaceDict(Effect):
    """Make the content exactly `items` in this order, by dict.clear and dict.__setitem__ (never an override). The keys
    `again` are removed and inserted again, so that running iterators notice, as they would in eager."""

    target: Recipe
    items: list[tuple[Recipe, Recipe]]
    again: list[Recipe] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class ReplaceSet(Effect):
    target: Recipe
    items: list[Recipe]


@dataclass(eq=False, slots=True)
class SetGlobal(Effect):
    """Write (value None: delete) a name in the globals of the frame (module None) or of another module."""

    module: str | None
    name: str
    value: Recipe | None


@dataclass(eq=False, slots=True)
class SetCell(Effect):
    """`cell.cell_contents = value` (value None: empty it)."""

    cell: Recipe
    value: Recipe | None


@dataclass(eq=False, slots=True)
class CallAtLine(Effect):
    """Call a function with the line of the user's frame in the traceback, and drop the result."""

    call: CallRecipe
    position: Position


@dataclass(eq=False, slots=True)
class Evaluate(Effect):
    """Evaluate an expression for its effect, e.g. a CallRecipe of list.sort, and drop the result."""

    expression: Recipe
