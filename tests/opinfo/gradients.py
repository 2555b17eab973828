"""Operator samples with their gradients: differentiated eagerly and through compiled training, and compared.

A batch of samples is one program; so that it is compiled once, its gradients are asked for in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from compiled import NOT_REPEATABLE, READ_AS_CONTIGUOUS, at_any_position, copied
from recorder import TOLERANCES, describe, is_no_further, value_differences
from samples import laid_out
from torch.utils import _pytree as pytree

import stator
from stator import aot, pipeline
from stator.base.config import Options
from stator.base.errors import Unsupported
from stator.inductor.lower import can_lower

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
OPTIONS = Options(verify=True, exact_random=True)
EXACT = Options(verify=True, exact_random=True, exact_rounding=True)
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
# What OpInfo seeds some of its operators with, inside of the call.
SEED = 42
# Running statistics that are expanded: the elements of one place are written several times.
WRITES_TO_EXPANDED = frozenset((
    "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "nn.functional.batch_norm",
))  # fmt: skip
# What lies between the elements of a tensor, or behind those of an expanded one, is not for a graph to read.
READS_MEMORY = ("as_strided", "stft")
# Rows that are all the same have rank one: the second singular value, zero but for rounding, has no gradient (what is
# computed for it is 1e5 in float32 and 1e80 in float64).
NEEDS_FULL_RANK = frozenset(("svd_lowrank", "pca_lowrank"))
# For tensor subclasses, such as fake tensors, autograd has formulas with another layout.
OTHER_LAYOUT = frozenset(("prod", "ormqr"))

Results = tuple[list[Any], list[torch.Tensor | None]]


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
    def is_random(self) -> bool:
        return any(part in self.name for part in NOT_REPEATABLE) and "normalize" not in self.name

    def inputs(self, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        """Copies, in the same layout, requiring gradients where the sample's tensors do; floats in `dtype`."""
        result = []
        for tensor in self.tensors:
            copy = copied(tensor)
            if dtype is not None and copy.is_floating_point():
                copy = copy.to(dtype)
            result.append(copy.requires_grad_(tensor.requires_grad))
        return result

    def call(self, tensors: Iterable[torch.Tensor]) -> list[Any]:
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
    count: int | None,
    layouts: Sequence[str | None] = (None,),
    dtypes: Sequence[torch.dtype] = DTYPES,
    device: str = "cpu",
) -> Iterator[GradientCase]:
    """The first `count` samples (all, for None) of each dtype that eager differentiates, with random tangents."""
    for name, op in operators:
        if not op.supports_autograd:
            continue
        for sample in _samples(op, count, dtypes, device):
            for layout in layouts:
                if layout == "overlapping" and name in READ_AS_CONTIGUOUS | WRITES_TO_EXPANDED | NEEDS_FULL_RANK:
                    continue
                if layout in ("gapped", "overlapping") and name.startswith(READS_MEMORY):
                    continue
                case = GradientCase(name, op, sample if layout is None else _with_layout(sample, layout))
                if _prepare(case):
                    yield case


def _samples(op: Any, count: int | None, dtypes: Sequence[torch.dtype], device: str) -> Iterator[tuple[Any, Any, Any]]:
    supported = op.supported_backward_dtypes(device) & op.supported_dtypes(device)
    for dtype in dtypes:
        if dtype in supported:
            for sample in islice(op.sample_inputs_func(op, device, dtype, True), count):
                yield sample.input, sample.args, sample.kwargs


def _with_layout(sample: tuple[Any, Any, Any], layout: str) -> tuple[Any, Any, Any]:
    changed, spec = pytree.tree_flatten(laid_out(sample, layout))
    for old, new in zip(pytree.tree_leaves(sample), changed, strict=True):
        if isinstance(old, torch.Tensor) and old.requires_grad:
            new.requires_grad_()
    return pytree.tree_unflatten(changed, spec)


def _prepare(case: GradientCase) -> bool:
    """Give a case its tangents; False where eager does not differentiate it, or has sparse tensors for it."""
    if any(tensor.layout is not torch.strided for tensor in case.tensors):
        return False
    try:
        results = differentiable(case.call(case.inputs()))
        case.tangents = [torch.randn_like(result).detach() for result in results]
        if not case.tangents or any(tangent.layout is not torch.strided for tangent in case.tangents):
            return False
        _, gradients = eager([case])[0]
    except REFUSALS:
        return False
    return all(gradient is None or gradient.layout is torch.strided for gradient in gradients)


# ---- running


def eager(batch: Sequence[GradientCase], dtype: torch.dtype | None = None) -> list[Results]:
    return _differentiated(batch, partial(_forward, batch), dtype)


def by_operators(batch: Sequence[GradientCase]) -> list[Results]:
    """The functional graphs of forward and backward, run operator by operator."""
    return _trained(batch, aot.run_eagerly, aot.keep_all)


def exactly(batch: Sequence[GradientCase]) -> list[Results]:
    """As `exact_rounding` runs them: some in kernels, the others called."""
    return _trained(batch, partial(pipeline.compile_exactly, options=EXACT), aot.keep_all)


def compiled(batch: Sequence[GradientCase]) -> list[Results]:
    return _trained(batch, partial(pipeline.compile_graph, options=OPTIONS), can_lower)


def captured(case: GradientCase) -> Results:
    """Through capture of the Python around the operator, with a copy before it that is compiled whatever comes then."""

    def program(*tensors: torch.Tensor) -> list[Any]:
        return case.call([tensor.clone() if tensor.requires_grad else tensor for tensor in tensors])

    stator.reset()
    compiled = stator.compile(program, backend="aot_eager")
    return _differentiated([case], lambda *tensors: [compiled(*tensors)])[0]


def _forward(batch: Sequence[GradientCase], *tensors: torch.Tensor) -> list[list[Any]]:
    remaining = iter(tensors)
    return [case.call(list(islice(remaining, len(case.tensors)))) for case in batch]


def _trained(batch: Sequence[GradientCase], compile_graph: aot.CompileGraph, keep: aot.Keep) -> list[Results]:
    refused: list[Exception] = []

    def compile_or_note(*arguments: Any) -> Any:
        try:
            return compile_graph(*arguments)
        except Exception as error:  # a backward that is refused would run operator by operator, and be right
            refused.append(error)
            raise

    given = [tensor for case in batch for tensor in case.inputs()]
    run = aot.compile_training(partial(_forward, batch), given, compile_or_note, keep=keep)
    results = _differentiated(batch, run)
    if refused:
        raise refused[0]
    return results


def _differentiated(
    batch: Sequence[GradientCase], run: Callable[..., Any], dtype: torch.dtype | None = None
) -> list[Results]:
    """What `run` gives for the inputs of the batch, and the gradients of all of them."""
    given = [case.inputs(dtype) for case in batch]
    torch.manual_seed(SEED)
    results = run(*[tensor for part in given for tensor in part])
    tangents = [
        tangent.to(dtype) if dtype and tangent.is_floating_point() else tangent
        for case in batch
        for tangent in case.tangents
    ]
    trained = [tensor for part in given for tensor in part if tensor.requires_grad]
    found = iter(torch.autograd.grad(differentiable(pytree.tree_leaves(results)), trained, tangents, allow_unused=True))
    return [
        (result, [next(found) for tensor in part if tensor.requires_grad])
        for result, part in zip(results, given, strict=True)
    ]


# ---- comparing


def problems(
    found: Iterable[GradientCase], batch_size: int, run: Callable[[Sequence[GradientCase]], list[Results]]
) -> Iterator[tuple[GradientCase, Exception | str]]:
    """Cases that fail or differ from eager, and how. Random operators are run one by one, after seeding."""
    batch: list[GradientCase] = []
    for case in found:
        if case.is_random:
            yield from _problems_of([case], run)
            continue
        batch.append(case)
        if len(batch) == batch_size:
            yield from _problems_of(batch, run)
            batch = []
    if batch:
        yield from _problems_of(batch, run)


def _problems_of(batch: list[GradientCase], run: Any) -> Iterator[tuple[GradientCase, Exception | str]]:
    try:
        ours = run(batch)
    except Exception as error:  # one case spoils the batch: find which
        if len(batch) > 1:
            half = len(batch) // 2
            yield from _problems_of(batch[:half], run)
            yield from _problems_of(batch[half:], run)
        else:
            yield batch[0], error
        return
    for case, left, right in zip(batch, ours, eager(batch), strict=True):
        problem = difference(case, left, right)
        if problem:
            yield case, problem


def difference(case: GradientCase, ours: Results, theirs: Results) -> str | None:
    """How results or gradients differ in presence, requires_grad, dtype, shape, stride or value."""
    exact: list[Any] | None = None
    for at, (left, right) in enumerate(zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True)):
        what = f"result {at}" if at < len(theirs[0]) else f"gradient {at - len(theirs[0])}"
        if not isinstance(right, torch.Tensor):
            if left is not right and left != right:
                return f"{what}: {left!r} instead of {right!r}"
            continue
        if not isinstance(left, torch.Tensor) or left.requires_grad != right.requires_grad:
            return f"{what}: {left!r} instead of {right!r}"
        left, right = left.detach(), right.detach()
        if at < len(theirs[0]):
            right = at_any_position(case, left, right)
        if case.name in OTHER_LAYOUT and at >= len(theirs[0]):
            left, right = left.contiguous(), right.contiguous()
        problem = value_differences(left, right)
        if problem and left.dtype in TOLERANCES and left.dtype is not torch.float64 and not case.is_random:
            exact = exact or _leaves(eager([case], torch.float64)[0])
            if is_no_further(left, right, exact[at]) or is_backward_stable(case, at, left, exact[at]):
                problem = None
        if problem:
            return f"{what}: {problem}"
    return None


def _leaves(results: Results) -> list[Any]:
    return [part.detach() if isinstance(part, torch.Tensor) else part for part in (*results[0], *results[1])]


def is_backward_stable(case: GradientCase, at: int, ours: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether ours is the exact result but for one rounding of the inputs and one of the result.

    In bfloat16 a chain such as the softmax of large products magnifies each rounding. Eager and ours round at different
    elements, and either may be the luckier one: neither can be asked for more than this (Higham, Accuracy and Stability
    of Numerical Algorithms, 1.5: a small backward error).
    """
    if ours.shape != exact.shape or not torch.isfinite(exact).all() or not torch.isfinite(ours).all():
        return False
    moved = [_leaves(eager([_moved(case, ours.dtype, seed)], torch.float64)[0])[at] for seed in range(8)]
    error = float((ours.to(exact.dtype) - exact).abs().max())
    rounding = torch.finfo(ours.dtype).eps / 2 * float(exact.abs().max())
    return error <= max(float((result - exact).abs().max()) for result in moved) + rounding


def _moved(case: GradientCase, dtype: torch.dtype, seed: int) -> GradientCase:
    """The case with each number moved by up to half a unit in the last place of `dtype`."""
    generator = torch.Generator().manual_seed(seed)

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        by = (torch.rand(leaf.shape, generator=generator, dtype=torch.float64) * 2 - 1).to(leaf.device)
        result = copied(leaf).to(torch.float64)
        return (result + result * by * (torch.finfo(dtype).eps / 2)).requires_grad_(leaf.requires_grad)

    return GradientCase(case.name, case.op, pytree.tree_map(moved, case.sample), case.tangents)


def runs_eagerly(problem: Exception | str) -> bool:
    """Whether compiling was refused, so that the program runs eagerly: a fallback as a whole.

    Operators that C++ decomposes before anybody sees them may look for the data of a fake tensor themselves.
    """
    return isinstance(problem, Unsupported) or "its data is not allocated yet" in str(problem)
