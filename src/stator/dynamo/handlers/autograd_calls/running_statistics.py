"""Running statistics of a normalisation inside a checkpoint: eager runs the function twice, so they are moved twice.
The second time is done at run time by runtime/repeated_writes.py, or in the graph where that holds the backward."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F

from stator.dynamo.graph.checkpoints import RepeatedWrite
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.symbolic_numbers import is_open
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext

_SIGNATURE = inspect.signature(F.batch_norm)


@calls(F.batch_norm)
def _batch_norm(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    region = context.recorder.checkpoints.running
    moved = None if region is None else _moved(context, args, kwargs)
    if region is None or moved is None:
        return context.record_function(F.batch_norm, list(args), kwargs)
    statistics, share = moved
    before = [context.record_method("clone", [one], {}) for one in statistics]
    result = context.record_function(F.batch_norm, list(args), kwargs)
    if isinstance(result, TensorValue) and result.fake.requires_grad:  # else eager may stop before it comes here again
        node = context.recorder.last_node
        for one, old in zip(statistics, before, strict=True):
            kept = context.record_method("mul", [old, ConstantValue(share)], {})
            added = context.record_method("sub", [one, kept], {})
            region.writes.append(RepeatedWrite(node, one, share, added))
    return result


def _moved(
    context: CaptureContext, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> tuple[list[TensorValue], float] | None:
    """The running statistics that are moved, and the share of them that stays."""
    given: dict[str, Any] = _SIGNATURE.bind(*args, **kwargs).arguments
    training, momentum = given.get("training"), given.get("momentum", ConstantValue(0.1))
    if training is None or not isinstance(training, ConstantValue) or not context.truth(training):
        return None
    if "momentum" in given and momentum.source is None:  # computed, perhaps from a counter of calls: another one then
        return None
    if is_open(momentum) or type(momentum.constant() if momentum.is_constant() else None) is not float:
        return None
    statistics = [given["running_mean"], given["running_var"]]
    if not all(isinstance(one, TensorValue) and not one.fake.requires_grad for one in statistics):
        return None
    return statistics, 1 - momentum.constant()
