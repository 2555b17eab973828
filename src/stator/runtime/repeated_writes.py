"""Buffer writes of a checkpointed function, repeated in the backward: eager runs the whole function again there,
compiled code recomputes only the values that gradients need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# (buffer, factor that scales its old contents or None to keep them, addend)
Write = tuple[torch.Tensor, float | None, Any]


def repeat_in_backward(results: tuple[torch.Tensor, ...], writes: tuple[Write, ...]) -> None:
    """Repeat the writes once in each backward that reaches one of the results. The results' histories must lead to the
    checkpointed function."""
    repeat = _once_in_each_backward(writes)
    for result in results:
        node = result.grad_fn
        if node is not None:
            # compiled steps refuse hooks of programs on their nodes; this hook knows that a node stands for all results
            kind = torch._C._FunctionBase if isinstance(node, torch._C._FunctionBase) else type(node)
            kind.register_prehook(node, _if_reached(result.output_nr, repeat))  # type: ignore[attr-defined]


def _once_in_each_backward(writes: tuple[Write, ...]) -> Callable[[], None]:
    last = -1

    def repeat() -> None:
        nonlocal last
        now = torch._C._current_graph_task_id()
        if now != last:
            last = now
            with torch.no_grad():
                for write in writes:
                    _write(*write)

    return repeat


def _write(target: torch.Tensor, share: float | None, addend: Any) -> None:
    if share is None:
        target.add_(addend)
    else:
        target.data.mul_(share).add_(addend)  # eager does not count a normalisation's writes


def _if_reached(position: int, repeat: Callable[[], None]) -> Callable[[Any], None]:
    """Repeat only if this result has a gradient: compiled code has one node for all of its results."""

    def hook(gradients: Any) -> None:
        if gradients[position] is not None:
            repeat()

    return hook
