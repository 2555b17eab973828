"""Runs a functional graph with the effects of the original program: writes inputs back and rebuilds aliased outputs.

Each effect is one small closure. A graph without effects is called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stator.base.registry import Registry
from stator.graph.functionalization.views import run_step
from stator.graph.ir.size_bindings import (
    NO_BINDINGS,
    SizeBindings,
    evaluated,
    input_bindings,
    is_symbolic,
    read_sizes,
    size_reader,
)
from stator.graph.ir.traced import (
    Fresh,
    Geometry,
    History,
    InputItself,
    Moved,
    NewLayout,
    Output,
    OutputValue,
    SameAs,
    Traced,
    ViewOfConstant,
    ViewOfInput,
    ViewOfOutput,
    ViewOfResult,
    ViewStep,
    symbolic_parts,
)
from stator.shapes.expr import Symbol

Inner = Callable[..., Sequence[Any]]
_MOST_KNOWN = 256  # combinations of sizes that one output keeps

# make(inputs, results, made) -> one of the outputs of the user; `made` holds the outputs made before it
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


@makers.register(Moved)
def _moved(output: Moved) -> Make:
    position, base, view = output.position, output.base, _viewer(output.geometry)

    def make(inputs: Sequence[torch.Tensor], results: Sequence[Any], made: list[Any]) -> Any:
        place = view(inputs[base] if output.of_input else results[base])
        return _OnMemory.apply(results[position], place.detach())

    return make


class _OnMemory(torch.autograd.Function):
    """Gives a value other memory, with equal contents. Autograd refuses later writes to the result, as behind every
    custom function that returns a view."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return place.view_as(place)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


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


@makers.register(ViewOfResult)
def _view_of_result(output: ViewOfResult) -> Make:
    index, view = output.index, _viewer(output.geometry)
    return lambda inputs, results, made: view(made[index])


@makers.register(OutputValue)
def _value(output: OutputValue) -> Make:
    value = output.value
    return lambda inputs, results, made: value


def _viewer(geometry: Geometry) -> Callable[[torch.Tensor], torch.Tensor]:
    if geometry.steps:

        def by_steps(base: torch.Tensor) -> torch.Tensor:
            for step in geometry.steps:
                base = run_step(step, base)
            return base

        return by_steps
    shape, stride, offset = geometry.shape, geometry.stride, geometry.offset
    return lambda base: base.as_strided(shape, stride, base.storage_offset() + offset)


def with_effects(
    traced: Traced, inner: Inner, differentiable: frozenset[int] = frozenset()
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """A function of one sequence of all inputs that returns the user's outputs and applies the effects.

    differentiable: positions of values that autograd tracks; an input that gets such a value as its new contents also
    gets its history. Where `inner` returns None for new contents, it has written them itself.
    """
    mutated = tuple(
        (index, position, position in differentiable, traced.announced.get(index, 0))
        for index, position in traced.mutated
    )
    places = tuple([index for index, _ in traced.mutated])
    contents_of = dict(traced.mutated)
    once = [index for index in places if traced.announced.get(index, 0) == 1]  # statistics of a batch, mostly
    bindings, of_results = input_bindings(traced.graph.graph), traced.result_sizes
    described = zip(traced.outputs, _histories(traced), strict=True)
    makes = tuple([_make(*one, bindings, of_results) for one in described])
    order = sorted(range(len(makes)), key=lambda at: _after_others(traced.outputs[at]))
    ordered = tuple([(at, makes[at]) for at in order])
    build = _builder(traced)
    layouts = traced.layouts

    def copied_back(inputs: Sequence[torch.Tensor], results: Sequence[Any]) -> list[torch.Tensor]:
        """Give inputs their new contents. Returns inputs whose versions have to rise by one for each time."""
        written: list[torch.Tensor] = []
        for index, position, with_history, announced in mutated:
            contents, place = results[position], inputs[index]
            if contents is None:
                written += [place] * announced
                continue
            with torch.set_grad_enabled(with_history):
                (place if announced else place.data).copy_(contents)
            written += [place] * (announced - 1)  # copy_ has counted one write
        return written

    def run(inputs: Sequence[torch.Tensor]) -> Any:
        of_inference = [index for index in places if inputs[index].is_inference()]
        if of_inference and not torch.is_inference_mode_enabled():  # raise before `inner` writes
            raise RuntimeError(_OF_INFERENCE_MODE)
        results = inner(*inputs)
        written = [inputs[index] for index in once if results[contents_of[index]] is None]
        if len(written) < len(mutated):
            written = copied_back(inputs, results)
        if written:
            _say_written(written, of_inference)
        made: list[Any] = [None] * len(ordered)
        for at, make in ordered:
            made[at] = make(inputs, results, made)
        for change in layouts:  # layouts change last: views above are views of the original input
            if bindings or of_results:
                change = _at_sizes(change, read_sizes(bindings, inputs) | read_sizes(of_results, results))
            _lay_out(inputs[change.index], change)
        return build(made)

    return run


def _lay_out(tensor: torch.Tensor, change: NewLayout) -> None:
    """Change the layout in place, counting as many writes as the program's own operators would."""
    geometry, count = change.geometry, change.count
    if geometry is not None:
        with torch.no_grad():
            tensor.as_strided_(geometry.shape, geometry.stride, tensor.storage_offset() + geometry.offset)
        count -= 1
    _say_written([tensor] * count)


def _after_others(output: Output) -> int:
    """The order of making outputs: views of other outputs come behind these, and repeated outputs come last."""
    return 2 if isinstance(output, SameAs) else 1 if isinstance(output, ViewOfResult) else 0


_OF_INFERENCE_MODE = (
    "Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone to get a normal "
    "tensor before doing inplace update.See https://github.com/pytorch/rfcs/pull/17 for more details."
)


def _say_written(tensors: list[torch.Tensor], of_inference: Collection[int] | None = None) -> None:
    """Increment the version counters, so that autograd finds changed saved values. Inference tensors have none:
    `of_inference` is empty if there are none."""
    if of_inference is None or of_inference:
        tensors = [tensor for tensor in tensors if not tensor.is_inference()]
    torch.autograd.graph.increment_version(tensors)


_set_grad_enabled = torch._C._set_grad_enabled  # torch.no_grad() costs more than most views


def _histories(traced: Traced) -> tuple[History, ...]:
    return traced.histories or (History.AMBIENT,) * len(traced.outputs)


def maker(output: Any, bindings: SizeBindings, of_results: SizeBindings = NO_BINDINGS) -> Make:
    """How an output is made. Symbolic sizes are evaluated once for each combination: inputs bind the symbols of
    `bindings`, results those of `of_results`."""
    if not is_symbolic(symbolic_parts(output)):
        return makers[type(output)](output)
    of_inputs, of_others = size_reader(bindings), size_reader(of_results)
    known: dict[tuple[int, ...], Make] = {}

    def make(inputs: Sequence[torch.Tensor], results: Sequence[Any], made: list[Any]) -> Any:
        values = *of_inputs(inputs), *of_others(results)
        found = known.get(values)
        if found is None:
            if len(known) == _MOST_KNOWN:
                known.clear()
            there = _at_sizes(output, dict(zip((*bindings, *of_results), values, strict=True)))
            found = known[values] = makers[type(there)](there)
        return found(inputs, results, made)

    return make


def _at_sizes(described: Any, sizes: Mapping[Symbol, int]) -> Any:
    """An output or a layout with numbers for its symbolic sizes."""
    if isinstance(described, OutputValue):
        return OutputValue(evaluated(described.value, sizes))
    geometry = described.geometry
    if geometry is None:
        return described
    shape, stride, offset = evaluated((geometry.shape, geometry.stride, geometry.offset), sizes)
    steps = tuple([_step_at(step, sizes) for step in geometry.steps])
    return replace(described, geometry=Geometry(shape, stride, offset, steps))


def _step_at(step: ViewStep, sizes: Mapping[Symbol, int]) -> ViewStep:
    whole = step.whole and (step.whole[0], *evaluated(step.whole[1:3], sizes), step.whole[3])
    return replace(step, args=evaluated(step.args, sizes), kwargs=evaluated(step.kwargs, sizes), whole=whole)


def _make(output: Any, history: History, bindings: SizeBindings, of_results: SizeBindings) -> Make:
    make = maker(output, bindings, of_results)
    made_here = isinstance(output, (ViewOfInput, ViewOfOutput, ViewOfConstant))
    if not made_here or history in (History.AMBIENT, History.FOLLOWED):
        return make

    def apart(inputs: Sequence[torch.Tensor], results: Sequence[Any], made: list[Any]) -> Any:
        before = torch.is_grad_enabled()
        _set_grad_enabled(False)
        try:
            tensor = make(inputs, results, made)
        finally:
            _set_grad_enabled(before)
        if history is History.DATA:
            return tensor.data
        # In eager such a view requires grad although nothing was recorded.
        if history is History.DETACHED or (history is History.NONE and tensor.requires_grad):
            return tensor.detach()
        return tensor

    return apart


def _builder(traced: Traced) -> Callable[[list[Any]], Any]:
    """Builds the user's result from its leaves: a tuple for the flat output of a graph."""
    if is_flat(traced):
        return tuple
    spec = traced.spec
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


def is_flat(traced: Traced) -> bool:
    """Whether the user's result is one flat tuple or list."""
    spec = traced.spec
    return spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children())
