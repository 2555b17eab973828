"""Custom autograd.Functions under torch.func transforms: the callable of a node that stands for a function with a
separate `setup_context`. It runs under the active transforms, on real tensors and, while tracing, on fake ones.

Capturing such functions happens elsewhere.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable

from .custom_autograd import SlotKind, SubgraphBackward, ValueSlot, run_subgraph

_Function = torch.autograd.Function


class TransformRule(enum.Enum):
    """How torch.func.vmap handles the class."""

    NONE = "none"  # vmap raises an error
    GENERATED = "generated"  # the class sets generate_vmap_rule
    OWN = "own"  # the class has a staticmethod `vmap`


@dataclass(frozen=True, slots=True)
class SetupContext:
    """The tensor part of `setup_context`: reads the values at `reads`, returns the values kept for the backward."""

    graph: fx.GraphModule
    reads: tuple[ValueSlot, ...]


@dataclass(frozen=True, slots=True)
class SubgraphJvp:
    """`jvp` for one set of inputs that have tangents.

    graph: takes the present tangents, then the values at `reads`. It returns the tangents of the outputs, one result
        for each entry of `results` that is not None.
    """

    graph: fx.GraphModule
    reads: tuple[ValueSlot, ...]
    results: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SubgraphVmap:
    """The function's own `vmap` for arguments of certain sizes, mapped over certain dimensions.

    graph: takes all tensor arguments and returns all outputs.
    """

    graph: fx.GraphModule
    out_dims: tuple[int | None, ...]


class MissingVmapRule(Exception):
    """Capture has not yet followed the function's own `vmap` for such arguments. info: torch's first argument of
    `vmap`."""

    def __init__(self, function: TransformableFunction, info: Any, in_dims: tuple[Any, ...], like: Sequence[Any]):
        super().__init__(f"{function.name}.vmap over dimensions {in_dims}")
        self.function = function
        self.info = info
        self.in_dims = in_dims
        self.like = like

    @property
    def key(self) -> tuple[Any, ...]:
        """Return everything that the rule may depend on."""
        sizes = tuple((tuple(one.shape), one.dtype, one.device) for one in self.like)
        return tuple(self.info), self.in_dims, sizes


@dataclass(frozen=True, slots=True, eq=False)
class TransformableFunction:
    """A custom autograd.Function as graphs. `forward` and `backwards` are as in `CustomFunction`.

    asks_needs: the backward reads `needs_input_grad`, which differs between the surrounding transforms; `backwards` is
        then also keyed by the arguments that need a gradient.
    saved: the values, known at the call, that the other graphs read.
    jvps: keyed by the arguments that have tangents.
    rules: captured runs of the function's own `vmap`, by `MissingVmapRule.key`.
    """

    name: str
    argument_count: int
    forward: fx.GraphModule
    reads: tuple[ValueSlot, ...]
    output_count: int
    setup: SetupContext
    backwards: dict[tuple[bool, ...], SubgraphBackward]
    jvps: dict[tuple[bool, ...], SubgraphJvp]
    saved: tuple[ValueSlot, ...]
    not_differentiable: tuple[int, ...]  # positions of outputs
    materialize: bool
    once: bool
    asks_needs: bool
    rule: TransformRule
    rules: dict[tuple[Any, ...], SubgraphVmap] = field(default_factory=dict)

    def __call__(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Apply the function to its tensor arguments, followed by the free values."""
        return _autograd_class(self.rule, self.once).apply(self, *values)  # type: ignore[no-any-return]

    def graphs(self) -> dict[str, fx.GraphModule]:
        """Return the graphs by role, for printing."""
        parts: list[SubgraphBackward | SubgraphJvp | SubgraphVmap] = [
            *self.backwards.values(),
            *self.jvps.values(),
            *self.rules.values(),
        ]
        found = {"forward": self.forward, "setup": self.setup.graph}
        for part in parts:
            if not any(part.graph is one for one in found.values()):
                found[f"{type(part).__name__.lower()}_{len(found)}"] = part.graph
        return found


class _Transformable(_Function):
    @staticmethod
    def forward(function: TransformableFunction, *values: Any) -> Any:
        given = _placed(function, values)
        return run_subgraph(function.forward, [given[place] for place in function.reads])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        function: TransformableFunction = inputs[0]
        places = _placed(function, inputs[1:]) | {(SlotKind.OUTPUT, at): one for at, one in enumerate(output)}
        kept = run_subgraph(function.setup.graph, [places[place] for place in function.setup.reads])
        places |= {(SlotKind.KEPT, at): one for at, one in enumerate(kept)}
        ctx.mark_non_differentiable(*[output[at] for at in function.not_differentiable])
        ctx.set_materialize_grads(function.materialize)
        ctx.function = function
        ctx.numbers = {place: places[place] for place in function.saved if not _is_tensor(places[place])}
        tensors = [places[place] for place in function.saved if place not in ctx.numbers]
        ctx.save_for_backward(*tensors)
        if function.jvps:
            ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        function: TransformableFunction = ctx.function
        count = function.argument_count
        needs = ctx.needs_input_grad[1 : 1 + count] if function.asks_needs else ()
        there = [gradient is not None for gradient in gradients]
        part = function.backwards[torch.is_grad_enabled(), *there, *needs]
        present = [gradient for gradient in gradients if gradient is not None]
        present = [_laid_out(gradient, stride) for gradient, (_, stride) in zip(present, part.layouts, strict=True)]
        values = _saved(ctx)
        made = run_subgraph(part.graph, [*present, *[values[place] for place in part.reads]])
        free = len(ctx.needs_input_grad) - 1 - count
        return (None, *[None if at is None else made[at] for at in part.results], *[None] * free)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        function: TransformableFunction = ctx.function
        given = tangents[1 : 1 + function.argument_count]
        part = function.jvps.get(tuple([tangent is not None for tangent in given]))
        if part is None:
            raise NotImplementedError(f"{function.name} has no jvp")
        values = _saved(ctx)
        present = [tangent for tangent in given if tangent is not None]
        made = run_subgraph(part.graph, [*present, *[values[place] for place in part.reads]])
        return tuple([None if at is None else made[at] for at in part.results])


def _vmap(info: Any, in_dims: tuple[Any, ...], function: TransformableFunction, *values: Any) -> Any:
    count = function.argument_count
    if any(dim is not None for dim in in_dims[1 + count :]):
        raise RuntimeError(f"{function.name} reads a tensor that is mapped over and that it was not given")
    missing = MissingVmapRule(function, info, tuple(in_dims[1 : 1 + count]), values[:count])
    found = function.rules.get(missing.key)
    if found is None:
        raise missing
    return run_subgraph(found.graph, values[:count]), found.out_dims


@functools.cache
def _autograd_class(rule: TransformRule, once: bool) -> Any:
    """Make the autograd.Function class that torch sees."""
    contents: dict[str, Any] = {"generate_vmap_rule": rule is TransformRule.GENERATED}
    if rule is TransformRule.OWN:
        contents["vmap"] = staticmethod(_vmap)
    if once:
        contents["backward"] = staticmethod(once_differentiable(_Transformable.backward))
    return type("_Transformable", (_Transformable,), contents)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _placed(function: TransformableFunction, values: Sequence[Any]) -> dict[ValueSlot, Any]:
    count = function.argument_count
    found: dict[ValueSlot, Any] = {(SlotKind.ARGUMENT, at): value for at, value in enumerate(values[:count])}
    return found | {(SlotKind.FREE, at): value for at, value in enumerate(values[count:])}


def _saved(ctx: Any) -> dict[ValueSlot, Any]:
    places = [place for place in ctx.function.saved if place not in ctx.numbers]
    return ctx.numbers | dict(zip(places, ctx.saved_tensors, strict=True))  # type: ignore[no-any-return]


def _laid_out(gradient: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Give the gradient the strides that the backward was captured with, if these strides have no gaps."""
    if tuple(gradient.stride()) == tuple(stride):
        return gradient
    order = sorted(range(len(stride)), key=lambda at: (-stride[at], at))
    back = sorted(range(len(order)), key=order.__getitem__)
    return gradient.permute(order).contiguous().permute(back)
