"""The backend without code generation: runs a functional ATen graph operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx._lazy_graph_module import _LazyGraphModule

from stator.runtime.below_autograd import below_autograd


def run_eagerly(graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
    """A `compile_graph` that returns the graph's own generated Python function. The function runs below autograd, so
    that its results are no views for autograd, as those of compiled kernels."""
    forward = python_function(graph)

    def run(*tensors: torch.Tensor) -> Sequence[Any]:
        with below_autograd():
            return forward(*tensors)

    return run


def python_function(graph: fx.GraphModule) -> Callable[..., Sequence[Any]]:
    """The graph's own generated Python function."""
    _LazyGraphModule.force_recompile(graph)
    return graph.forward


def keep_all(operator: OpOverload) -> bool:
    """A `keep` for `run_eagerly`: decompose only as_strided_scatter, which fails on non-contiguous tensors that require
    grad."""
    return operator is not torch.ops.aten.as_strided_scatter.default
