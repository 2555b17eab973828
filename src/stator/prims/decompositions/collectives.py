"""Decompositions of operators around collectives."""

from __future__ import annotations

import torch

from stator.prims.record import decompositions_by_name


@decompositions_by_name.register("_c10d_functional::_wrap_tensor_autograd")
def _wait(result: torch.Tensor) -> torch.Tensor:
    """Wait for the result of a collective at once. In eager mode, a special tensor waits at its first use."""
    return torch.ops._c10d_functional.wait_tensor.default(result)  # type: ignore[no-any-return]
