"""STATOR_DUMP=dir: writes every stage of a compilation as a readable, numbered file.

Each compilation of one graph gets a folder `dir/NNN_name/`. Stages pass text, or a function that makes it, so that
nothing is printed without a dump.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import logs
from .locks import fork_safe_lock

_lock = fork_safe_lock()
_count = 0
_current = threading.local()


@contextmanager
def compilation(name: str) -> Iterator[None]:
    """Open a folder for the files of one compilation; nested ones get their own. No-op unless STATOR_DUMP."""
    root = os.environ.get("STATOR_DUMP")
    if not root:
        yield
        return
    global _count
    with _lock:
        number, _count = _count, _count + 1
    folder = Path(root) / f"{number:03d}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)[:80]}"
    previous = getattr(_current, "folder", None)
    _current.folder = folder
    try:
        yield
    finally:
        _current.folder = previous


def active() -> bool:
    return getattr(_current, "folder", None) is not None


def write(filename: str, text: str | Callable[[], str]) -> None:
    """Write one stage, e.g. write("10_graph.py", lambda: print_graph(g)). Numbers: docs/architecture.md."""
    folder = getattr(_current, "folder", None)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / filename).write_text(text() if callable(text) else text)


def show(artifact: str, filename: str, text: Callable[[], str], title: str) -> None:
    """Log and write one stage; the text is made only if a log or dump wants it."""
    write(filename, text)
    if logs.enabled(artifact):
        logs.log(artifact, "%s\n%s", title, text())
