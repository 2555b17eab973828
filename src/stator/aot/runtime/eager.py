"""The simplest compiler of functional graphs: none. Runs the traced ATen graph operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx._lazy_graph_module import _LazyGraphModule

from stator.runtime.host import below_autograd


def run_eagerly(graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
    """A `compile_graph` for `compile_inference`: the generated Python function of the graph itself.

    It runs below autograd: what it returns is then nobody's view, as with compiled kernels.
    """
    _LazyGraphModule.force_recompile(graph)
    forward = graph.forward

    def run(*tensors: torch.Tensor) -> Sequence[Any]:
        with below_autograd():
            return forward(*tensors)

    return run


def keep_all(operator: OpOverload) -> bool:
    """A `keep` for it: nothing is decomposed that need not be.

    as_strided_scatter must be: it fails on tensors that require grad and are not contiguous.
    """
    return operator is not torch.ops.aten.as_strided_scatter.default
