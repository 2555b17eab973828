"""torch.inference_mode() where its state holds already: a function that turns it on for itself, called under it.

A block that changes the state makes, or may no longer make, tensors of another kind: there the graph ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import ReadSource
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


class SameMode:
    """Stands in for torch._C._InferenceMode where that changes nothing. What it puts back at the end of the block is
    what the block itself may have changed."""

    def __init__(self) -> None:
        self.grad_enabled = torch.is_grad_enabled()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        torch._C._set_grad_enabled(self.grad_enabled)


def _beside(mode: bool) -> bool:
    """Does what torch._C._InferenceMode(mode) sets besides the modes that all versions rely on hold in this thread?"""
    flags = (
        torch._C._is_fwd_grad_enabled(),
        torch._C._is_multithreading_enabled(),
        torch._C._dispatch_tls_is_dispatch_key_included("ADInplaceOrView"),
        not torch._C._dispatch_tls_is_dispatch_key_excluded("AutogradFunctionality"),
        not torch._C._dispatch_tls_is_dispatch_key_excluded("AutogradOther"),
    )
    return all(flag != mode for flag in flags)


def inside() -> bool:
    return _beside(True)


def outside() -> bool:
    return _beside(False)


def _changes_nothing(context: CaptureContext, mode: Any) -> bool:
    """Relies on what it depends on, if so."""
    if mode is not torch.is_inference_mode_enabled() or mode is torch.is_grad_enabled() or not _beside(mode):
        return False
    context.guard(ReadSource(inside if mode else outside), GuardKind.EQUALS, True)
    return True


@calls(torch.inference_mode.__enter__)
def _enter(context: CaptureContext, block: Value) -> Value:
    mode = context.constant_of(block.get_attr(context, "mode"), "whether inference mode is wanted")
    if not _changes_nothing(context, mode):
        raise unsupported("call-builtin", f"entering torch.inference_mode({mode}), which changes the mode", _WAY_OUT)
    block.set_attr(context, _KEPT, context.call(context.known(SameMode), [], {}))
    return ConstantValue(None)


@calls(torch.inference_mode.__exit__)
def _exit(context: CaptureContext, block: Value, *error: Value) -> Value:
    kept = block.get_attr(context, _KEPT)
    if kept.python_type(context) is not SameMode:
        raise unsupported("call-builtin", "leaving torch.inference_mode, which changes the mode", _WAY_OUT)
    return context.call(kept.get_attr(context, "__exit__"), list(error), {})


@calls(torch._C._InferenceMode)
def _inference_mode(context: CaptureContext, mode: Value | None = None) -> Value:
    """As torch.autograd.grad_mode._enter_inference_mode makes one."""
    wanted = True if mode is None else context.constant_of(mode, "whether inference mode is wanted")
    if not _changes_nothing(context, wanted):
        raise unsupported("call-builtin", f"making torch._C._InferenceMode({wanted})", _WAY_OUT)
    return context.call(context.known(SameMode), [], {})


_KEPT = "_inference_mode_context"
_WAY_OUT = "enter it outside, or accept the break"
