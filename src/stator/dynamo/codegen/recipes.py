"""Recipes -> instructions: a function per class of recipe. Each pushes the rebuilt object."""

from __future__ import annotations

from types import CellType

from stator.base.errors import CompileError
from stator.dynamo.ir.reconstruct_ir import (
    CallRecipe,
    ConstantRecipe,
    FrameCell,
    GetAttr,
    GraphOutput,
    NewCell,
    NewDict,
    NewList,
    NewTuple,
    RaisedAt,
    Recipe,
)

from . import support
from .writer import Writer, allocations, recipes


@recipes.register(ConstantRecipe)
def _constant(writer: Writer, recipe: ConstantRecipe) -> None:
    writer.builder.const(recipe.value)


@recipes.register(GraphOutput)
def _graph_output(writer: Writer, recipe: GraphOutput) -> None:
    slot = writer.output_slots.get(recipe.index)
    if slot is None:
        raise CompileError("dynamo", f"the graph has no output {recipe.index}")
    writer.builder.load_bound(slot)


@recipes.register(RaisedAt)
def _raised_at(writer: Writer, recipe: RaisedAt) -> None:
    writer.builder.const(0)  # a placeholder


def _all(writer: Writer, items: list[Recipe]) -> int:
    for item in items:
        writer.load(item)
    return len(items)


@recipes.register(NewTuple)
def _tuple(writer: Writer, recipe: NewTuple) -> None:
    if recipe.items:
        writer.builder.tuple(_all(writer, recipe.items))
    else:
        writer.builder.const(())


@recipes.register(NewList)
def _list(writer: Writer, recipe: NewList) -> None:
    writer.builder.list(_all(writer, recipe.items))


@recipes.register(NewDict)
def _dict(writer: Writer, recipe: NewDict) -> None:
    for key, value in recipe.items:
        writer.load(key)
        writer.load(value)
    writer.builder.map(len(recipe.items))


@recipes.register(NewCell)
def _cell(writer: Writer, recipe: NewCell) -> None:
    writer.builder.const_callee(CellType)
    writer.builder.call(_all(writer, [] if recipe.content is None else [recipe.content]))


@recipes.register(FrameCell)
def _frame_cell(writer: Writer, recipe: FrameCell) -> None:
    writer.builder.load_cell(recipe.name)


@recipes.register(CallRecipe)
def _call(writer: Writer, recipe: CallRecipe) -> None:
    writer.builder.before_callee()
    writer.load(recipe.function)
    writer.builder.after_callee()
    count = _all(writer, [*recipe.args, *recipe.kwargs.values()])
    writer.builder.call(count, tuple(recipe.kwargs))


@recipes.register(GetAttr)
def _get_attr(writer: Writer, recipe: GetAttr) -> None:
    writer.load(recipe.base)
    writer.builder.attr(recipe.name)


# ---- members of reference cycles: made empty first, filled afterwards ----


def _empty_cell(writer: Writer, recipe: NewCell) -> None:
    writer.builder.const_callee(CellType)
    writer.builder.call(0)


def _fill_cell(writer: Writer, recipe: NewCell) -> None:
    if recipe.content is not None:
        writer.builder.const_callee(support.set_content)
        writer.load(recipe)
        writer.load(recipe.content)
        writer.builder.call(2)
        writer.builder.pop()


def _fill_list(writer: Writer, recipe: NewList) -> None:
    writer.builder.const_callee(support.fill_list)
    writer.load(recipe)
    writer.builder.call(1 + _all(writer, recipe.items))
    writer.builder.pop()


def _fill_dict(writer: Writer, recipe: NewDict) -> None:
    writer.builder.const_callee(support.fill_dict)
    writer.load(recipe)
    _dict(writer, recipe)
    writer.builder.call(2)
    writer.builder.pop()


allocations.add(NewCell, (_empty_cell, _fill_cell))
allocations.add(NewList, (lambda writer, recipe: writer.builder.list(0), _fill_list))
allocations.add(NewDict, (lambda writer, recipe: writer.builder.map(0), _fill_dict))
