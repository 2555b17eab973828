"""Functions with their own backward inside graphs: the callable of a node that stands for a custom autograd.Function.
It runs on real tensors and, while tracing, on fake ones.

Capturing such functions happens elsewhere.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.autograd.function import once_differentiable
from torch.fx._lazy_graph_module import _LazyGraphModule

from stator.base.errors import Unsupported
from stator.graph.fake.wrapper_subclasses import WrapperLayout, is_wrapper, like_gradient


class SlotKind(enum.Enum):
    """Where a graph of a custom function finds a value."""

    ARGUMENT = "argument"  # a tensor argument of the function, by position
    FREE = "free"  # a tensor that the function reads from its closure or globals, or a number
    OUTPUT = "output"  # an output of the function
    KEPT = "kept"  # a value that the forward keeps for the backward


ValueSlot = tuple[SlotKind, int]


class GradientKind(enum.Enum):
    """What the gradient of an output is, if it is no wrapper subclass."""

    PLAIN = "a plain tensor"
    ABSENT = "None"


@dataclass(frozen=True, slots=True)
class SubgraphBackward:
    """The backward for one grad mode and certain kinds of gradients.

    kinds: of the gradients of the outputs; the layouts of wrapper subclasses.
    graph: takes the gradients of the outputs that are tensors, then the values at `reads`. It returns the gradients of
        the tensor arguments, one result for each entry of `results` that is not None.
    """

    graph: fx.GraphModule
    reads: tuple[ValueSlot, ...]
    results: tuple[int | None, ...]
    kinds: tuple[WrapperLayout | GradientKind, ...]

    def takes(self, gradients: Sequence[torch.Tensor | None]) -> bool:
        """Whether the gradients are of the kinds for which the backward was captured."""
        return all(
            kind.fits(found) if isinstance(kind, WrapperLayout) and isinstance(found, WrapperLayout) else kind is found
            for kind, found in zip(self.kinds, map(kind_of_gradient, gradients), strict=True)
        )


def kind_of_gradient(gradient: torch.Tensor | None) -> WrapperLayout | GradientKind:
    if gradient is None:
        return GradientKind.ABSENT
    return WrapperLayout.of(gradient) if is_wrapper(gradient) else GradientKind.PLAIN


@dataclass(frozen=True, slots=True)
class CustomFunction:
    """A custom autograd.Function as graphs.

    forward: takes the values at `reads`; returns `output_count` tensors, then the values kept for the backward.
    backwards: by grad mode (is the backward itself differentiated?), one for each kind of gradients.
    saved: the values that the function passed to `save_for_backward`. Other values of the backward are kept by
        reference.
    """

    name: str
    argument_count: int
    forward: fx.GraphModule
    reads: tuple[ValueSlot, ...]
    output_count: int
    backwards: dict[bool, tuple[SubgraphBackward, ...]]
    saved: tuple[ValueSlot, ...]
    dirty: tuple[int, ...]  # positions of arguments
    not_differentiable: tuple[int, ...]  # positions of outputs
    once: bool
    materializes: bool  # are absent gradients zeros?

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Apply the function to its tensor arguments, followed by the free tensors."""
        arguments, free = tensors[: self.argument_count], tensors[self.argument_count :]
        return _class_named(self.name, self.once).apply(self, free, *arguments)

    def graphs(self) -> dict[str, fx.GraphModule]:
        """Return the graphs by role, for printing."""
        found = {"forward": self.forward}
        for part in itertools.chain.from_iterable(self.backwards.values()):
            if not any(part.graph is one for one in found.values()):
                found[f"backward_{len(found)}"] = part.graph
        return found


def graph_target(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a callable object in a plain function, because fx graphs call and print only these. The object stays
    reachable at `.graph_callable`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.graph_callable = function  # type: ignore[attr-defined]
    return call


def run_subgraph(graph: fx.GraphModule, values: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(graph, _LazyGraphModule):
        _LazyGraphModule.force_recompile(graph)
    return graph.forward(*values)


class _CustomAutograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: CustomFunction, free: tuple[torch.Tensor, ...], *arguments: torch.Tensor) -> Any:
        found: dict[SlotKind, Sequence[torch.Tensor]] = {SlotKind.ARGUMENT: arguments, SlotKind.FREE: free}
        made = run_subgraph(function.forward, [found[kind][index] for kind, index in function.reads])
        ctx.set_materialize_grads(function.materializes)
        outputs, kept = made[: function.output_count], made[function.output_count :]
        ctx.mark_dirty(*[arguments[index] for index in function.dirty])
        ctx.mark_non_differentiable(*[outputs[index] for index in function.not_differentiable])
        found |= {SlotKind.OUTPUT: outputs, SlotKind.KEPT: kept}
        ctx.save_for_backward(*[found[kind][index] for kind, index in function.saved])
        by_context = set(function.saved)
        parts = itertools.chain.from_iterable(function.backwards.values())
        referred = {place for part in parts for place in part.reads} - by_context
        ctx.referred = {(kind, index): found[kind][index] for kind, index in referred}
        ctx.function = function
        # the strides that the backward was captured with: the user's code may have read them
        ctx.layouts = [_layouts(like_gradient(output) if is_wrapper(output) else output) for output in outputs]
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        function: CustomFunction = ctx.function
        part = next((one for one in function.backwards[torch.is_grad_enabled()] if one.takes(gradients)), None)
        if part is None:
            kinds = ", ".join(type(one).__qualname__ for one in gradients)
            raise Unsupported("tensor-subclass", f"the backward of {function.name} for gradients of class {kinds}")
        pairs = zip(gradients, ctx.layouts, strict=True)
        given = [_laid_out(gradient, layout) for gradient, layout in pairs if gradient is not None]
        values = dict(ctx.referred)
        if function.saved:
            values.update(zip(function.saved, ctx.saved_tensors, strict=True))
        made = run_subgraph(part.graph, [*given, *[values[place] for place in part.reads]])
        return (None, None, *[None if position is None else made[position] for position in part.results])


class _OnceDifferentiable(_CustomAutograd):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        return _CustomAutograd.backward(ctx, *gradients)


@functools.lru_cache(maxsize=256)
def _class_named(name: str, once: bool) -> Any:
    """The class to apply. Its autograd nodes, and torch's errors, have the name of the program's class."""
    return type(name, (_OnceDifferentiable if once else _CustomAutograd,), {})


def _layouts(tensor: torch.Tensor) -> list[tuple[Any, Any]]:
    """Shape and strides of a tensor, then those of the parts of a wrapper subclass."""
    leaves = WrapperLayout.of(tensor).leaves(tensor) if is_wrapper(tensor) else ()
    return [(one.shape, one.stride()) for one in (tensor, *leaves)]


def _laid_out(gradient: torch.Tensor, layouts: list[tuple[Any, Any]]) -> torch.Tensor:
    """A gradient with the strides of `_layouts`."""
    if _layouts(gradient) == layouts[: None if is_wrapper(gradient) else 1]:
        return gradient
    if is_wrapper(gradient):
        if gradient.requires_grad and torch.is_grad_enabled():
            raise Unsupported("tensor-subclass", f"the second derivative by a {type(gradient).__qualname__} in a copy")
        layout = replace(WrapperLayout.of(gradient), stride=layouts[0][1])
        leaves = [_laid_out(leaf, [own]) for leaf, own in zip(layout.leaves(gradient), layouts[1:], strict=True)]
        return layout.build(iter(leaves))
    shape, stride = layouts[0]
    return torch.empty_strided(shape, stride, dtype=gradient.dtype, device=gradient.device).copy_(gradient)
