"""The shared part of code generation: the instruction builder, temporaries, and use counts of sources and recipes.
Visitors over sources and recipes register here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from stator.base.errors import CompileError
from stator.base.registry import Registry
from stator.dynamo.bytecode import CodeBuilder, Handler, Instruction
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ConstantSource, FunctionSource, LocalSource, Source
from stator.dynamo.ir.capture_parts import members
from stator.dynamo.ir.capture_result import Break, CapturedFrame, Return
from stator.dynamo.ir.reconstruct_ir import (
    ConstantRecipe,
    Effect,
    FrameCell,
    GraphOutput,
    Load,
    NewCell,
    NewDict,
    NewList,
    RaisedAt,
    Recipe,
)
from stator.dynamo.ir.resume import resumption_of

SourceWriter = Callable[["Writer", Any], None]
RecipeWriter = Callable[["Writer", Any], None]

sources: Registry[type, SourceWriter] = Registry("source")
recipes: Registry[type, RecipeWriter] = Registry("recipe")

_ALLOCATED_FIRST = (NewCell, NewList, NewDict)  # objects that can close a reference cycle


class Writer:
    """Emits a frame. `load_source` and `load` push a value; each shared value is computed once and kept in a
    temporary."""

    def __init__(self, captured: CapturedFrame) -> None:
        self.captured = captured
        self.code = captured.code
        self.builder = CodeBuilder()
        self.temporaries: list[str] = []
        self.made_cells: tuple[str, ...] = ()
        self.output_slots: dict[int, str] = {}
        self.types = {guard.source: guard.expected for guard in captured.guards if guard.kind is GuardKind.TYPE}
        self._source_uses: Counter[Source] = Counter()
        self._source_slots: dict[Source, str] = {}
        self._recipe_uses: Counter[int] = Counter()
        self._recipe_slots: dict[int, str] = {}
        self.overwritten: set[str] = set()  # locals that are about to be assigned
        self._cyclic: set[int] = set()
        self._unfilled: list[Recipe] = []
        self._building: set[int] = set()
        self.used_after_graph: list[Recipe] = []
        self.leave: Instruction | None = None
        self.leave_handler: Handler | None = None  # handler of the instructions behind all other code
        self.outermost_before = ""
        self._guarded_from = 0
        self.used_recipes = self._count_uses()

    # ---- temporaries ----

    def temporary(self) -> str:
        name = f"..{len(self.temporaries)}"  # comprehension variables begin with a single dot
        self.temporaries.append(name)
        return name

    def clear_temporaries(self, names: Iterable[str]) -> None:
        """Unbind temporaries that are bound."""
        for name in names:
            self.builder.delete(name)

    def forget_slots(self) -> list[str]:
        """Forget all temporaries that hold a value, and return their names."""
        names = [*self._source_slots.values(), *self._recipe_slots.values(), *self.output_slots.values()]
        self._source_slots.clear()
        self._recipe_slots.clear()
        self.output_slots.clear()
        return names

    # ---- what is being handled ----

    def begin_guarded(self) -> None:
        """From here until end_guarded, exceptions leave the frame, with the handled exception restored to the
        caller's."""
        self._guarded_from = len(self.builder.instructions)

    def end_guarded(self) -> None:
        resumption = resumption_of(self.code)
        if resumption is None or not resumption.point.handlers:
            return
        self.outermost_before = resumption.point.stack_parameter(resumption.point.handlers[0])
        self.leave = self.builder.label()
        self.leave_handler = Handler(self.leave, 0, lasti=False)
        for instruction in self.builder.instructions[self._guarded_from :]:
            if instruction.handler is None:
                instruction.handler = self.leave_handler

    def handle_as_before(self) -> None:
        """End the exception handlers that ran at entry and have ended since."""
        if self.captured.handled_before is not None:
            self.load(self.captured.handled_before)
            self.builder.end_handler()

    def write_leaving(self) -> None:
        """The exception exit of the guarded part."""
        if self.leave is not None:
            self.builder.append(self.leave)
            self.builder.load_bound(self.outermost_before)
            self.builder.end_handler()
            self.builder.reraise()

    # ---- counting ----

    def roots(self) -> list[Recipe]:
        """The recipes of effects and exit, in evaluation order."""
        captured = self.captured
        found = [effect.expression for effect in captured.effects]
        if captured.handled_before is not None:
            found.append(captured.handled_before)
        if isinstance(captured.exit, Return):
            found.append(captured.exit.value)
        else:
            found.extend(break_recipes(captured.exit))
        return found

    def _count_uses(self) -> list[Recipe]:
        used: list[Recipe] = []
        for entry in self.captured.inputs:
            if not entry.is_static:
                self._visit(entry.recipe, used, [])
        for root in (*self.captured.draws, *self.roots()):
            self._visit(root, used, [])
        self.used_after_graph = _reachable(self.roots())
        for recipe in used:
            if isinstance(recipe, Load):
                self._count_source(recipe.source)
        return used

    def _visit(self, recipe: Recipe, used: list[Recipe], path: list[Recipe]) -> None:
        self._recipe_uses[id(recipe)] += 1
        if self._recipe_uses[id(recipe)] > 1:
            if recipe in path:
                self._cyclic.update(id(step) for step in path[path.index(recipe) :])
            return
        used.append(recipe)
        path.append(recipe)
        for child in members(recipe, Recipe):
            self._visit(child, used, path)
        path.pop()

    def _count_source(self, source: Source) -> None:
        self._source_uses[source] += 1
        if self._source_uses[source] == 1:
            for base in members(source, Source):
                self._count_source(base)

    # ---- sources ----

    def is_immediate(self, source: Source) -> bool:
        """Whether a single instruction loads the source and no emitted code changes it."""
        if isinstance(source, LocalSource):
            return source.name not in self.made_cells and source.name not in self.overwritten
        return isinstance(source, (ConstantSource, FunctionSource))

    def load_source(self, source: Source) -> None:
        """-> the content of the source when the frame was entered"""
        slot = self._source_slots.get(source)
        if slot is not None:
            self.builder.load_bound(slot)
            return
        handler = sources.get(type(source))
        if handler is None:
            raise CompileError("dynamo", f"no bytecode can load a {type(source).__name__} ({source})")
        handler(self, source)
        if self._source_uses[source] > 1 and not self.is_immediate(source):
            self._keep(self._source_slots, source)

    def preload_sources(self, found: Iterable[Recipe]) -> None:
        """Read every mutable source that these recipes load, before effects change its content."""
        for recipe in found:
            if isinstance(recipe, Load) and not self.is_immediate(recipe.source):
                source = recipe.source
                if source in self._source_slots:
                    continue
                self.load_source(source)
                if source in self._source_slots:
                    self.builder.pop()
                else:
                    self._source_slots[source] = slot = self.temporary()
                    self.builder.store(slot)

    def _keep(self, slots: dict[Any, str], key: Any) -> None:
        """x -> x, stored in a temporary"""
        slots[key] = slot = self.temporary()
        self.builder.duplicate()
        self.builder.store(slot)

    # ---- recipes ----

    def load(self, recipe: Recipe) -> None:
        """-> the object of the recipe; a recipe gives a single object"""
        if isinstance(recipe, Load):
            self.load_source(recipe.source)
            return
        slot = self._recipe_slots.get(id(recipe))
        if slot is not None:
            self.builder.load_bound(slot)
            return
        if id(recipe) in self._cyclic and isinstance(recipe, _ALLOCATED_FIRST):
            self._allocate(recipe)
            return
        if id(recipe) in self._building:
            raise CompileError("dynamo", f"a reference cycle of objects through a {type(recipe).__name__}")
        handler = recipes.get(type(recipe))
        if handler is None:
            raise CompileError("dynamo", f"no bytecode can build a {type(recipe).__name__}")
        self._building.add(id(recipe))
        handler(self, recipe)
        self._building.discard(id(recipe))
        if self._recipe_uses[id(recipe)] > 1 and type(recipe) not in _UNSHARED:
            self._keep(self._recipe_slots, id(recipe))
        if not self._building:
            self._fill()

    def _allocate(self, recipe: Recipe) -> None:
        """-> the object, still empty; it is filled when the outermost recipe is complete"""
        allocations[type(recipe)][0](self, recipe)
        self._keep(self._recipe_slots, id(recipe))
        self._unfilled.append(recipe)
        if not self._building:
            self._fill()

    def _fill(self) -> None:
        while self._unfilled:
            recipe = self._unfilled.pop()
            allocations[type(recipe)][1](self, recipe)

    def replay(self, effect: Effect) -> None:
        before = self.builder.position
        self.builder.position = effect.position or before
        self.load(effect.expression)
        self.builder.pop()
        self.builder.position = before


def _reachable(roots: list[Recipe]) -> list[Recipe]:
    found: dict[int, Recipe] = {}
    work = roots[::-1]
    while work:
        recipe = work.pop()
        if id(recipe) not in found:
            found[id(recipe)] = recipe
            work.extend(members(recipe, Recipe))
    return list(found.values())


def break_recipes(exit_: Break) -> list[Recipe]:
    """All recipes that a break restores."""
    return [
        *(recipe for recipe in exit_.stack if recipe is not None),
        *exit_.locals.values(),
        *exit_.cells.values(),
        *(error for _, error in exit_.handlers),
        *exit_.inner_values(),
    ]


# recipe type -> (push the empty object, fill it); for members of reference cycles
allocations: Registry[type, tuple[RecipeWriter, RecipeWriter]] = Registry("allocation")
# as cheap to evaluate as a load of a temporary
_UNSHARED = (ConstantRecipe, GraphOutput, FrameCell, RaisedAt)


__all__ = ["Writer", "allocations", "break_recipes", "recipes", "sources"]
