"""Which code is torch's own of optimizers. What optimizers do is elsewhere (calls/optimizers.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tracer import Tracer


def in_optimizers(tracer: Tracer) -> bool:
    """Whether the function that is being followed is of torch.optim. Closures that it calls are not."""
    module = tracer.frames[-1].globals.names.get("__name__") if tracer.frames else None
    return isinstance(module, str) and module.startswith("torch.optim.")
