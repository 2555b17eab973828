"""`CapturedFrame` as Python-like text: guards, graph inputs, effects and exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.guards.guard import GlobalState, GuardKind, TensorGuard
from stator.dynamo.host.naming import class_name, qualified_name

from .capture_result import CapturedFrame, Return
from .reconstruct_ir import (
    CallRecipe,
    ConstantRecipe,
    FrameCell,
    GetAttr,
    GraphOutput,
    Load,
    NewCell,
    NewDict,
    NewList,
    NewTuple,
    RaisedAt,
    Recipe,
)

Show = Callable[[Recipe], str]
_MOST_SHOWN = 80  # characters of one constant


def _example_text(example: torch.Tensor | float) -> str:
    if not isinstance(example, torch.Tensor):
        return class_name(type(example))
    return f"{example.dtype}{list(example.shape)}".removeprefix("torch.")


def captured_text(captured: CapturedFrame, frame: str) -> str:
    """The text of the whole capture of the frame with this name, for a dump."""
    lines = [
        f"# {frame}, {captured.op_count} operations",
        "",
        "guards:",
    ]
    lines += [f"    {guard_text(guard.source, guard.kind, guard.expected)}" for guard in captured.guards]
    lines += ["", "graph inputs:"]
    for entry in captured.inputs:
        example = _example_text(entry.example)
        static = "  # parameter or buffer" if entry.is_static else ""
        lines.append(f"    {entry.name}: {example} = {recipe_text(entry.recipe)}{static}")
    if captured.effects:
        lines += ["", "effects:"]
        lines += [f"    {recipe_text(effect.expression)}" for effect in captured.effects]
    lines += ["", *_exit_lines(captured)]
    return "\n".join(lines) + "\n"


def _exit_lines(captured: CapturedFrame) -> list[str]:
    exit_ = captured.exit
    if captured.runs_original and isinstance(exit_, Return):
        return ["nothing to compile: the frame runs as it is"]
    if isinstance(exit_, Return):
        return [f"return {recipe_text(exit_.value)}"]
    if captured.runs_original:
        reason = [f"    # {line}" for line in str(exit_.reason).splitlines()]
        return [f"nothing to compile: runs as it is up to and with instruction {exit_.index}:", *reason]
    lines = [f"break before instruction {exit_.index}:", *(f"    # {line}" for line in str(exit_.reason).splitlines())]
    stack = ", ".join("NULL" if recipe is None else recipe_text(recipe) for recipe in exit_.stack)
    lines.append(f"    stack: [{stack}]")
    lines += [f"    {name} = {recipe_text(recipe)}" for name, recipe in exit_.locals.items()]
    lines += [f"    cell {name} = {recipe_text(recipe)}" for name, recipe in exit_.cells.items()]
    for frame in exit_.inner:
        lines.append(f"in a call of {frame.code.co_qualname}, before instruction {frame.index}:")
        lines += [f"    {recipe_text(value)}" for value in frame.values()]
    return lines


def guard_text(source: object, kind: GuardKind, expected: object) -> str:
    """A guard on one line."""
    if isinstance(expected, TensorGuard):
        return f"{source} is {_tensor_text(expected)}"
    if isinstance(expected, GlobalState):
        return f"torch: {_state_text(expected)}"
    if kind is GuardKind.NOT_IN:
        return f"{_value_text(expected)} not in {source}"
    return f"{source} {kind.value} {_value_text(expected)}"


def _tensor_text(guard: TensorGuard) -> str:
    kind = f"{guard.dtype}{list(guard.shape)}".removeprefix("torch.")
    gradient = ", requires grad" if guard.requires_grad else ""
    return f"a {guard.python_type.__name__} {kind} with strides {list(guard.stride)} on {guard.device}{gradient}"


def _state_text(state: GlobalState) -> str:
    return ", ".join(
        [
            f"grad mode {'on' if state.grad_enabled else 'off'}",
            f"inference mode {'on' if state.inference_mode else 'off'}",
            f"default dtype {state.default_dtype}",
            f"{state.num_threads} threads",
            f"autocast on {', '.join(name for name, enabled, _ in state.autocast if enabled) or 'nothing'}",
        ]
    )


def recipe_text(recipe: Recipe) -> str:
    """A recipe as an expression. `...` stands for a recipe inside of itself."""
    return _text(recipe, ())


def _text(recipe: Recipe, above: tuple[Recipe, ...]) -> str:
    if recipe in above:
        return "..."
    writer = _RECIPES.get(type(recipe))
    return writer(recipe, lambda child: _text(child, (*above, recipe))) if writer is not None else repr(recipe)


def _value_text(value: object) -> str:
    if isinstance(value, type):
        text = qualified_name(value)
    elif type(value) is dict and "__builtins__" in value:
        text = f"globals of {value.get('__name__')}"
    else:
        text = getattr(value, "__qualname__", None) if callable(value) else None
    if not isinstance(text, str):
        try:
            text = repr(value)
        except Exception:  # a failing __repr__ of the program must not prevent the dump
            text = f"<{class_name(type(value))}>"
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


def _items(items: list[Recipe], show: Show) -> str:
    return ", ".join(map(show, items))


def _call_text(recipe: CallRecipe, show: Show) -> str:
    keywords = [f"{name}={show(value)}" for name, value in recipe.kwargs.items()]
    return f"{show(recipe.function)}({', '.join([*map(show, recipe.args), *keywords])})"


_RECIPES: dict[type[Recipe], Callable[[Any, Show], str]] = {
    Load: lambda recipe, show: str(recipe.source),
    ConstantRecipe: lambda recipe, show: _value_text(recipe.value),
    GraphOutput: lambda recipe, show: f"graph_output[{recipe.index}]",
    RaisedAt: lambda recipe, show: "<raised at>",
    NewTuple: lambda recipe, show: f"({_items(recipe.items, show)}{',' if len(recipe.items) == 1 else ''})",
    NewList: lambda recipe, show: f"[{_items(recipe.items, show)}]",
    NewDict: lambda recipe, show: f"{{{', '.join(f'{show(key)}: {show(value)}' for key, value in recipe.items)}}}",
    NewCell: lambda recipe, show: f"cell({'' if recipe.content is None else show(recipe.content)})",
    FrameCell: lambda recipe, show: f"cell of {recipe.name}",
    CallRecipe: _call_text,
    GetAttr: lambda recipe, show: f"{show(recipe.base)}.{recipe.name}",
}
