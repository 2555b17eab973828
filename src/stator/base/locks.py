"""Locks that a forked child finds open: the threads that held them in the parent do not exist there. Nothing else."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_safe_lock() -> threading.RLock:  # type: ignore[valid-type]
    """A reentrant lock that is free in a forked child, whoever held it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _open_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)
