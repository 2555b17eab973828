"""The backward pass of a symbolic run: gradients of all results with respect to all parameters.

Never here: what is counted meanwhile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from .program import Program, SymbolicMode


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
