"""Effects -> instructions: a function per class of effect. Each leaves the stack as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stator.dynamo.host.native_status import native
from stator.dynamo.ir.reconstruct_ir import (
    CallAtLine,
    DelAttr,
    Evaluate,
    ExtendList,
    NewDict,
    NewList,
    Recipe,
    ReplaceDict,
    ReplaceList,
    ReplaceSet,
    SetAttr,
    SetCell,
    SetGenerator,
    SetGlobal,
    SetItem,
)
from stator.dynamo.ir.suspension_points import suspension_points_of, variables_of

from . import support
from .writer import Writer, effects, recipes


def _call_support(writer: Writer, function: Callable[..., None], *arguments: Recipe | str) -> None:
    """Call a support function with recipes and constants, and drop the result."""
    writer.builder.const_callee(function)
    for argument in arguments:
        if isinstance(argument, str):
            writer.builder.const(argument)
        else:
            writer.load(argument)
    writer.builder.call(len(arguments))
    writer.builder.pop()


@effects.register(SetAttr)
def _set_attr(writer: Writer, effect: SetAttr) -> None:
    if effect.raw:
        _call_support(writer, support.set_attribute, effect.target, effect.name, effect.value)
        return
    writer.load(effect.value)
    writer.load(effect.target)
    writer.builder.store_attr(effect.name)


@effects.register(DelAttr)
def _del_attr(writer: Writer, effect: DelAttr) -> None:
    if effect.raw:
        _call_support(writer, support.delete_attribute, effect.target, effect.name)
        return
    writer.load(effect.target)
    writer.builder.delete_attr(effect.name)


@effects.register(SetItem)
def _set_item(writer: Writer, effect: SetItem) -> None:
    writer.load(effect.value)
    writer.load(effect.target)
    writer.load(effect.key)
    writer.builder.store_item()


def _replace(
    writer: Writer, function: Callable[..., None], target: Recipe, content: Any, more: Sequence[Recipe] = ()
) -> None:
    writer.builder.const_callee(function)
    writer.load(target)
    recipes[type(content)](writer, content)
    for recipe in more:
        writer.load(recipe)
    writer.builder.call(2 + len(more))
    writer.builder.pop()


@effects.register(ReplaceList)
def _replace_list(writer: Writer, effect: ReplaceList) -> None:
    _replace(writer, support.replace_list, effect.target, NewList(effect.items))


@effects.register(ExtendList)
def _extend_list(writer: Writer, effect: ExtendList) -> None:
    _replace(writer, list.extend, effect.target, NewList(effect.items))


@effects.register(ReplaceDict)
def _replace_dict(writer: Writer, effect: ReplaceDict) -> None:
    _replace(writer, support.replace_dict, effect.target, NewDict(effect.items), effect.again)


@effects.register(ReplaceSet)
def _replace_set(writer: Writer, effect: ReplaceSet) -> None:
    _replace(writer, support.replace_set, effect.target, NewList(effect.items))


@effects.register(SetGlobal)
def _set_global(writer: Writer, effect: SetGlobal) -> None:
    if effect.module is None and effect.value is None:
        writer.builder.delete_global(effect.name)
    elif effect.module is None:
        writer.load(effect.value)  # type: ignore[arg-type]
        writer.builder.store_global(effect.name)
    elif effect.value is None:
        _call_support(writer, support.delete_module_global, effect.module, effect.name)
    else:
        _call_support(writer, support.set_module_global, effect.module, effect.name, effect.value)


@effects.register(SetCell)
def _set_cell(writer: Writer, effect: SetCell) -> None:
    if effect.value is None:
        _call_support(writer, support.clear_content, effect.cell)
    else:
        _call_support(writer, support.set_content, effect.cell, effect.value)


@effects.register(SetGenerator)
def _set_generator(writer: Writer, effect: SetGenerator) -> None:
    builder = writer.builder
    code = effect.kept or writer.generator_code(effect.code)
    places = suspension_points_of(code)
    if effect.place is None:
        builder.const_callee(support.end_generator)
        writer.load(effect.target)
        builder.const(places.units[places.creation])
        builder.const(len(variables_of(code)))
        builder.call(3)
    else:
        builder.const_callee(native.set_generator)
        writer.load(effect.target)
        builder.const(places.units[effect.place])
        builder.const(effect.place == places.creation)
        for held in (effect.variables, effect.stack):
            _load_held(writer, held)
        builder.call(5)
    builder.pop()


def _load_held(writer: Writer, held: Sequence[Recipe | None]) -> None:
    if not held:
        writer.builder.const(())
        return
    for recipe in held:
        if recipe is None:
            writer.builder.const(native.UNBOUND)
        else:
            writer.load(recipe)
    writer.builder.tuple(len(held))


@effects.register(CallAtLine)
def _say(writer: Writer, effect: CallAtLine) -> None:
    builder = writer.builder
    before, builder.position = builder.position, effect.position
    writer.load(effect.call)
    builder.pop()
    builder.position = before


@effects.register(Evaluate)
def _evaluate(writer: Writer, effect: Evaluate) -> None:
    writer.load(effect.expression)
    writer.builder.pop()
