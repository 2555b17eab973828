"""Activation checkpointing: the function is followed, and its nodes are marked as a region to be computed again.

What it means for memory is decided by who splits the graph into forward and backward.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import fx

from stator.dynamo.graph.subgraphs import outside_unchanged, reachable
from stator.dynamo.host.hook import skip_files
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value, cannot_rebuild, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.ir.reconstruct_ir import Recipe
    from stator.dynamo.values.base import CaptureContext, Reconstructor

# A checkpointed function runs again in the backward, where no frame hook is on: what the two runs save must agree.
skip_files(torch_checkpoint.__file__, with_callees=True)

_OF_NON_REENTRANT = frozenset({"context_fn", "determinism_check", "debug", "early_stop"})
_EFFECT = "the checkpointed function, which eager runs twice,"


@calls(torch_checkpoint.checkpoint)
def _checkpoint(context: CaptureContext, function: Value, *args: Value, **kwargs: Value) -> Value:
    named = dict(kwargs)
    use_reentrant = named.pop("use_reentrant", ConstantValue(None))
    reentrant = context.is_none(use_reentrant) or context.truth(use_reentrant)
    named.pop("preserve_rng_state", None)  # random numbers are those of the forward in any case
    options = {name: named.pop(name) for name in _OF_NON_REENTRANT if name in named}
    if reentrant and (named or "context_fn" in options or "debug" in options):
        raise unsupported("checkpoint", f"a reentrant checkpoint with {', '.join([*named, *options])}")
    contexts = context.call(options["context_fn"], [], {}) if "context_fn" in options else None
    if not torch.is_grad_enabled():  # then the contexts are not entered either
        return context.call(function, list(args), named)
    if reentrant and not any(isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in args):
        return _without_grad(context, function, list(args))
    if contexts is not None and not _do_nothing(context, contexts):
        raise unsupported("checkpoint", "a checkpoint with a context_fn that makes contexts of its own")
    recorder = context.recorder
    before = next(iter(reversed(recorder.graph.nodes)), None)
    with recorder.checkpoint_region(), outside_unchanged(context, _EFFECT, function, *args, *named.values()):
        result = context.call(function, list(args), named)
    return _of_reentrant(context, result, args, before) if reentrant else result


def _without_grad(context: CaptureContext, function: Value, args: list[Value]) -> Value:
    """A reentrant checkpoint none of whose tensor arguments requires grad: its results do not either."""
    switch = context.known(torch._C._set_grad_enabled)
    context.call(switch, [ConstantValue(False)], {})
    result = context.call(function, args, {})
    context.call(switch, [ConstantValue(True)], {})
    return result


def _of_reentrant(context: CaptureContext, result: Value, args: tuple[Value, ...], before: fx.Node | None) -> Value:
    """What eager's reentrant variant returns: it is an autograd function, and so its results all require grad, but only
    those that it returns directly: what it returns inside other objects was computed without. `before`: the last node
    in front of it."""
    items = [context.realized(item) for item in result.items] if isinstance(result, TupleValue) else [result]
    given: list[Value] = []
    for item in items:
        if isinstance(item, TensorValue):
            floating = item.fake.is_floating_point() or item.fake.is_complex()
            if item.fake.requires_grad is not floating:
                raise unsupported("checkpoint", "a reentrant checkpoint returns a tensor without a gradient")
            returned = any(item is arg for arg in args)
            given.append(context.record_method("view_as", [item, item], {}) if returned else item)
        else:
            _without_history(context, item, [one for one in items if isinstance(one, TensorValue)], before)
            given.append(item)
    return TupleValue(given) if isinstance(result, TupleValue) else given[0]


def _without_history(context: CaptureContext, item: Value, returned: list[Value], before: fx.Node | None) -> None:
    """Tensors inside an object, if they were made by the checkpointed function, become ones that require no grad."""
    for one in list(reachable((item,)).values()):
        if not isinstance(one, TensorValue) or not one.fake.requires_grad:
            continue
        node = context.recorder.node_of(one)
        outside = node.op == "placeholder" or node.graph is not context.recorder.graph
        if outside or (before is not None and not before < node):
            continue
        if any(one is other for other in returned):
            raise unsupported(
                "checkpoint", "a reentrant checkpoint returns a tensor both directly and inside an object"
            )
        detached = context.record_method("detach", [one], {})
        assert isinstance(detached, TensorValue)
        one.fake, one.node = detached.fake, detached.node
        context.recorder.wrap_input(one)


def _do_nothing(context: CaptureContext, contexts: Value) -> bool:
    """Whether the pair of contexts that a context_fn made has no effect on the results."""
    if isinstance(contexts, _WhatToSave):
        return True
    pair = contexts.items if isinstance(contexts, TupleValue) else ()
    return len(pair) == 2 and all(context.realized(one).python_type(context) is nullcontext for one in pair)


class _WhatToSave(Value):
    """What torch's own makers of contexts give: no contexts at all, or such as say which values to keep, which is
    decided elsewhere."""

    __slots__ = ("made_at",)

    def __init__(self, made_at: int) -> None:
        super().__init__()
        self.made_at = made_at

    def python_type(self, context: CaptureContext) -> type:
        return tuple

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("the contexts of a checkpoint", self.made_at)


@calls(torch_checkpoint.create_selective_checkpoint_contexts, torch_checkpoint.noop_context_fn)
def _contexts(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return _WhatToSave(context.end_step())
