"""What surrounds a compiled functional graph when it runs: writing mutated inputs back and rebuilding aliased outputs.

One small closure per effect; a graph without effects gets none and is called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stator.base.registry import Registry
from stator.graph.traced import (
    Fresh,
    Geometry,
    History,
    InputItself,
    SameAs,
    Traced,
    Value,
    ViewOfConstant,
    ViewOfInput,
    ViewOfOutput,
)

Inner = Callable[..., Sequence[Any]]
# make(inputs, results, made) -> one of the user's outputs; `made` holds those before it
Make = Callable[[Sequence[torch.Tensor], Sequence[Any], list[Any]], Any]
makers: Registry[type, Callable[[Any], Make]] = Registry("output kind")


@makers.register(Fresh)
def _fresh(output: Fresh) -> Make:
    position = output.position
    return lambda inputs, results, made: results[position]


@makers.register(InputItself)
def _input_itself(output: InputItself) -> Make:
    index = output.index
    return lambda inputs, results, made: inputs[index]


@makers.register(ViewOfInput)
def _view_of_input(output: ViewOfInput) -> Make:
    index, view = output.index, _viewer(output.geometry)
    return lambda inputs, results, made: view(inputs[index])


@makers.register(ViewOfOutput)
def _view_of_output(output: ViewOfOutput) -> Make:
    position, view = output.position, _viewer(output.geometry)
    return lambda inputs, results, made: view(results[position])


@makers.register(ViewOfConstant)
def _view_of_constant(output: ViewOfConstant) -> Make:
    tensor = output.tensor
    if output.geometry is None:
        return lambda inputs, results, made: tensor
    view = _viewer(output.geometry)
    return lambda inputs, results, made: view(tensor)


@makers.register(SameAs)
def _same_as(output: SameAs) -> Make:
    index = output.index
    return lambda inputs, results, made: made[index]


@makers.register(Value)
def _value(output: Value) -> Make:
    value = output.value
    return lambda inputs, results, made: value


def _viewer(geometry: Geometry) -> Callable[[torch.Tensor], torch.Tensor]:
    if geometry.steps:

        def by_steps(base: torch.Tensor) -> torch.Tensor:
            for step in geometry.steps:
                base = step.func(base, *step.args, **step.kwargs)
            return base

        return by_steps
    shape, stride, offset = geometry.shape, geometry.stride, geometry.offset
    return lambda base: base.as_strided(shape, stride, base.storage_offset() + offset)


def with_effects(
    traced: Traced, inner: Inner, differentiable: frozenset[int] = frozenset()
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """A function of all the graph's inputs (one sequence) that yields the user's outputs, effects included.

    differentiable: positions of the values that autograd follows; an input that gets one of them as its new contents
    gets its history too. Where `inner` returns None for new contents it has written them itself.
    """
    mutated = tuple((index, position, position in differentiable) for index, position in traced.mutated)
    makes = tuple(map(_make, traced.outputs, _histories(traced)))
    build = _builder(traced)

    def run(inputs: Sequence[torch.Tensor]) -> Any:
        results = inner(*inputs)
        written: list[torch.Tensor] = []
        for index, position, with_history in mutated:
            contents = results[position]
            if contents is None:
                written.append(inputs[index])
                continue
            with torch.set_grad_enabled(with_history):
                inputs[index].copy_(contents)
        if written:
            _say_written(written)
        made: list[Any] = []
        for make in makes:
            made.append(make(inputs, results, made))
        return build(made)

    return run


def _say_written(tensors: list[torch.Tensor]) -> None:
    """To autograd, which is not to find other values than it saved. Inference tensors have no version."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def _histories(traced: Traced) -> tuple[History, ...]:
    return traced.histories or (History.AMBIENT,) * len(traced.outputs)


def _make(output: Any, history: History) -> Make:
    make = makers[type(output)](output)
    made_here = isinstance(output, (ViewOfInput, ViewOfOutput, ViewOfConstant))
    if not made_here or history in (History.AMBIENT, History.FOLLOWED):
        return make

    def apart(inputs: Sequence[torch.Tensor], results: Sequence[Any], made: list[Any]) -> Any:
        with torch.no_grad():
            tensor = make(inputs, results, made)
        # a view is said to require grad although nothing was recorded: so in eager
        if history is History.DETACHED or (history is History.NONE and tensor.requires_grad):
            return tensor.detach()
        return tensor

    return apart


def _builder(traced: Traced) -> Callable[[list[Any]], Any]:
    """Put the leaves of the user's result together: a tuple for the flat output of a graph."""
    if is_flat(traced):
        return tuple
    spec = traced.spec
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


def is_flat(traced: Traced) -> bool:
    """Whether the user's result is one flat tuple or list."""
    spec = traced.spec
    return spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children())
