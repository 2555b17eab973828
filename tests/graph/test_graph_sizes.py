"""The number of nodes of a graph does not depend on sizes: tensors eight times larger have graphs as large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stator.aot.trace.joint import trace_joint
from stator.inductor.lower import can_lower

# Programs of an image [2, 3, n, n] or, with a name that ends in "matrix", of a matrix [n, n].
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "scans": lambda x: (x.cumsum(2), x.cumprod(3), x.logcumsumexp(2), x.cummax(3).values),
    "pooling": lambda x: (F.avg_pool2d(x, 2), F.max_pool2d(x, 3), F.adaptive_avg_pool2d(x, 3)),
    "windows": lambda x: (F.unfold(x, 2), x.unfold(2, 2, 1), F.fold(F.unfold(x, 2), x.shape[2:], 2)),
    "interpolation": lambda x: (F.interpolate(x, scale_factor=1.5, mode="bicubic"), F.interpolate(x, scale_factor=2)),
    "padding": lambda x: (F.pad(x, (1, 1, 2, 1), mode="reflect"), F.pad(x, (2, 1, 1, 1), mode="circular")),
    "sampling": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1)),
    "rearrangement": lambda x: (x.roll(1, 2), x.flip(2), x.repeat_interleave(2, 3), x.diff(dim=2)),
    "losses": lambda x: (F.log_softmax(x, 1), F.huber_loss(x, x * 2), F.layer_norm(x, x.shape[3:])),
    "distances of a matrix": lambda x: (torch.cdist(x, x * 2), F.cosine_similarity(x, x * 2)),
    "products of a matrix": lambda x: (torch.kron(x, x[:2, :2]), torch.trapezoid(x), torch.einsum("ij,kj->ik", x, x)),
    "parts of a matrix": lambda x: (x.triu(), x.diag_embed(), torch.tril(x), x.diagonal(), x.trace()),
    "choices of a matrix": lambda x: (x.sort(1).values, x.topk(3).values, x.median(1).values, x.quantile(0.3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_number_of_nodes_does_not_grow_with_sizes(name: str) -> None:
    counts = []
    for size in (6, 48):
        shape = (size, size) if name.endswith("matrix") else (2, 3, size, size)
        x = torch.rand(shape, requires_grad=True)
        counts.append(len(trace_joint(PROGRAMS[name], [x], keep=can_lower).graph.graph.nodes))
    small, large = counts
    assert large <= small + 4  # a size of one needs fewer nodes
