"""Effects -> instructions: a function per class of effect. Each leaves the stack as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    SetGlobal,
    SetItem,
)

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
