"""Inputs whose memory was replaced (`param.data = new`) between a forward and its backward.

Autograd does not notice a replacement. Eager's backward then reads new contents where an operator saved the very
tensor, and old contents where it saved a view or a computed value. A compiled backward recomputes values and cannot
tell these apart. So the forward notes the memory of its inputs, and such a backward runs as in eager: the program runs
operator by operator on the old memory, the new memory is put in place, and autograd's engine runs.
trace/eager_saved_tensors.py finds what eager saves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

Place = tuple[int, torch.UntypedStorage]


def memory_of(primals: Sequence[torch.Tensor]) -> list[Place]:
    """Each tensor's address and storage. Holding the storage keeps it alive, as eager keeps what it saved a view of."""
    return [(primal.data_ptr(), primal.untyped_storage()) for primal in primals]


def replaced_primals(step_node: Any) -> list[int]:
    """The primals whose memory was replaced; empty unless one of the step's `placed` is among them."""
    primals, places = step_node.primals, step_node.places
    if not places or not primals or not any(_is_elsewhere(step_node, at) for at in step_node.step.placed):
        return []
    written = step_node.step.mutated  # the step keeps copies of these
    return [at for at in range(len(primals)) if at not in written and _is_elsewhere(step_node, at)]


def _is_elsewhere(step_node: Any, index: int) -> bool:
    return bool(step_node.primals[index][0].data_ptr() != step_node.places[index][0])


def primals_on_old_memory(step_node: Any, graph: fx.Graph, moved: Collection[int]) -> list[torch.Tensor]:
    """Leaves that stand in for the primals, on the memory of the forward.

    graph: its placeholders begin with the primals. Raises RuntimeError where a primal was written to, or cannot be
    rebuilt.
    """
    metas = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    found = []
    for at, (primal, version) in enumerate(step_node.primals):
        written = version >= 0 and primal._version != version
        if at in moved and (written or primal.is_conj() or primal.is_neg()):
            raise replacement_error(primal)
        if written:
            raise RuntimeError(
                "stator: inputs of a compiled graph were written to, and the data of others replaced (`.data = ...`), "
                "between its forward and its backward; run this part eagerly (stator.disable)"
            )
        found.append(_on(step_node.places[at], metas[at], primal) if at in moved else primal.detach())
    return [one.requires_grad_(entry[0].requires_grad) for one, entry in zip(found, step_node.primals, strict=True)]


def _on(place: Place, meta: Any, primal: torch.Tensor) -> torch.Tensor:
    address, storage = place
    made = torch.empty(0, dtype=meta.dtype, device=meta.device)
    return made.set_(storage, (address - storage.data_ptr()) // made.element_size(), meta.shape, meta.stride)


def replacement_error(primal: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"stator: the data of a tensor of shape {list(primal.shape)} was replaced (`.data = ...`) between the forward "
        "of a compiled graph and its backward, which needs it; replace it before or after both, or run this part "
        "eagerly (stator.disable)"
    )
