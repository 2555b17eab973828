"""Operator samples as functions of their tensors that also differentiate, for checks that watch single operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from samples import laid_out
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


@dataclass
class Differentiated:
    """One call of one operator: its arguments as leaves, which of them are trained, and tangents of its results."""

    op: Any
    leaves: list[Any]
    structure: Any
    trained: list[int]
    tangents: list[torch.Tensor] = field(default_factory=list)

    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def results(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        tensor, args, kwargs = tree_unflatten(leaves, self.structure)
        return [leaf for leaf in tree_leaves(self.op(tensor, *args, **kwargs)) if isinstance(leaf, torch.Tensor)]

    def run(self, tensors: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results and gradients of detached tensors."""
        given = [tensor.detach() for tensor in tensors]
        for at in self.trained:
            given[at].requires_grad_()
        results = self.results(given)
        wanted = [result for result in results if result.requires_grad]
        gradients = torch.autograd.grad(wanted, [given[at] for at in self.trained], tangents, allow_unused=True)
        return [*results, *(gradient for gradient in gradients if gradient is not None)]


def differentiated(
    operators: Iterable[Any], count: int, layouts: Sequence[str | None], dtypes: Sequence[torch.dtype]
) -> Iterator[Differentiated]:
    """The samples, in each layout, that eager differentiates and whose tensors are plain."""
    for op in operators:
        if not op.supports_autograd:
            continue
        for dtype in dtypes:
            if dtype in op.supported_backward_dtypes("cpu") & op.supported_dtypes("cpu"):
                for sample in islice(op.sample_inputs_func(op, "cpu", dtype, True), count):
                    for layout in layouts:
                        case = _prepared(op, (sample.input, sample.args, sample.kwargs), layout)
                        if case is not None:
                            yield case


def _prepared(op: Any, sample: tuple[Any, Any, Any], layout: str | None) -> Differentiated | None:
    trained = [leaf.requires_grad for leaf in tree_leaves(sample) if isinstance(leaf, torch.Tensor)]
    leaves, structure = tree_flatten(sample if layout is None else laid_out(sample, layout))
    case = Differentiated(op, leaves, structure, [at for at, wanted in enumerate(trained) if wanted])
    tensors = case.tensors()
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return None
    try:
        with torch.enable_grad():
            results = case.results(tensors)
        case.tangents = [torch.randn_like(result).detach() for result in results if result.requires_grad]
        if not case.tangents or not case.trained:
            return None
        case.run(tensors, case.tangents)
    except REFUSALS:
        return None
    return case
