"""Inputs whose memory was replaced (`param.data = new`) between a forward and its backward.

Autograd does not notice a replacement. Eager's backward then reads new contents where an operator saved the very
tensor, and old contents where it saved a view or a computed value. A compiled backward recomputes values and cannot
tell these apart. So the forward notes the memory of its inputs, and such a backward runs as in eager: the program runs
operator by operator on the old memory, the new memory is put in place, and autograd's engine runs.
trace/eager_saved_tensors.py finds what eager saves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from stator.graph.ir.size_bindings import evaluated
from stator.runtime.launch import lie_at, places
from stator.shapes.expr import Symbol

# The places of tensors and their storages, see `launch.memory`. Eager keeps the storage of a saved view alive, too.
Memory = tuple[bytes, list[torch.UntypedStorage]]


def replaced_primals(step_node: Any) -> list[int]:
    """The primals whose memory was replaced; empty unless one of the step's `placed` is among them."""
    memory, primals = step_node.memory, step_node.primals
    if not memory or not primals or lie_at(primals, memory[0]):
        return []
    before, now = (memoryview(numbers).cast("q").tolist() for numbers in (memory[0], places(primals)))
    elsewhere = [at for at in range(len(primals)) if before[2 * at : 2 * at + 2] != now[2 * at : 2 * at + 2]]
    written = step_node.step.mutated  # the step keeps copies of these
    return [at for at in elsewhere if at not in written] if not set(elsewhere).isdisjoint(step_node.step.placed) else []


def primals_on_old_memory(
    step_node: Any, graph: fx.Graph, moved: Collection[int], sizes: Mapping[Symbol, int]
) -> list[torch.Tensor]:
    """Leaves that stand in for the primals, on the memory of the forward.

    graph: its placeholders begin with the primals. sizes: the values of its symbols in the call. Raises RuntimeError
    where a primal was written to, or cannot be rebuilt.
    """
    metas = [evaluated(node.meta["val"], sizes) for node in graph.nodes if node.op == "placeholder"]
    found = []
    for at, (primal, version) in enumerate(zip(step_node.primals, step_node.versions, strict=True)):
        written = version >= 0 and primal._version != version
        if at in moved and (written or primal.is_conj() or primal.is_neg()):
            raise replacement_error(primal)
        if written:
            raise RuntimeError(
                "stator: inputs of a compiled graph were written to, and the data of others replaced (`.data = ...`), "
                "between its forward and its backward; run this part eagerly (stator.disable)"
            )
        found.append(_on(step_node.memory, at, metas[at]) if at in moved else primal.detach())
    return [one.requires_grad_(primal.requires_grad) for one, primal in zip(found, step_node.primals, strict=True)]


def _on(memory: Memory, at: int, meta: Any) -> torch.Tensor:
    made = torch.empty(0, dtype=meta.dtype, device=meta.device)
    offset = memoryview(memory[0]).cast("q")[2 * at + 1]
    return made.set_(memory[1][at], offset, meta.shape, meta.stride)


def replacement_error(primal: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"stator: the data of a tensor of shape {list(primal.shape)} was replaced (`.data = ...`) between the forward "
        "of a compiled graph and its backward, which needs it; replace it before or after both, or run this part "
        "eagerly (stator.disable)"
    )
