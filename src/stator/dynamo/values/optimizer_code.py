"""Recognizes the code of torch.optim. handlers/optimizer_calls/optimizers.py captures optimizers."""

from __future__ import annotations

from stator.dynamo.values.base import CaptureContext


def in_optimizers(context: CaptureContext) -> bool:
    """Whether the function being followed belongs to torch.optim. Closures that optimizers call do not."""
    module = context.frames[-1].globals.names.get("__name__") if context.frames else None
    return isinstance(module, str) and module.startswith("torch.optim.")
