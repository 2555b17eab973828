"""Full garbage collections wait while a program is compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .native_status import native


@contextmanager
def full_collections_put_off() -> Iterator[None]:
    """Let full collections that the interpreter starts by itself wait for the end of the block, in all threads.

    A full collection goes through all objects of the process: 0.2 to 0.8 s after a large model was built, about as long
    as compiling it. Python starts one when a quarter as many objects became old as were old before. In the block this
    takes five quarters, so that memory stays bounded. Younger garbage is collected on, and so is all by `gc.collect()`.
    """
    if native is None:
        yield
        return
    native.put_off_full_collections()
    try:
        yield
    finally:
        native.admit_full_collections()


if native is not None and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=native.admit_full_collections_in_child)
