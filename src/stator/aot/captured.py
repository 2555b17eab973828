"""The tensors that an FX graph reaches by itself: attributes it reads, and what the modules it calls own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx


def captured_tensors(gm: fx.GraphModule, example_inputs: Sequence[object]) -> list[torch.Tensor]:
    """Each once, in the order of use, without those that are among the inputs anyway."""
    seen = {id(value) for value in example_inputs if isinstance(value, torch.Tensor)}
    found: list[torch.Tensor] = []
    for tensor in _reached(gm):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found.append(tensor)
    return found


def _reached(gm: fx.GraphModule) -> Iterator[torch.Tensor]:
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            value = getattr(gm.get_submodule(owner), name)
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, torch.nn.Module):
                yield from _owned(value)
        elif node.op == "call_module":
            yield from _owned(gm.get_submodule(str(node.target)))


def _owned(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
