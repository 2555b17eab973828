"""Tracing to a graph of values only: outputs keep the program's structure; aliasing and mutation are not reported.

For callers that analyse or rewrite the graph. `tracer.trace` yields graphs that run in place of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from stator.graph.fake.fake_mode import FakeMode, FakeTensor
from stator.graph.functionalization.functionalize import FunctionalTracer, Keep
from stator.prims.record import TensorMeta

from .tracer import close_graph


@contextmanager
def below_autograd() -> Iterator[None]:
    """Record no gradients: the context in which tracing for values runs."""
    with ExitStack() as stack:
        stack.enter_context(torch._C._InferenceMode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        yield


def close_with_structure(tracer: FunctionalTracer, result: Any) -> fx.GraphModule:
    """Return the recorded graph. Its output node holds `result` with graph values in place of tensors."""
    leaves, spec = pytree.tree_flatten(result)
    leaves = [tracer.constant(leaf) if _is_real(leaf) else leaf for leaf in leaves]
    values = [tracer.current(leaf) if isinstance(leaf, FakeTensor) else leaf for leaf in leaves]
    module, _ = close_graph(tracer, [value for value in values if isinstance(value, fx.Node)])
    output = next(iter(reversed(module.graph.nodes)))
    remaining = iter(output.args[0])  # clean-up may have replaced some of these nodes
    output.args = (pytree.tree_unflatten([next(remaining) if isinstance(v, fx.Node) else v for v in values], spec),)
    return module


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


def trace_operator(target: OpOverload, args: Any, kwargs: Any, *, keep: Keep) -> fx.GraphModule:
    """Trace one operator to the graph of its decomposition. Placeholders are the TensorMetas in `args` and `kwargs`, in
    order. The graph holds `target` itself if `target` is no composite and has no decomposition that covers the case."""
    mode = FakeMode()
    tracer = FunctionalTracer(keep)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    with below_autograd():
        fakes = [
            tracer.add_input(mode.make(leaf), f"arg_{position}") if isinstance(leaf, TensorMeta) else leaf
            for position, leaf in enumerate(leaves)
        ]
        positional, named = pytree.tree_unflatten(fakes, spec)
        with tracer:
            return close_with_structure(tracer, target(*positional, **named))
