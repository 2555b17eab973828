"""Which code is torch's own of optimizers. What optimizers do is elsewhere (handlers/optimizer_calls/optimizers.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext


def in_optimizers(context: CaptureContext) -> bool:
    """Whether the function that is being followed is of torch.optim. Closures that it calls are not."""
    module = context.frames[-1].globals.names.get("__name__") if context.frames else None
    return isinstance(module, str) and module.startswith("torch.optim.")
