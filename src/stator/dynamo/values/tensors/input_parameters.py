"""Parameters that captured code makes of inputs."""

from __future__ import annotations

import torch
from torch import fx

from stator.dynamo.ir.reconstruct_ir import Recipe
from stator.dynamo.values.base import Reconstructor

from .tensor import TensorValue


class InputParameterValue(TensorValue):
    """A leaf that requires grad, on the memory of the input `data`. Each call makes it anew, ahead of the graph, which
    takes it as an input of its own: so it may leave the graph, and gradients of the graph's results reach it."""

    __slots__ = ("data", "made")

    def __init__(self, fake: torch.Tensor, node: fx.Node, data: TensorValue, made: Recipe) -> None:
        super().__init__(fake, node, cls=torch.nn.Parameter)
        self.data = data
        self.made = made

    @property
    def input(self) -> TensorValue:
        return self.data

    def _built(self, reconstructor: Reconstructor) -> Recipe:
        return self.made
