"""The program's setting of oneDNN for CPU operators; and tracing without oneDNN, whose recurrent layers hide their
operators."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def onednn_enabled() -> bool:
    """Return the program's setting, even while a thread traces without oneDNN, when the process-wide switch is off."""
    available = torch.backends.mkldnn.is_available()
    return available and (_onednn_before[0] if _without_onednn else torch._C._get_mkldnn_enabled())


@contextmanager
def without_onednn() -> Iterator[None]:
    thread = threading.get_ident()
    if not _without_onednn:  # the switch is process-wide: only the first block sees the program's setting
        _onednn_before[0] = torch._C._get_mkldnn_enabled()
    depth = _without_onednn.get(thread, 0)
    try:
        _without_onednn[thread] = depth + 1
        torch._C._set_mkldnn_enabled(False)
        yield
    finally:
        restore_onednn_depth(depth)


_without_onednn: dict[int, int] = {}  # nesting depth of such blocks by thread
_onednn_before = [True]


def onednn_depth() -> int:
    """Return this thread's nesting depth of blocks without oneDNN."""
    return _without_onednn.get(threading.get_ident(), 0)


def restore_onednn_depth(depth: int) -> None:
    """Restore this thread's nesting depth. At depth zero of all threads the program's setting holds."""
    if depth:
        _without_onednn[threading.get_ident()] = depth
    else:
        _without_onednn.pop(threading.get_ident(), None)
    if not _without_onednn:
        torch._C._set_mkldnn_enabled(_onednn_before[0])
