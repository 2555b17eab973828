"""States of torch's default random number generators, for running a program again with the random numbers of its first
run.

randomness.py says how a graph turns states into numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx

from stator.graph.ir.schema import is_random_call
from stator.prims.record import TensorMeta

States = tuple[tuple[torch.Generator, torch.Tensor], ...]


def random_devices(graph: fx.GraphModule) -> tuple[torch.device, ...]:
    """Return the devices whose generators the graph draws from, each once."""
    found: dict[torch.device, None] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and is_random_call(node.target, node.args, node.kwargs):
            value = node.meta["val"]
            for meta in (value,) if isinstance(value, TensorMeta) else value:
                if isinstance(meta, TensorMeta):
                    found[meta.device] = None
    return tuple(found)


def random_devices_of(graphs: Iterable[fx.GraphModule]) -> tuple[torch.device, ...]:
    """Return the devices whose generators any of the graphs draws from."""
    return tuple(dict.fromkeys(device for graph in graphs for device in random_devices(graph)))


def states_of(devices: Sequence[torch.device]) -> States:
    """Return the current states of the default generators of these devices."""
    return tuple((generator := default_generator(device), generator.get_state()) for device in devices)


@contextmanager
def replay_random_numbers(states: States) -> Iterator[None]:
    """Run the context with the generators set to these states; restore their current states afterwards."""
    now = [(generator, generator.get_state()) for generator, _ in states]
    for generator, state in states:
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in now:
            generator.set_state(state)


def default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    module = getattr(torch, device.type)
    index = module.current_device() if device.index is None else device.index
    generator: torch.Generator = module.default_generators[index]
    return generator
