"""Operator samples with their gradients as one function of tensors: run eagerly, traced, compiled, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from compiled import copied
from recorder import describe, value_differences
from samples import laid_out
from torch.utils import _pytree as pytree

from stator import pipeline
from stator.aot import keep_all
from stator.aot.replay import with_effects
from stator.base.config import Options
from stator.graph.recording import Keep, Tracer
from stator.graph.tracer import _finish
from stator.inductor.lower import can_lower

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
OPTIONS = Options(verify=True)
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


@dataclass
class GradientCase:
    """One call of one operator, with its tensors taken out, and tangents for its differentiable results."""

    name: str
    op: Any
    sample: tuple[Any, Any, Any]
    tangents: list[torch.Tensor] = field(default_factory=list)

    @cached_property
    def flat(self) -> tuple[list[Any], Any]:
        tensor, args, kwargs = self.sample
        return pytree.tree_flatten(((tensor, *args), kwargs))

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.flat[0] if isinstance(leaf, torch.Tensor)]

    @cached_property
    def trained(self) -> list[int]:
        return [at for at, tensor in enumerate(self.tensors) if tensor.requires_grad]

    def inputs(self) -> list[torch.Tensor]:
        return [copied(tensor) for tensor in (*self.tensors, *self.tangents)]

    def run(self, given: Sequence[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor | None]]:
        """The results and the gradients (None where there is none) for inputs and tangents."""
        tensors = [tensor.detach() for tensor in given[: len(self.tensors)]]
        for at in self.trained:
            tensors[at].requires_grad_()
        results = self.call(tensors)
        if not self.tangents:
            return results, []
        gradients = torch.autograd.grad(
            differentiable(results),
            [tensors[at] for at in self.trained],
            list(given[len(self.tensors) :]),
            allow_unused=True,
        )
        return [part.detach() if isinstance(part, torch.Tensor) else part for part in results], list(gradients)

    def call(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.flat[0]]
        args, kwargs = pytree.tree_unflatten(leaves, self.flat[1])
        return pytree.tree_leaves(self.op(*args, **kwargs))

    def describe(self) -> str:
        return f"{self.name} of {describe(self.flat[0])}"


def differentiable(results: Iterable[Any]) -> list[torch.Tensor]:
    return [part for part in results if isinstance(part, torch.Tensor) and part.requires_grad]


def cases(
    operators: Iterable[tuple[str, Any]],
    count: int,
    layouts: Sequence[str | None] = (None,),
    dtypes: Sequence[torch.dtype] = DTYPES,
    skip: Sequence[str] = (),
) -> Iterator[GradientCase]:
    """The samples that eager differentiates, with random tangents."""
    for name, op in operators:
        if not op.supports_autograd or any(part in name for part in skip):
            continue
        for sample in _samples(op, count, dtypes):
            for layout in layouts:
                case = GradientCase(name, op, sample if layout is None else _with_layout(sample, layout))
                if all(tensor.layout is torch.strided for tensor in case.tensors) and _prepare(case):
                    yield case


def _samples(op: Any, count: int, dtypes: Sequence[torch.dtype]) -> Iterator[tuple[Any, Any, Any]]:
    supported = op.supported_backward_dtypes("cpu") & op.supported_dtypes("cpu")
    for dtype in dtypes:
        if dtype in supported:
            for sample in islice(op.sample_inputs_func(op, "cpu", dtype, True), count):
                yield sample.input, sample.args, sample.kwargs


def _with_layout(sample: tuple[Any, Any, Any], layout: str) -> tuple[Any, Any, Any]:
    changed, spec = pytree.tree_flatten(laid_out(sample, layout))
    for old, new in zip(pytree.tree_leaves(sample), changed, strict=True):
        if isinstance(old, torch.Tensor) and old.requires_grad and not new.requires_grad:
            new.requires_grad_()
    return pytree.tree_unflatten(changed, spec)


def _prepare(case: GradientCase) -> bool:
    """Give a case its tangents; False where eager does not differentiate it."""
    try:
        case.tangents = []
        given = [tensor.requires_grad_(at in case.trained) for at, tensor in enumerate(case.inputs())]
        results = differentiable(case.call(given))
        case.tangents = [torch.randn_like(result).detach() for result in results]
        case.run(case.inputs())
    except REFUSALS:
        return False
    return bool(case.trained and case.tangents)


def function_of(batch: Sequence[GradientCase]) -> Callable[..., list[Any]]:
    def function(*tensors: torch.Tensor) -> list[Any]:
        remaining = iter(tensors)
        return [case.run(list(islice(remaining, len(case.tensors) + len(case.tangents)))) for case in batch]

    return function


def inputs(batch: Sequence[GradientCase]) -> list[torch.Tensor]:
    return [tensor for case in batch for tensor in case.inputs()]


def eager(batch: Sequence[GradientCase]) -> list[Any]:
    return function_of(batch)(*inputs(batch))


def traced(batch: Sequence[GradientCase], keep: Keep) -> Any:
    tracer = Tracer(keep)
    given = inputs(batch)
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        fakes = [tracer.add_input(tensor, f"arg_{at}") for at, tensor in enumerate(given)]
        stack.enter_context(tracer)
        result = function_of(batch)(*fakes)
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            return _finish(tracer, result)


def by_operators(batch: Sequence[GradientCase]) -> list[Any]:
    """Traced into a functional graph that is run operator by operator."""
    joint = traced(batch, keep_all)
    with torch.no_grad():
        return with_effects(joint, joint.graph.forward)(inputs(batch))


def compiled(batch: Sequence[GradientCase]) -> list[Any]:
    joint = traced(batch, can_lower)
    run = with_effects(joint, pipeline.compile_graph(joint.graph, inputs(batch), options=OPTIONS))
    with torch.no_grad():
        return run(inputs(batch))


def problems(
    found: Iterable[GradientCase], batch_size: int, run: Callable[[Sequence[GradientCase]], list[Any]]
) -> Iterator[tuple[GradientCase, str]]:
    remaining = iter(found)
    while batch := list(islice(remaining, batch_size)):
        yield from _problems_of(batch, run)


def _problems_of(batch: list[GradientCase], run: Any) -> Iterator[tuple[GradientCase, str]]:
    try:
        ours = run(batch)
    except Exception as error:  # one case spoils the batch: find which
        if len(batch) > 1:
            half = len(batch) // 2
            yield from _problems_of(batch[:half], run)
            yield from _problems_of(batch[half:], run)
        else:
            yield batch[0], f"{type(error).__name__}: {error}"
        return
    for case, left, right in zip(batch, ours, eager(batch), strict=True):
        problem = difference(left, right)
        if problem:
            yield case, problem


def difference(ours: Any, theirs: Any) -> str | None:
    problem = value_differences(ours[0], theirs[0])
    if problem:
        return f"results: {problem}"
    for at, (left, right) in enumerate(zip(ours[1], theirs[1], strict=True)):
        if (left is None) != (right is None):
            return f"gradient {at}: {left if left is None else describe(left)} instead of {right}"
        problem = None if left is None else value_differences(left, right)
        if problem:
            return f"gradient {at}: {problem}"
    return None
