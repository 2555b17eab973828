"""The backward pass of a symbolic run: gradients of all results with respect to all parameters.

Never here: what is counted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch.utils import _pytree as pytree

from .program import Program, SymbolicMode

T = TypeVar("T")


class ForwardOrigins(Generic[T]):
    """Where operators come from, by `here`; those of the backward from where their forward operator ran."""

    def __init__(self, here: Callable[[], T], unknown: T) -> None:
        self.here, self.unknown = here, unknown
        self._of_node: dict[int, T] = {}

    def of_this_operator(self) -> T:
        """Called in each operator, because an autograd node is known by its number when its operator runs."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._of_node.get(node._sequence_nr(), self.unknown)
        origin = self.here()
        self._of_node.setdefault(torch.autograd._get_sequence_nr() - 1, origin)
        return origin


def run_backward(mode: SymbolicMode, program: Program, arguments: Any, result: Any) -> tuple[torch.Tensor, ...]:
    """Gradients of the results with gradients of ones, as `torch.autograd.grad` gives them, for each parameter that the
    program uses and each input that requires grad. Empty if no result requires grad."""
    outputs = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
    leaves = _leaves(mode, program, arguments)
    if not outputs or not leaves:
        return ()
    tangents = [torch.ones_like(one) for one in outputs]
    gradients = torch.autograd.grad(outputs, leaves, tangents, allow_unused=True)
    return tuple(gradient for gradient in gradients if gradient is not None)


def _leaves(mode: SymbolicMode, program: Program, arguments: Any) -> list[torch.Tensor]:
    """Each tensor once: parameters of the modules, other tensors that the program met, and inputs."""
    candidates = [
        *(parameter for module in program.modules for parameter in module.parameters(recurse=False)),
        *mode.tensors_met(),
        *pytree.tree_leaves(arguments),
    ]
    found = {id(one): one for one in candidates if isinstance(one, torch.Tensor) and one.requires_grad and one.is_leaf}
    return list(found.values())
