"""Hooks of the nodes that compiled graphs have for autograd: where they are found, and what those see that are called
behind a node.

What is looked at for their sake is decided in output_autograd_nodes.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch.utils.hooks import RemovableHandle


class _Unknown(Sequence[Any]):
    """What eager's node passes on, in the place of what this one does: nodes of compiled graphs lead elsewhere."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            "stator: a hook of a node that a compiled graph has made (grad_fn.register_hook) looks at the gradients of "
            "that node's inputs, or replaces them: the node of a compiled graph stands for many, and has other inputs. "
            "Use Tensor.register_hook or grad_fn.register_prehook, or run this part eagerly (stator.disable)"
        )

    __getitem__ = __len__ = __iter__ = __contains__ = __reversed__ = __eq__ = __bool__ = _refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


_UNKNOWN = _Unknown()


def before(hook: Callable[..., Any], only: int | None) -> Callable[..., Any]:
    """The user's hook before a node, as it is registered: it gets the gradient of the result with the number `only`, if
    that is the only one that eager's node has."""
    if only is None:
        return hook

    def called(gradients: tuple[Any, ...]) -> Any:
        changed = hook((gradients[only],))
        if not isinstance(changed, tuple):  # autograd refuses all but None
            return changed
        return *gradients[:only], *changed, *gradients[only + 1 :]  # and another number than it gave

    return called


def behind(hook: Callable[..., Any], only: int | None = None) -> Callable[..., None]:
    """The user's hook behind a node, as it is registered: it learns the gradients of the node's results. only: as
    `before` has it."""

    def called(passed_on: Any, gradients: Any) -> None:
        if only is not None:
            gradients = (gradients[only],)
        if hook(_UNKNOWN, gradients) is not None:
            _UNKNOWN._refuse()

    return called


def hooks_of(node: Any) -> list[weakref.ref[dict[Any, Any]]]:
    """The dictionaries that autograd has the hooks of a node from, before and behind it."""
    found = []
    for register in (node.register_prehook, node.register_hook):
        handle: RemovableHandle = register(_seen)
        handle.remove()
        found.append(handle.hooks_dict_ref)
    return found


def _seen(*gradients: Any) -> None:
    """A hook without effect."""
