"""How to make an object again at run time: small expression trees that bytecode is emitted from.

The symbolic interpreter turns its values into recipes when a graph ends; nothing here knows values or bytecode.
Two appearances of one `New*` recipe object (same Python identity) mean one object at run time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from stator.dynamo.bytecode import Position
from stator.dynamo.guards.source import Source


@dataclass(eq=False, slots=True)
class Recipe:
    """Base of all recipes. Identity matters, so equality is identity."""


@dataclass(eq=False, slots=True)
class Load(Recipe):
    """Read what a source holds (the frame's state as it was at entry; effects are applied afterwards)."""

    source: Source


@dataclass(eq=False, slots=True)
class ConstantRecipe(Recipe):
    """An object known at compile time, kept alive by the compiled code. Must not be mutable user state."""

    value: Any


@dataclass(eq=False, slots=True)
class RaisedAt(Recipe):
    """On the stack of a frame that is left in a handler: the place of the instruction that raised, by its index."""

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
    """A plain dict, insertion order as given."""

    items: list[tuple[Recipe, Recipe]]


@dataclass(eq=False, slots=True)
class NewSlice(Recipe):
    start: Recipe
    stop: Recipe
    step: Recipe


@dataclass(eq=False, slots=True)
class NewObject(Recipe):
    """`object.__new__`-like creation: `base_new(cls, *args)`, without __init__; attributes follow as effects.

    `base_new` is e.g. object.__new__, dict.__new__, tuple.__new__, collections.OrderedDict.__new__.
    """

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
class NewGenerator(Recipe):
    """A generator of this code, the user's, that has not begun: `SetGenerator` follows as an effect."""

    code: CodeType
    globals: Recipe
    name: str
    qualname: str


@dataclass(eq=False, slots=True)
class CallRecipe(Recipe):
    """`function(*args, **kwargs)`, evaluated once however often it is referred to."""

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
    """`raw`: through object.__setattr__ / the instance dict; else plain setattr."""

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
    """Content becomes exactly `items` in this order, by dict.clear and dict.__setitem__ (never an override). The keys
    `again` were taken out and put in again: whoever iterates over the dictionary notices."""

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
class SetGenerator(Effect):
    """A generator waits at this instruction of the user's `code` (None: it has come to its end) with these variables,
    in the order of its frame, and stack; None: unbound, or a NULL. `kept`: the code of a generator that was there
    before; None: it was made of the user's."""

    target: Recipe
    code: CodeType
    place: int | None
    variables: list[Recipe | None] = field(default_factory=list)
    stack: list[Recipe | None] = field(default_factory=list)
    kept: CodeType | None = None


@dataclass(eq=False, slots=True)
class CallAtLine(Effect):
    """Make a call at a place of the user's frame, and drop its result."""

    call: CallRecipe
    position: Position


@dataclass(eq=False, slots=True)
class Evaluate(Effect):
    """Evaluate for its effect and drop the result, e.g. a CallRecipe of list.sort."""

    expression: Recipe
