"""Saved values and inputs that a call keeps for its backward, and which of them later backwards still need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from stator.runtime.launch import UNCHECKED_VERSION

# Values, as bits, that cannot be differentiated again: (freed before the last backward, id of that backward, freed by
# it)
Freed = tuple[int, int | None, int]
NOTHING_FREED: Freed = (0, None, 0)


def saved_values(step_node: Any, values: int) -> list[Any]:
    """The forward's saved values, for a backward of `values`. Raises RuntimeError where eager would have freed them, or
    where one was written to."""
    if values & freed_values(step_node):
        raise _freed_twice()
    step: Any = step_node.step
    kept: RetainedValues | None = step_node.kept
    if kept is not None:
        return kept.saved(len(step.names))
    return list(step_node.saved()) if step.parts.saved else []


def freed_values(step_node: Any) -> int:
    """The values whose saved tensors eager has freed before the running backward."""
    if step_node.freed is NOTHING_FREED:  # in the first backward
        return 0
    before, task, last = step_node.freed
    return before if task == torch._C._current_graph_task_id() else before | last  # type: ignore[no-any-return]


def note_freed(step_node: Any, values: int) -> int:
    """Note that these values cannot be differentiated again after the running backward. Returns all such values."""
    before, task, last = step_node.freed
    running = torch._C._current_graph_task_id()
    step_node.freed = (before, task, last | values) if task == running else (before | last, running, values)
    return before | last | values  # type: ignore[no-any-return]


def tangents_by_saved(backward: fx.GraphModule, saved_count: int) -> tuple[int, ...]:
    """For each saved value of a backward graph, the tangents that it is combined with, as bits.

    backward: the placeholders are `saved_count` saved values, then the tangents.
    """
    tangents: dict[fx.Node, int] = {}
    sources: dict[fx.Node, int] = {}
    found = [0] * saved_count
    for at, node in enumerate(node for node in backward.graph.nodes if node.op == "placeholder"):
        tangents[node] = 1 << (at - saved_count) if at >= saved_count else 0
        sources[node] = 1 << at if at < saved_count else 0
    for node in backward.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        led_to = read = 0
        for argument in node.all_input_nodes:
            led_to |= tangents[argument]
            read |= sources[argument]
        tangents[node], sources[node] = led_to, 0 if led_to else read
        if led_to:
            for at in range(read.bit_length()):
                if read >> at & 1:
                    found[at] |= led_to
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RetainedValues:
    """Saved values that later backwards need, by position, with their versions when they were retained."""

    values: dict[int, tuple[torch.Tensor, int]]

    @staticmethod
    def of(positions: Iterable[int], saved: Sequence[Any]) -> RetainedValues:
        """Retain detached values: their history would make a reference cycle."""
        return RetainedValues(
            {at: (saved[at].detach(), saved[at]._version) for at in positions if saved[at] is not None}
        )

    def saved(self, count: int) -> list[Any]:
        """The saved values by position, None where not retained. Raises RuntimeError where one was written to."""
        found: list[Any] = [None] * count
        for at, (value, version) in self.values.items():
            if value._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{value.type()} {list(value.shape)}] is at version {value._version}; expected version {version} "
                    "instead."
                )
            found[at] = value
        return found


def _freed_twice() -> RuntimeError:
    """Autograd's own error for a second backward."""
    return RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
        "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
        "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access "
        "saved tensors after calling backward."
    )


def unchanged_inputs(primals: Sequence[torch.Tensor], versions: Sequence[int]) -> list[torch.Tensor]:
    """The primals as the forward saw them. Raises RuntimeError where one was written to since."""
    found = []
    for primal, version in zip(primals, versions, strict=True):
        if version == UNCHECKED_VERSION:
            found.append(primal.detach())
            continue
        if primal._version != version:
            raise RuntimeError(
                "one of the inputs of a compiled graph was modified in place before its backward was differentiated: "
                f"it is at version {primal._version}, expected version {version}"
            )
        found.append(primal)
    return found
