"""What a call holds for its backward: saved values and inputs, whether they still are what they were then, and what
eager would have freed or would find written to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .retained_saved_tensors import Kept, check_version, freed_twice

ANY = -1  # a version that nobody asks for
# Classes of what eager saved (`eager_saved_tensors.py`), as bits: freed before the last backward; which that is; freed
# by it
Freed = tuple[int, int | None, int]
NOTHING: Freed = (0, None, 0)


def saved_values(step_node: Any, classes: int) -> list[Any]:
    """What the forward saved, for a backward that runs these classes of eager's nodes. RuntimeError when eager would
    have freed what one of them saved, or find it written to."""
    step: Any = step_node.step
    if classes & freed(step_node):
        raise freed_twice()
    _check_versions(step_node, classes)
    kept: Kept | None = step_node.kept
    if kept is not None:
        return kept.saved(len(step.names))
    return list(step_node.saved_tensors) if step.parts.saved else []


def freed(step_node: Any) -> int:
    """What was freed before the running backward."""
    if step_node.freed is NOTHING:  # in the first backward
        return 0
    before, task, last = step_node.freed
    return before if task == torch._C._current_graph_task_id() else before | last  # type: ignore[no-any-return]


def note_freed(step_node: Any, classes: int) -> int:
    """That the running backward frees these, as far as the next is concerned. Returns all that is freed then."""
    before, task, last = step_node.freed
    if not classes:
        return before | last  # type: ignore[no-any-return]
    running = torch._C._current_graph_task_id()
    step_node.freed = (before, task, last | classes) if task == running else (before | last, running, classes)
    return before | last | classes  # type: ignore[no-any-return]


def counter_of(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A tensor that has the version counter of another one and none of its memory, and the version."""
    counter = tensor.detach()
    counter.data = _EMPTY
    return counter, tensor._version


with torch._C._InferenceMode(False):
    _EMPTY = torch.empty(0, device="cpu")


class _Unfinished(threading.local):
    node: Any = None


_unfinished = _Unfinished()


def watch(step_node: Any, values: Sequence[Any], results: Iterable[int], written: Iterable[int]) -> None:
    """Note the versions of what eager saves and the caller gets, or has: results, and inputs that are written to, which
    `finished` will say. Where hooks for saved tensors are on, eager does not ask for versions."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        step_node.watched = None
        return
    if results:
        step_node.watched = {position: counter_of(values[position]) for position in results}
    if written:
        _unfinished.node = step_node


def forget_unfinished() -> None:
    """No call of this thread will write to its inputs any more: of one that raised, nothing is kept alive."""
    _unfinished.node = None


def finished(written: Iterable[int], primals: Sequence[Any]) -> None:
    """The call of this thread that `watch` was last called for has written to its inputs."""
    node, _unfinished.node = _unfinished.node, None
    if node is not None:
        node.written = {index: counter_of(primals[index]) for index in written}


def _check_versions(step_node: Any, classes: int) -> None:
    """Raise RuntimeError when something was written to that eager saved, in nodes of these classes."""
    watched: Mapping[int, tuple[torch.Tensor, int]] | None = step_node.watched
    if watched is None:
        return
    inputs, results = step_node.step.joint.savers.watched(classes)
    written, primals = step_node.written, step_node.primals
    mutated = step_node.step.mutated
    for index in inputs:
        if index not in mutated:
            noted = primals[index] if primals else None
        else:
            noted = written.get(index)
        if noted is not None and noted[0]._version != noted[1]:
            check_version(*noted)
    for position in results:
        check_version(*watched[position])


def versions_of(primals: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """Beside each the version it is at, which those that were made in inference mode do not have."""
    try:
        return [(primal, primal._version) for primal in primals]
    except RuntimeError:
        return [(primal, ANY if primal.is_inference() else primal._version) for primal in primals]


def unchanged_inputs(primals: Sequence[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
    """The primals as the forward saw them. Raises RuntimeError when they are not what they were."""
    found = []
    for entry in primals:
        primal, version = entry
        if version == ANY:
            found.append(primal.detach())
            continue
        if primal._version != version:
            raise RuntimeError(
                "one of the inputs of a compiled graph was modified in place before its backward was differentiated: "
                f"it is at version {primal._version}, expected version {version}"
            )
        found.append(primal)
    return found
