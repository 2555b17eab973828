"""Hooks on gradients of tensors made in captured code. A hook that only computes is followed and becomes a graph; any
other, and one on a tensor from outside, breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stator.base.errors import Unsupported
from stator.dynamo.graph.messages import Message
from stator.dynamo.graph.subgraphs import deferred, outside_unchanged, own_state
from stator.dynamo.interpreter.calling import tensor_methods
from stator.dynamo.ir.reconstruct_ir import Recipe
from stator.dynamo.values.base import NotConstant, Raised, Value, cannot_rebuild, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.subgraphs.custom_autograd import Failure, GradientHook, graph_target
from stator.prims.record import TensorMeta

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext, Reconstructor

_WHAT = "a gradient hook"


class HookHandleValue(Value):
    """What `register_hook` returns."""

    __slots__ = ("made_at",)

    def __init__(self, made_at: int) -> None:
        self.source = None
        self.made_at = made_at

    def python_type(self, context: CaptureContext) -> type:
        return torch.utils.hooks.RemovableHandle

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        raise cannot_rebuild("the handle of a gradient hook", self.made_at)


@tensor_methods.register("register_hook")
def _register_hook(context: CaptureContext, tensor: TensorValue, hook: Value) -> Value:
    if tensor.obj is not None or not tensor.fake.requires_grad:
        raise unsupported(
            "tensor-method",
            f"register_hook on {tensor.describe(context)}, which was not computed in the captured code",
            "register hooks on inputs outside of the compiled function",
        )
    recorder = context.recorder
    if recorder.node_of(tensor) is not tensor.node:
        raise unsupported("tensor-method", "register_hook on a tensor from outside of a transformed function")
    meta = tensor.fake.meta  # type: ignore[attr-defined]
    with (
        recorder.subgraph() as level,
        own_state(_WHAT, grad_mode=False, autocast=False),
        outside_unchanged(context, _WHAT, hook),
        deferred(context, _WHAT, hook) as later,
    ):
        fake = recorder.mode.make(TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device))
        result = context.call(hook, [recorder.wrap_tensor(fake, level.placeholder(fake))], {})
        if later.asks_grad_mode:
            raise unsupported("deferred-fact", "the grad mode in a gradient hook")
        replaces = isinstance(result, TensorValue)
        if not replaces and not context.is_none(result):
            raise unsupported("tensor-method", f"a gradient hook that returns {result.describe(context)}")
        nodes = [recorder.node_of(result)] if isinstance(result, TensorValue) else []
    made = GradientHook(level.finish(nodes), meta.shape, meta.stride, replaces, _without_gradient(context, hook))
    context.record_function(graph_target(made, "register_gradient_hook"), [tensor, *level.lifted], {})
    tensor.node = recorder.last_node
    return HookHandleValue(context.end_step())


def _without_gradient(context: CaptureContext, hook: Value) -> Failure | None:
    """Which error autograd's call of the hook ends with where no gradient comes: it is called with None. None if it
    leaves that as it is."""
    unknown = (
        RuntimeError,
        ("stator: a gradient hook in compiled code is called with None, and is not known to take it; run this part "
         "eagerly (stator.disable)",),
    )  # fmt: skip
    try:
        with (
            context.recorder.subgraph(),
            own_state(_WHAT, grad_mode=False, autocast=False),
            outside_unchanged(context, _WHAT, hook),
            deferred(context, _WHAT, hook) as later,
        ):
            result = context.call(hook, [ConstantValue(None)], {})
    except Unsupported as error:
        raised = error.__cause__.value if isinstance(error.__cause__, Raised) else None
        if not isinstance(raised, ExceptionValue):
            return unknown
        try:
            return raised.cls, tuple([one.constant() for one in raised.args])
        except NotConstant:
            return unknown
    if later.asks_grad_mode:
        return unknown
    return None if context.is_none(result) else (RuntimeError, ("can't replace a None gradient with a non-None value",))


@tensor_methods.register("retain_grad")
def _retain_grad(context: CaptureContext, tensor: TensorValue) -> Value:
    """Asked for of the graph's result, when it has run: `.grad` is that of all its uses, inside of the graph too."""
    recorder = context.recorder
    made_here = tensor.obj is None and tensor.node is not None and tensor.node.graph is recorder.root
    if not made_here or not tensor.fake.requires_grad or not context.in_the_call or recorder.region is not None:
        raise unsupported("tensor-method", f"Tensor.retain_grad() on {tensor.describe(context)}")
    if not any(tensor is one for one in recorder.retained):
        recorder.retained.append(tensor)
        outermost = context.frames[0]
        position = outermost.program.instructions[outermost.now].position
        context.mutations.message(Message(torch.Tensor.retain_grad, [tensor], {}, position))
    return ConstantValue(None)
