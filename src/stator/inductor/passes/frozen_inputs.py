"""Makes constants of parameters and buffers, where the caller guards their contents (option `freezing`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from stator.graph.ir.memory import output_memory
from stator.prims.record import TensorMeta

# Of the module's attributes that hold frozen tensors. Other attributes are not constant: the program may change them.
PREFIX = "_frozen_"


@dataclass(slots=True)
class FrozenTensors:
    """The tensors that graphs may have as constants, and the ids of those that they have, and that they read as
    inputs."""

    tensors: dict[int, torch.Tensor]  # by id
    used: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)

    @staticmethod
    def among(tensors: Iterable[object]) -> FrozenTensors:
        return FrozenTensors({id(tensor): tensor for tensor in tensors if _is_freezable(tensor)})  # type: ignore[misc]

    def take(self, tensor: object) -> bool:
        """Whether a graph may have this tensor as a constant; it is used from now on."""
        if id(tensor) not in self.tensors:
            return False
        self.used.add(id(tensor))
        return True

    def close(self) -> None:
        """The guards are made: graphs compiled from now on have no constants. Keeps no tensor alive any longer."""
        self.tensors.clear()
        self.used.clear()
        self.read.clear()


def _is_freezable(tensor: object) -> bool:
    """Plain tensors on the CPU whose writes are counted."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and isinstance(tensor, torch.Tensor)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_inference() or tensor.is_conj() or tensor.is_neg())
    )


def freeze_inputs(gm: fx.GraphModule, inputs: Sequence[object], frozen: FrozenTensors) -> fx.GraphModule:
    """Replace inputs that are frozen tensors by attributes of the module, in place. The graph keeps its signature. An
    input that the graph writes to, or whose memory it returns, stays an input."""
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    kept = output_memory(gm.graph) | {placeholders[at] for at, _ in gm.meta.get("mutated", ())}
    for node, tensor in zip(placeholders, inputs, strict=True):
        if node in kept or not node.users or not frozen.take(tensor):
            frozen.read.update({id(tensor)} if node.users else ())
            continue
        name = f"{PREFIX}{node.name}"
        # another object on this memory: constants keep no object of the program alive
        gm.register_buffer(name, _alias(tensor), persistent=False)  # type: ignore[arg-type]
        with gm.graph.inserting_after(placeholders[-1]):
            constant = gm.graph.get_attr(name)
        constant.meta.update(node.meta)
        node.replace_all_uses_with(constant)
    return gm


def is_frozen(node: fx.Node) -> bool:
    return node.op == "get_attr" and str(node.target).startswith(PREFIX)


def add_frozen(gm: fx.GraphModule, name: str, value: torch.Tensor) -> fx.Node:
    """Make a frozen tensor of what was computed from others; a matrix that lies by columns as the transpose of one, as
    weights of products are."""
    if value.dim() == 2 and not value.is_contiguous():
        node = gm.graph.call_function(torch.ops.aten.t.default, (add_frozen(gm, name, value.t()),))
    else:
        gm.register_buffer(f"{PREFIX}{name}", value, persistent=False)
        node = gm.graph.get_attr(f"{PREFIX}{name}")
    node.meta["val"] = TensorMeta(tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
    return node


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C._InferenceMode(False), torch.no_grad():
        return tensor.detach()
