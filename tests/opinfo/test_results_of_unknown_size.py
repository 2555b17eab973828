"""OpInfo's operators whose result's size depends on data, in graphs: one graph each, results and gradients eager's.

Compared to 1e-12 relative in float64, exactly otherwise; dtypes, layouts and structure of results are eager's, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from samples import IDENTIFIERS, OPERATORS, samples
from torch.utils._pytree import tree_leaves

import stator
from stator.base import counters

NAMES = ("argwhere", "bincount", "masked_select", "nonzero", "repeat_interleave", "unique", "unique_consecutive")
CASES = [(name, op) for name, op in zip(IDENTIFIERS, OPERATORS, strict=True) if op.name in NAMES]
RELIED_ON = 2  # so often the contents of small tables of whole numbers are
CHANGING = 5  # calls with other data and the same layouts


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0, equal_nan=True, check_stride=True)


def other_data(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bool:
            return torch.rand(value.shape, generator=generator) > torch.rand((), generator=generator)
        order = torch.randint(max(value.numel(), 1), (value.numel(),), generator=generator)
        return value.detach().flatten()[order].reshape(value.shape) if value.numel() else value
    if isinstance(value, (tuple, list)):
        return type(value)(other_data(item, generator) for item in value)
    return value


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name,op", CASES, ids=[name for name, _ in CASES])
def test_one_graph_as_in_eager(name: str, op: Any, backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    dtypes = (
        (torch.float64, torch.int64)
        if backend == "eager"
        else (torch.float64 if op.name != "bincount" else torch.int64,)
    )
    for tensor, args, kwargs in samples(op, 3, dtypes):
        differentiable = tensor.is_floating_point() and op.supports_autograd

        def program(x: Any, rest: Any, options: Any = kwargs) -> Any:
            return op(x + 0 if x.dtype is not torch.bool else x, *rest, **options)

        compiled = stator.compile(program, backend=backend, fullgraph=True)
        counters.clear()
        for _ in range(CHANGING):
            inputs = tensor.detach().requires_grad_(differentiable), list(args)
            expected, got = program(*inputs), compiled(*inputs)
            same(got, expected)
            if differentiable:
                roots = [root for root in tree_leaves(expected) if root.requires_grad]
                mine = [root for root in tree_leaves(got) if root.requires_grad]
                assert len(roots) == len(mine)
                for one, other in zip(mine, roots, strict=True):
                    gradients = (torch.autograd.grad(root.square().sum(), inputs[0]) for root in (one, other))
                    same(*gradients)
            tensor, args = other_data(tensor, generator), other_data(list(args), generator)
        assert counters.counts["frames"] <= 1 + RELIED_ON
