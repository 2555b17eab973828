"""Activation checkpointing: the function is followed, and its nodes are marked as a region to be computed again.

What it means for memory is decided by who splits the graph into forward and backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.utils.checkpoint as torch_checkpoint

from ..calling import calls
from ..hook import leave_alone
from ..subgraphs import outside_unchanged, reachable
from ..values.base import Value, cannot_rebuild, unsupported
from ..values.constants import ConstantValue
from ..values.sequences import TupleValue
from ..values.tensors import TensorValue

if TYPE_CHECKING:
    from ..exits import ExitBuilder
    from ..recipe import Recipe
    from ..tracer import Tracer

# A checkpointed function runs again in the backward, where no frame hook is on: what the two runs save must agree.
leave_alone(torch_checkpoint.__file__, with_callees=True)

_OF_NON_REENTRANT = frozenset({"context_fn", "determinism_check", "debug", "early_stop"})
_EFFECT = "the checkpointed function, which eager runs twice,"


@calls(torch_checkpoint.checkpoint)
def _checkpoint(tracer: Tracer, function: Value, *args: Value, **kwargs: Value) -> Value:
    named = dict(kwargs)
    use_reentrant = named.pop("use_reentrant", ConstantValue(None))
    reentrant = tracer.is_none(use_reentrant) or tracer.truth(use_reentrant)
    named.pop("preserve_rng_state", None)  # random numbers are those of the forward in any case
    options = {name: named.pop(name) for name in _OF_NON_REENTRANT if name in named}
    if reentrant and (named or "context_fn" in options or "debug" in options):
        raise unsupported("checkpoint", f"a reentrant checkpoint with {', '.join([*named, *options])}")
    if "context_fn" in options and not isinstance(tracer.call(options["context_fn"], [], {}), _WhatToSave):
        raise unsupported("checkpoint", "a checkpoint with a context_fn that makes contexts of its own")
    if not torch.is_grad_enabled():
        return tracer.call(function, list(args), named)
    if reentrant and not any(isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in args):
        return _without_grad(tracer, function, list(args))
    with tracer.recorder.checkpoint_region(), outside_unchanged(tracer, _EFFECT, function, *args, *named.values()):
        result = tracer.call(function, list(args), named)
    return _of_reentrant(tracer, result, args) if reentrant else result


def _without_grad(tracer: Tracer, function: Value, args: list[Value]) -> Value:
    """A reentrant checkpoint none of whose tensor arguments requires grad: its results do not either."""
    switch = tracer.known(torch._C._set_grad_enabled)
    tracer.call(switch, [ConstantValue(False)], {})
    result = tracer.call(function, args, {})
    tracer.call(switch, [ConstantValue(True)], {})
    return result


def _of_reentrant(tracer: Tracer, result: Value, args: tuple[Value, ...]) -> Value:
    """What eager's reentrant variant returns: it is an autograd function, and so its results all require grad, but only
    those that it returns directly."""
    items = [tracer.realized(item) for item in result.items] if isinstance(result, TupleValue) else [result]
    given: list[Value] = []
    for item in items:
        if isinstance(item, TensorValue):
            floating = item.fake.is_floating_point() or item.fake.is_complex()
            if item.fake.requires_grad is not floating:
                raise unsupported("checkpoint", "a reentrant checkpoint returns a tensor without a gradient")
            returned = any(item is arg for arg in args)
            given.append(tracer.record_method("view_as", [item, item], {}) if returned else item)
        elif any(isinstance(one, TensorValue) for one in reachable((item,)).values()):
            raise unsupported("checkpoint", "a reentrant checkpoint returns tensors inside other objects")
        else:
            given.append(item)
    return TupleValue(given) if isinstance(result, TupleValue) else given[0]


class _WhatToSave(Value):
    """What torch's own makers of contexts give: no contexts at all, or such as say which values to keep, which is
    decided elsewhere."""

    __slots__ = ("made_at",)

    def __init__(self, made_at: int) -> None:
        super().__init__()
        self.made_at = made_at

    def python_type(self, tracer: Tracer) -> type:
        return tuple

    def recipe(self, exits: ExitBuilder) -> Recipe:
        raise cannot_rebuild("the contexts of a checkpoint", self.made_at)


@calls(torch_checkpoint.create_selective_checkpoint_contexts, torch_checkpoint.noop_context_fn)
def _contexts(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    return _WhatToSave(tracer.end_step())
