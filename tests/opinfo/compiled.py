"""Compiles many operator samples as one graph and compares each with eager; what is known not to be equal, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from recorder import TOLERANCES, describe, is_no_further, value_differences
from samples import laid_out, samples
from torch.utils import _pytree as pytree

from stator import pipeline
from stator.aot.runtime.replay import with_effects
from stator.base.config import Options
from stator.base.errors import CompileError, Unsupported
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)
OPTIONS = Options(verify=True)

# They draw random numbers, or leave memory as it was. OpInfo seeds some of them inside of the call.
NOT_REPEATABLE = (
    "rand",
    "dropout",
    "bernoulli",
    "multinomial",
    "normal",
    "uniform",
    "exponential",
    "cauchy",
    "geometric",
    "empty",
    "rrelu",
    "fractional_max_pool",
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "svd_lowrank",
    "pca_lowrank",
    "singular",
    "partial_views",  # reads what lies between the elements of its input
)
# What cannot be compiled, and says so: results that depend on data, storage tricks, operators nobody described.
UNSUPPORTED = frozenset((
    "item", "allclose", "cov", "equal", "masked_select", "narrow", "tensor_split", "unique", "unique_consecutive",
    "bincount", "nonzero", "nn.functional.one_hot", "argwhere", "nn.functional.gaussian_nll_loss", "repeat_interleave",
    "linalg.lstsq", "linalg.lstsq.grad_oriented", "resize_", "resize_as_", "to_sparse",
    "stft", "as_strided", "as_strided_copy", "as_strided_scatter",  # of memory with gaps
    # statistics that overlap, and weights that do while they are normalised in place
    "native_batch_norm", "_native_batch_norm_legit", "nn.functional.batch_norm", "_batch_norm_with_update",
    "nn.functional.embedding", "nn.functional.embedding_bag",
))  # fmt: skip
# C++ asks for the data of the sections.
REFUSED_LATE = frozenset(("tensor_split",))
# Eager's kernels read past the end of an expanded tensor: of weights that they take for contiguous, and in a dimension
# of stride 0 that they take for one of stride 1.
READ_AS_CONTIGUOUS = frozenset(("native_group_norm", "median", "nanmedian", "masked.median"))
# Of a bfloat16 input whose parameters are bfloat16 too, eager's CPU kernel rounds the slope and the offset that it
# makes of mean, deviation, weight and bias to bfloat16. Where the deviation is small beside the mean the two nearly
# cancel, and what is left is wrong in the first digit. A weighted loss rounds each term before the weight of either
# sign, and terms cancel in the sum. What is right is the result in float64.
ROUNDED_MIDWAY = frozenset((
    "_native_batch_norm_legit", "native_batch_norm", "_batch_norm_with_update", "nn.functional.binary_cross_entropy",
))  # fmt: skip


# Eager's vector code divides by way of a reciprocal, which overflows for the smallest divisors: NaN. Its scalar code,
# which computes the last elements of the same tensor, is exact.
BY_POSITION = frozenset(("fmod", "remainder", "__rmod__"))


@dataclass
class Case:
    """One call of one operator, with its tensors taken out."""

    name: str
    op: Any
    sample: tuple[Any, Any, Any]

    @cached_property
    def flat(self) -> tuple[list[Any], Any]:
        tensor, args, kwargs = self.sample
        return pytree.tree_flatten(((tensor, *args), kwargs))

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.flat[0] if isinstance(leaf, torch.Tensor)]

    def call(self, tensors: Iterator[torch.Tensor]) -> Any:
        leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.flat[0]]
        args, kwargs = pytree.tree_unflatten(leaves, self.flat[1])
        return self.op(*args, **kwargs)

    def describe(self) -> str:
        return f"{self.name} of {describe(self.flat[0])}"


def cases(
    operators: Sequence[tuple[str, Any]],
    count: int,
    layouts: tuple[str | None, ...],
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    device: str = "cpu",
) -> Iterator[Case]:
    """Samples that eager accepts and whose results can be compared."""
    for name, op in operators:
        if any(part in name for part in NOT_REPEATABLE) and "normalize" not in name:
            continue
        for sample in samples(op, count, dtypes, device):
            for layout in layouts:
                if layout == "overlapping" and name in READ_AS_CONTIGUOUS:
                    continue
                case = Case(name, op, sample if layout is None else laid_out(sample, layout))
                if all(tensor.layout is torch.strided for tensor in case.tensors) and _runs(case):
                    yield case


def _runs(case: Case) -> bool:
    try:
        eager([case])
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same layout, so that no call sees what another has written."""
    if 0 in tensor.shape:
        return tensor.detach().clone()
    once = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        once = once.narrow(dim, 0, 1) if stride == 0 else once
    copy = torch.empty_strided(once.shape, once.stride(), dtype=tensor.dtype, device=tensor.device).copy_(once)
    return copy.expand(tensor.shape) if 0 in tensor.stride() else copy


def function_of(batch: Sequence[Case]) -> Callable[..., list[Any]]:
    def function(*tensors: torch.Tensor) -> list[Any]:
        given = iter(tensors)
        return [case.call(given) for case in batch]

    return function


def inputs(batch: Sequence[Case]) -> list[torch.Tensor]:
    return [copied(tensor) for case in batch for tensor in case.tensors]


def eager(batch: Sequence[Case]) -> list[Any]:
    with torch.no_grad():
        return function_of(batch)(*inputs(batch))


def in_float64(case: Case, like: Any) -> Any:
    """The eager result of computing in float64, in the dtypes and strides that eager gives."""
    wide = (tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs([case]))
    with torch.no_grad():
        exact = case.call(wide)

    def as_eager(value: Any, eagers: Any) -> Any:
        if not isinstance(eagers, torch.Tensor):
            return eagers
        return copied(eagers).copy_(value)

    return pytree.tree_map(as_eager, exact, like)


def at_any_position(case: Any, ours: Any, eagers: Any) -> Any:
    """What eager gives for an operator that it does not compute alike at every position of a tensor: where it gives NaN
    and we do not, what it gives for that element alone."""
    if case.name not in BY_POSITION or not isinstance(eagers, torch.Tensor) or not eagers.dtype.is_floating_point:
        return eagers
    if not isinstance(ours, torch.Tensor) or ours.shape != eagers.shape:
        return eagers
    given = [tensor.detach() for tensor in case.tensors]
    columns = [tensor if not tensor.dim() else tensor.expand(eagers.shape).reshape(-1) for tensor in given]
    expected = copied(eagers)
    with torch.no_grad():
        for place in (eagers.isnan() & ~ours.isnan()).nonzero().tolist():
            at = sum(index * stride for index, stride in zip(place, _contiguous(eagers.shape), strict=True))
            alone = [column if not column.dim() else column[at : at + 1] for column in columns]
            expected[tuple(place)] = pytree.tree_leaves(case.call(iter(alone)))[0].reshape(())
    return expected


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(tuple(shape), device="meta").stride()


def compiled(batch: Sequence[Case]) -> list[Any]:
    """Compile all of a batch as one graph, and run it. Raises StatorError for what cannot be compiled."""
    given = inputs(batch)
    traced = trace(function_of(batch), given, keep=can_lower)
    run = with_effects(traced, pipeline.compile_graph(traced.graph, given, options=OPTIONS))
    with torch.no_grad():
        return run(inputs(batch))


def problems(found: Iterable[Case], batch_size: int, *, no_further: bool = False) -> list[str]:
    """Compile in batches; say which cases are wrong, and which fail though they should not.

    no_further: a result that differs from eager's may be as near to that of float64 (`recorder.is_no_further`).
    """
    remaining = iter(found)
    told: list[str] = []
    while batch := list(islice(remaining, batch_size)):
        told += _problems_of(batch, no_further)
    return told


def _problems_of(batch: list[Case], no_further: bool) -> list[str]:
    try:
        ours = compiled(batch)
    except Exception as error:  # one case spoils the batch: find which
        if len(batch) > 1:
            half = len(batch) // 2
            return _problems_of(batch[:half], no_further) + _problems_of(batch[half:], no_further)
        if batch[0].name in UNSUPPORTED and isinstance(error, Unsupported):
            return []
        if batch[0].name in REFUSED_LATE and isinstance(error, (CompileError, RuntimeError)):
            return []
        return [f"{batch[0].describe()}: {type(error).__name__}: {error}"]
    told = []
    for case, left, right in zip(batch, ours, eager(batch), strict=True):
        if case.name in ROUNDED_MIDWAY and case.tensors[0].dtype in (torch.bfloat16, torch.float16):
            right = in_float64(case, right)
        right = at_any_position(case, left, right)
        problem = value_differences(pytree.tree_leaves(left), pytree.tree_leaves(right))
        if problem and not (no_further and _all_no_further(case, left, right)):
            told.append(f"{case.describe()}: {problem}")
    return told


def _all_no_further(case: Case, ours: Any, eagers: Any) -> bool:
    """Each result that differs from eager's is floating-point and at most as far from that of float64."""
    with torch.no_grad():
        exact = case.call(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs([case]))
    results = zip(*map(pytree.tree_leaves, (ours, eagers, exact)), strict=True)
    return all(
        value_differences(left, right) is None
        or (left.dtype in TOLERANCES and left.dtype is not torch.float64 and is_no_further(left, right, truth))
        for left, right, truth in results
    )
