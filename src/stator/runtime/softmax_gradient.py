"""Whether ATen's gradient of log_softmax may be written where the gradient given to it lies: tried out."""

from __future__ import annotations

import functools

import torch

aten = torch.ops.aten

# Rows and columns: less than a vector, no whole number of vectors, long rows, several rows for each thread
_SIZES = ((2, 5), (7, 37), (64, 1000), (3, 30001))


@functools.cache
def may_overwrite_gradient(dtype: torch.dtype, threads: int) -> bool:
    """Has the operator the same bits on matrices of contiguous rows, with so many threads, when its result replaces its
    first argument? Its code reads a row twice, and writes to each element what it computes from that element last."""
    generator = torch.Generator().manual_seed(0)
    for size in _SIZES:
        gradient, logits = (torch.randn(size, generator=generator, dtype=dtype, device="cpu") for _ in range(2))
        output = aten._log_softmax.default(logits, 1, False)
        expected = aten._log_softmax_backward_data.default(gradient, output, 1, dtype)
        aten._log_softmax_backward_data.out(gradient, output, 1, dtype, out=gradient)
        if not torch.equal(gradient.view(torch.uint8), expected.view(torch.uint8)):
            return False
    return True
