"""Gradients of symbolic sizes: the answers that torch's autograd engine gets where it asks for sizes of one.

A gradient of one row is computed as those of many, so that no version is made for one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from stator.graph.ir.size_bindings import is_symbolic
from stator.shapes.environment import assume_several, prefer_general
from stator.shapes.sym_node import to_expression

from .data_dependent_functions import stand_ins

# Nodes that ask whether sizes are 1, where one way is right for all sizes: to reshape or copy a gradient, to add what
# was repeated, to compute the gradient of a matrix in its order in memory
_ASKING = frozenset(
    f"{name}Backward0" for name in ("View", "UnsafeView", "Amax", "Amin", "Cdist", "Cumsum", "Repeat", "Mm", "Addmm")
)


def history(nodes: Iterable[Any]) -> Iterator[Any]:
    """All nodes of the autograd graph behind these nodes, and these."""
    seen: dict[int, Any] = {}
    todo = [node for node in nodes if node is not None]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        yield node
        todo += [following for following, _ in node.next_functions if following is not None]


@contextmanager
def general_gradients(roots: Sequence[torch.Tensor]) -> Iterator[None]:
    """Compute gradients of symbolic sizes as for large sizes where torch's C++ asks whether they are 1, and no one sees
    the difference."""
    handles: list[Any] = []
    with ExitStack() as stack, prefer_general():

        def enter(sizes: tuple[Any, ...], gradients: tuple[torch.Tensor | None, ...]) -> None:
            shape = () if gradients[0] is None else gradients[0].shape
            stack.enter_context(assume_several([to_expression(size) for size in (*shape, *sizes)]))

        for node in history(root.grad_fn for root in roots):
            if node.name() in _ASKING:
                names = [name for name in dir(node) if name.endswith("_sym_sizes") or name == "_saved_repeats"]
                sizes = tuple(itertools.chain(*(getattr(node, name) for name in names)))
                if is_symbolic((*sizes, *node._input_metadata[0].shape)):
                    handles.append(node.register_prehook(partial(enter, sizes)))
                    handles.append(node.register_hook(lambda *gradients: stack.close()))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@stand_ins.register(torch.autograd.grad)
def _grad(outputs: Any, inputs: Any, *args: Any, **named: Any) -> Any:
    with general_gradients([outputs] if isinstance(outputs, torch.Tensor) else outputs):
        return torch.autograd.grad(outputs, inputs, *args, **named)
