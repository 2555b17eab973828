"""Inputs whose memory was replaced (`param.data = new`) between a forward and its backward.

Autograd does not notice a replacement. Eager's backward then reads new contents where an operator saved the very
tensor, and old contents where it saved a view or a computed value. A compiled backward recomputes values and cannot
tell these apart. So the forward notes the memory of its inputs, and such a backward runs as in eager: the program runs
operator by operator on the old memory, the new memory is put in place, and autograd's engine runs.
trace/eager_saved_tensors.py finds what eager saves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

# The storage of each tensor, and its offset there in elements. Holding the storage keeps it alive, as eager keeps the
# storage of a saved view. The storage object of a storage is unique, so lists of storages compare by identity.
Places = tuple[list[torch.UntypedStorage], list[int]]

_storage: Callable[[torch.Tensor], torch.UntypedStorage] = torch.Tensor.untyped_storage
_offset: Callable[[torch.Tensor], Any] = torch.Tensor.storage_offset


def memory_of(primals: Sequence[torch.Tensor]) -> Places:
    return list(map(_storage, primals)), list(map(_offset, primals))


def replaced_primals(step_node: Any) -> list[int]:
    """The primals whose memory was replaced; empty unless one of the step's `placed` is among them."""
    before, primals = step_node.places, step_node.primals
    if not before or not primals or (now := memory_of(primals)) == before:
        return []
    written = step_node.step.mutated  # the step keeps copies of these
    places = zip(*before, *now, strict=True)
    elsewhere = [at for at, (storage, offset, *present) in enumerate(places) if present != [storage, offset]]
    return [at for at in elsewhere if at not in written] if not set(elsewhere).isdisjoint(step_node.step.placed) else []


def primals_on_old_memory(step_node: Any, graph: fx.Graph, moved: Collection[int]) -> list[torch.Tensor]:
    """Leaves that stand in for the primals, on the memory of the forward.

    graph: its placeholders begin with the primals. Raises RuntimeError where a primal was written to, or cannot be
    rebuilt.
    """
    metas = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
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
        found.append(_on(step_node.places, at, metas[at]) if at in moved else primal.detach())
    return [one.requires_grad_(primal.requires_grad) for one, primal in zip(found, step_node.primals, strict=True)]


def _on(places: Places, at: int, meta: Any) -> torch.Tensor:
    made = torch.empty(0, dtype=meta.dtype, device=meta.device)
    return made.set_(places[0][at], places[1][at], meta.shape, meta.stride)


def replacement_error(primal: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"stator: the data of a tensor of shape {list(primal.shape)} was replaced (`.data = ...`) between the forward "
        "of a compiled graph and its backward, which needs it; replace it before or after both, or run this part "
        "eagerly (stator.disable)"
    )
