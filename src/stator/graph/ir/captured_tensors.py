"""The tensors that an FX graph reaches by itself: attributes it reads, and what the modules it calls own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def owned_tensors_replaced(owner: Any, replacements: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Put other tensors (by the id of the tensor they replace) into a module and its submodules for a while. Autograd
    shall see the replacements: were a real parameter used in a traced program, it would get the history."""
    changed: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for module in owner.modules() if isinstance(owner, torch.nn.Module) else ():
            places: list[dict[str, Any]] = [module._parameters, module._buffers, module.__dict__]
            for place in places:
                for name, value in list(place.items()):
                    if isinstance(value, torch.Tensor) and id(value) in replacements:
                        changed.append((place, name, value))
                        place[name] = replacements[id(value)]
        yield
    finally:
        for place, name, value in reversed(changed):
            place[name] = value
