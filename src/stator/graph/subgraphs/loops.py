"""Loops inside graphs: the callable of a node that runs a body graph while a condition graph returns true. Loops are
not differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.prims.record import TensorMeta

from .branches import Branch, branch_tracer, numbers_to_tensors
from .custom_autograd import run_subgraph
from .generators import random_devices_of
from .subgraph_ops import Compiled, SubgraphOp, fresh_layout, record_subgraph, trace_subgraph


@dataclass(frozen=True, slots=True)
class LoopRunner:
    """While `condition` returns true, the results of `body` replace the first arguments, which are laid out as
    `carried`. Both branches take the carried tensors first, then the remaining arguments of the node."""

    name: str
    condition: Branch
    body: Branch
    carried: tuple[TensorMeta, ...]
    condition_layout: TensorMeta  # the layout of the condition's result

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        if any(isinstance(value, FakeTensor) for value in arguments):
            return self._on_fakes(arguments)
        grad_mode = torch.is_grad_enabled()
        functions = [_reading(branch) for branch in (self.condition, self.body)]
        made = _RunLoop(len(self.carried))(functions, arguments)
        torch._C._set_grad_enabled(grad_mode)
        return tuple(made)

    def _on_fakes(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        mode = next(value for value in arguments if isinstance(value, FakeTensor)).fake_mode
        # the capture's, or of other symbols if the graph is compiled for other sizes
        layouts = [fresh_layout(value.meta) for value in arguments[: len(self.carried)]]
        if not isinstance(mode, FunctionalTracer):
            return tuple([mode.make(meta) for meta in layouts])
        values, numbers = numbers_to_tensors(arguments)
        sizes = {at: value for at, value in enumerate(values) if not isinstance(value, torch.Tensor)}
        tensors = [value for value in values if isinstance(value, FakeTensor)]
        given = [*layouts, *[tensor.meta for tensor in tensors[len(layouts) :]]]
        graphs = [
            trace_subgraph(mode, branch_tracer(branch, numbers, sizes), given, results, self.name)
            for branch, results in ((self.condition, [self.condition_layout]), (self.body, layouts))
        ]
        part = SubgraphOp(self.name, graphs, layouts, _RunLoop(len(layouts)))
        return tuple(record_subgraph(mode, part, tensors, draws=bool(random_devices_of(graphs))))

    def graphs(self) -> dict[str, fx.GraphModule]:
        """Return the graphs by role, for printing."""
        return {"condition": self.condition.graph, "body": self.body.graph}


def _reading(branch: Branch) -> Compiled:
    return lambda *values: run_subgraph(branch.graph, [values[index] for index in branch.reads])


@dataclass(frozen=True, slots=True)
class _RunLoop:
    """Runs the loop over `count` carried tensors. The results share no memory with the arguments."""

    count: int

    def __call__(self, functions: Sequence[Compiled], tensors: Sequence[Any]) -> Sequence[torch.Tensor]:
        condition, body = functions
        carried, rest = tensors[: self.count], tensors[self.count :]
        ran = False
        while bool(condition(*carried, *rest)[0]):
            carried, ran = body(*carried, *rest), True
        return carried if ran else [tensor.clone() for tensor in carried]
