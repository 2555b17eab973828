"""Whether operators on the CPU are oneDNN's, by the program's own setting; and tracing without oneDNN, whose recurrent
layers hide what they compute.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def onednn_enabled() -> bool:
    """The program's setting, also where a thread traces without oneDNN: the switch itself is off for all then."""
    available = torch.backends.mkldnn.is_available()
    return available and (_onednn_before[0] if _without_onednn else torch._C._get_mkldnn_enabled())


@contextmanager
def without_onednn() -> Iterator[None]:
    thread = threading.get_ident()
    if not _without_onednn:  # the switch is the process's: only who comes first sees the program's setting
        _onednn_before[0] = torch._C._get_mkldnn_enabled()
    depth = _without_onednn.get(thread, 0)
    try:
        _without_onednn[thread] = depth + 1
        torch._C._set_mkldnn_enabled(False)
        yield
    finally:
        onednn_put_back(depth)


_without_onednn: dict[int, int] = {}  # how deep threads are in such blocks
_onednn_before = [True]


def onednn_depth() -> int:
    """In how many blocks without oneDNN this thread is."""
    return _without_onednn.get(threading.get_ident(), 0)


def onednn_put_back(depth: int) -> None:
    """This thread is in so many such blocks again; when no thread is in any, the program's setting holds."""
    if depth:
        _without_onednn[threading.get_ident()] = depth
    else:
        _without_onednn.pop(threading.get_ident(), None)
    if not _without_onednn:
        torch._C._set_mkldnn_enabled(_onednn_before[0])
