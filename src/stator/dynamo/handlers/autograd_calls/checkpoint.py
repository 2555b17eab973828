"""Activation checkpointing: capture follows the function and marks its nodes as a region to compute again.

Splitting the joint graph (aot/partition/) decides what that means for memory.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.utils.checkpoint as torch_checkpoint

from stator.dynamo.graph.subgraphs import outside_unchanged, reachable
from stator.dynamo.host.hook import skip_files
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.reconstruct_ir import Recipe
from stator.dynamo.values.base import CaptureContext, Reconstructor, Value, cannot_rebuild, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue

# A checkpointed function runs again in the backward without the frame hook, and both runs must save equal values.
skip_files(torch_checkpoint.__file__, with_callees=True)

_OF_NON_REENTRANT = frozenset({"context_fn", "determinism_check", "debug", "early_stop"})
_EFFECT = "the checkpointed function, which eager runs twice,"


@calls(torch_checkpoint.checkpoint)
def _checkpoint(context: CaptureContext, function: Value, *args: Value, **kwargs: Value) -> Value:
    named = dict(kwargs)
    use_reentrant = named.pop("use_reentrant", ConstantValue(None))
    reentrant = context.is_none(use_reentrant) or context.truth(use_reentrant)
    named.pop("preserve_rng_state", None)  # the backward always repeats the random numbers of the forward
    options = {name: named.pop(name) for name in _OF_NON_REENTRANT if name in named}
    if reentrant and (named or "context_fn" in options or "debug" in options):
        raise unsupported("checkpoint", f"a reentrant checkpoint with {', '.join([*named, *options])}")
    contexts = context.call(options["context_fn"], [], {}) if "context_fn" in options else None
    if not torch.is_grad_enabled():  # eager enters no contexts then
        return context.call(function, list(args), named)
    if reentrant and not any(isinstance(arg, TensorValue) and arg.fake.requires_grad for arg in args):
        return _without_grad(context, function, list(args))
    if contexts is not None and not _do_nothing(context, contexts):
        raise unsupported("checkpoint", "a checkpoint with a context_fn that makes contexts of its own")
    with context.recorder.checkpoint_region(), outside_unchanged(context, _EFFECT, function, *args, *named.values()):
        result = context.call(function, list(args), named)
    return _of_reentrant(context, result, args) if reentrant else result


def _without_grad(context: CaptureContext, function: Value, args: list[Value]) -> Value:
    """A reentrant checkpoint without tensor arguments that require grad returns results that require none."""
    switch = context.known(torch._C._set_grad_enabled)
    context.call(switch, [ConstantValue(False)], {})
    result = context.call(function, args, {})
    context.call(switch, [ConstantValue(True)], {})
    return result


def _of_reentrant(context: CaptureContext, result: Value, args: tuple[Value, ...]) -> Value:
    """The results of eager's reentrant variant. It is an autograd function, so that tensors that it returns directly
    require grad, and tensors inside of other objects require none."""
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
            if any(isinstance(one, TensorValue) and one.fake.requires_grad for one in reachable((item,)).values()):
                raise unsupported("checkpoint", "a reentrant checkpoint returns tensors inside of an object")
            given.append(item)
    return TupleValue(given) if isinstance(result, TupleValue) else given[0]


def _do_nothing(context: CaptureContext, contexts: Value) -> bool:
    """Whether the pair of contexts that a context_fn made has no effect on the results."""
    if isinstance(contexts, _TorchContexts):
        return True
    pair = contexts.items if isinstance(contexts, TupleValue) else ()
    return len(pair) == 2 and all(context.realized(one).python_type(context) is nullcontext for one in pair)


class _TorchContexts(Value):
    """The contexts of torch's own functions do nothing, or choose the values to keep, which aot chooses itself."""

    __slots__ = ("made_at",)
    cls = tuple

    def __init__(self, made_at: int) -> None:
        super().__init__()
        self.made_at = made_at

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("the contexts of a checkpoint", self.made_at)


@calls(torch_checkpoint.create_selective_checkpoint_contexts, torch_checkpoint.noop_context_fn)
def _contexts(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    return _TorchContexts(context.end_step())
