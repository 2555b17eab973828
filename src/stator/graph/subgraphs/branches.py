"""Conditional branches inside graphs: the callable of a node that runs one of two graphs, chosen by a tensor.

On real tensors the chosen graph runs, and autograd sees its operators. While tracing, both graphs become parts of one
operator. Its backward is another such operator, which recomputes the intermediate values of the branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.graph.fake.fake_mode import FakeMode, FakeTensor
from stator.graph.fake.number_stand_ins import Number, is_number, number_from_tensor
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.graph.ir.size_bindings import is_symbolic
from stator.graph.tracing.tracer import run_graph
from stator.prims.layout import contiguous_strides, is_dense
from stator.prims.record import TensorMeta

from .custom_autograd import run_subgraph
from .generators import random_devices_of
from .subgraph_ops import Compiled, SubgraphFunction, SubgraphOp, fresh_layout, record_subgraph, trace_subgraph


@dataclass(frozen=True, slots=True)
class Branch:
    """A graph of torch calls. Its placeholders are the node's arguments at the indices `reads`. The graph returns fresh
    tensors only and writes to none of its inputs."""

    graph: fx.GraphModule
    reads: tuple[int, ...]


class Branches:
    """Two branches, and the layouts of the results, which both branches share.

    A floating-point result requires grad if any argument does, even if the branch that ran did not use that argument.
    Arguments that only the other branch reads then get a gradient of zeros.
    """

    def __init__(self, name: str, true: Branch, false: Branch, results: Sequence[TensorMeta]) -> None:
        self.name = name
        self.branches = {True: true, False: false}
        self.results = tuple(map(fresh_layout, results))

    def __call__(self, condition: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """Run the branch for `condition`, a tensor with one element."""
        if isinstance(condition, FakeTensor):
            return self._on_fakes(condition, arguments)
        branch = self.branches[bool(condition)]
        grad_mode = torch.is_grad_enabled()
        made = run_subgraph(branch.graph, [arguments[index] for index in branch.reads])
        torch._C._set_grad_enabled(grad_mode)
        return _connect_gradients(made, arguments, frozenset(branch.reads)) if grad_mode else made

    def _on_fakes(self, condition: FakeTensor, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        if not isinstance(condition.fake_mode, FunctionalTracer):  # plain fake mode: only the results matter
            arguments = [value for value in arguments if not is_number(value)]
        tensors, numbers = numbers_to_tensors(arguments)
        sizes = {at: value for at, value in enumerate(tensors) if not isinstance(value, torch.Tensor)}
        functions = [branch_tracer(self.branches[side], numbers, sizes) for side in (True, False)]
        results = self._results_of(tensors) if is_symbolic(self.results) else self.results
        given = [value for value in tensors if isinstance(value, torch.Tensor)]
        return apply_choice(BranchChoice(self.name, functions, results), condition, given)

    def _results_of(self, arguments: Sequence[Any]) -> tuple[TensorMeta, ...]:
        """The layouts of the results for arguments of these sizes, which the symbols of the capture need not name."""
        mode = FakeMode()
        branch = self.branches[True]
        given = [mode.make(one.meta) if isinstance(one, FakeTensor) else one for one in arguments]
        with torch._C._InferenceMode(False), torch.no_grad(), mode:
            made = run_subgraph(branch.graph, [given[index] for index in branch.reads])
        return tuple([fresh_layout(one.meta) for one in made])

    def graphs(self) -> dict[str, fx.GraphModule]:
        """Return the graphs by role, for printing."""
        return {"true": self.branches[True].graph, "false": self.branches[False].graph}


def numbers_to_tensors(arguments: Sequence[Any]) -> tuple[list[Any], dict[int, Number]]:
    """Replace traced numbers by the tensors that hold them; also return these numbers by position."""
    numbers = {at: value.node for at, value in enumerate(arguments) if is_number(value)}
    return [value.node.tensor if at in numbers else value for at, value in enumerate(arguments)], numbers


def branch_tracer(branch: Branch, numbers: Mapping[int, Number], sizes: Mapping[int, Any]) -> SubgraphFunction:
    """Make a function that traces the graph of a branch. It takes tensors in place of the numbers at `numbers`, and no
    sizes, which are symbols that graphs contain."""

    def run(tracer: FunctionalTracer, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        remaining = iter(tensors)
        given = [sizes[at] if at in sizes else next(remaining) for at in range(len(tensors) + len(sizes))]
        values = [number_from_tensor(value, numbers[at]) if at in numbers else value for at, value in enumerate(given)]
        read = [values[index] for index in branch.reads]
        before = tracer.origin, tracer.place
        made = run_graph(branch.graph, read, tracer)
        tracer.origin, tracer.place = before
        return made

    return run


# ---- autograd of results on real tensors ----


class _WithZeroGradients(torch.autograd.Function):
    """Returns its first tensor unchanged. Autograd also connects the result to the other tensors, with gradients of
    zeros."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.others = [(other.shape, other.dtype, other.device) for other in others]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.others]
        return gradients[0], *zeros


def _connect_gradients(
    made: tuple[torch.Tensor, ...], arguments: Sequence[Any], read: frozenset[int]
) -> tuple[torch.Tensor, ...]:
    able = [at for at, value in enumerate(arguments) if isinstance(value, torch.Tensor) and value.requires_grad]
    if not able:
        return made
    unread = [arguments[at] for at in able if at not in read]
    given: list[torch.Tensor] = []
    for value in made:
        others = unread if value.requires_grad else [arguments[at] for at in able]
        given.append(_WithZeroGradients.apply(value, *others) if others and _differentiable(value.dtype) else value)  # type: ignore[no-untyped-call]
    return tuple(given)


def _differentiable(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


# ---- while tracing ----


@dataclass(frozen=True, slots=True)
class BranchChoice:
    """Two functions of the same tensors, for true and for false. Both return tensors laid out as `results`."""

    name: str
    functions: Sequence[SubgraphFunction]
    results: Sequence[TensorMeta]

    def record(
        self, condition: FakeTensor, tensors: Sequence[FakeTensor], differentiated: bool = False
    ) -> tuple[FakeTensor, ...]:
        """Record the node if the mode is a tracer; otherwise only make the results. Runs below autograd."""
        mode = condition.fake_mode
        if not isinstance(mode, FunctionalTracer):
            return tuple([mode.make(meta) for meta in self.results])
        given = [tensor.meta for tensor in tensors]
        graphs = [trace_subgraph(mode, function, given, self.results, self.name) for function in self.functions]
        draws = bool(random_devices_of(graphs))
        assert not (draws and differentiated), "the backward would compute the branch again with other random numbers"
        part = SubgraphOp(self.name, graphs, self.results, _RunBranch())
        return tuple(record_subgraph(mode, part, [condition, *tensors], draws))


@dataclass(frozen=True, slots=True)
class _RunBranch:
    """Runs the first function if the first tensor is true, else the second."""

    def __call__(self, functions: Sequence[Compiled], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return functions[0 if bool(tensors[0]) else 1](*tensors[1:])


def apply_choice(choice: BranchChoice, condition: FakeTensor, tensors: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Run the chosen function on these fake tensors."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        made: Any = _DifferentiableChoice.apply(choice, condition, *tensors)  # type: ignore[no-untyped-call]
        return tuple(made)
    return choice.record(condition, tensors)


class _DifferentiableChoice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, choice: BranchChoice, condition: FakeTensor, *tensors: FakeTensor) -> Any:
        ctx.choice, ctx.autocast = choice, _autocast()
        ctx.save_for_backward(condition, *tensors)
        made = choice.record(condition, tensors, differentiated=True)
        ctx.mark_non_differentiable(*[value for value in made if not _differentiable(value.dtype)])
        return made

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        condition, *tensors = ctx.saved_tensors
        wanted = [at for at, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        choice: BranchChoice = ctx.choice
        able = [at for at, meta in enumerate(choice.results) if _differentiable(meta.dtype)]
        layouts = [_gradient_layout(tensors[at].meta) for at in wanted]
        back = _BranchBackward(len(tensors), wanted, able, layouts, ctx.autocast)
        functions = [back.of(function) for function in choice.functions]
        backward = BranchChoice(f"{choice.name}_backward", functions, layouts)
        found = apply_choice(backward, condition, [*tensors, *[tangents[at] for at in able]])
        gradients: list[Any] = [None] * len(tensors)
        for at, gradient in zip(wanted, found, strict=True):
            gradients[at] = gradient
        return None, None, *gradients


@dataclass(frozen=True, slots=True)
class _BranchBackward:
    """Computes gradients of the tensors at `wanted` (of `count` tensors) from the gradients of the results at `able`,
    in `layouts`."""

    count: int
    wanted: Sequence[int]
    able: Sequence[int]
    layouts: Sequence[TensorMeta]
    autocast: Sequence[tuple[str, bool, torch.dtype]]

    def of(self, function: SubgraphFunction) -> SubgraphFunction:
        def run(tracer: FunctionalTracer, *values: torch.Tensor) -> Sequence[torch.Tensor]:
            twice = torch.is_grad_enabled()
            with torch.enable_grad():
                inner = list(values[: self.count])
                for at in self.wanted:
                    if not inner[at].requires_grad:
                        inner[at] = inner[at].detach().requires_grad_()
                with _autocast_as(self.autocast):
                    made = function(tracer, *inner)
                paired = [
                    (made[at], tangent)
                    for at, tangent in zip(self.able, values[self.count :], strict=True)
                    if made[at].requires_grad
                ]
                found: Sequence[torch.Tensor | None] = [None] * len(self.wanted)
                if paired:
                    outputs, tangents = zip(*paired, strict=True)
                    sources = [inner[at] for at in self.wanted]
                    with torch.autograd.set_multithreading_enabled(False):  # it may be a part of a running backward
                        found = torch.autograd.grad(outputs, sources, tangents, create_graph=twice, allow_unused=True)
            return [_as_gradient(gradient, meta) for gradient, meta in zip(found, self.layouts, strict=True)]

        return run


def _as_gradient(gradient: torch.Tensor | None, meta: TensorMeta) -> torch.Tensor:
    made = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
    return made.zero_() if gradient is None else made.copy_(gradient)


def _gradient_layout(meta: TensorMeta) -> TensorMeta:
    stride = meta.stride if is_dense(meta.shape, meta.stride) else contiguous_strides(meta.shape)
    return TensorMeta(meta.shape, stride, meta.dtype, meta.device)


def _autocast() -> tuple[tuple[str, bool, torch.dtype], ...]:
    return tuple(
        [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")]
    )


@contextmanager
def _autocast_as(wanted: Sequence[tuple[str, bool, torch.dtype]]) -> Iterator[None]:
    """Restore the autocast state of the forward, because the backward recomputes the branch."""
    before = _autocast()
    _set_autocast(wanted)
    try:
        yield
    finally:
        _set_autocast(before)


def _set_autocast(state: Sequence[tuple[str, bool, torch.dtype]]) -> None:
    for device, enabled, dtype in state:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
