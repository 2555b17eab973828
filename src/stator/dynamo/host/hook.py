"""Calls a function with the frame hook on, so that frames that capture cannot foresee are compiled, too. The hook
itself is csrc/frame_hook.c; this file chooses the code that the hook skips, such as the code objects that stator runs
in place of a user's."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from .native_status import native
from .native_status import native as _native

STATOR_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def skip_files(*prefixes: str, with_callees: bool = False) -> None:
    """Skip code in files with these prefixes. Its callees are still compiled, unless `with_callees`."""
    global _left_alone, _unhooked
    if with_callees:
        _unhooked = tuple(dict.fromkeys((*_unhooked, *prefixes)))
    else:
        _left_alone = tuple(dict.fromkeys((*_left_alone, *prefixes)))
    if _native is not None:
        _native.set_left_alone(_left_alone, _unhooked)


def skip_frame(code: CodeType) -> None:
    """Frames of this code run eagerly; their callees are still compiled."""
    if _native is not None:
        _native.mark_code(code, False)


def always_compile(code: CodeType) -> None:
    """Frames of this code are compiled although their file is skipped."""
    if _native is not None:
        _native.ask_about(code)


def is_skipped(code: CodeType) -> bool:
    """Whether the hook skips this code, such as code of the standard library or of torch."""
    return code.co_filename.startswith(_left_alone)


def active() -> bool:
    """Whether the hook is on in this thread."""
    return _native is not None and _native.hook_callback() is not None


@contextmanager
def entries_off() -> Iterator[None]:
    """In this block, compiled functions called by this thread run their originals."""
    if _native is None:
        yield
        return
    _native.switch_entries(True)
    try:
        yield
    finally:
        _native.switch_entries(False)


def _call_plainly(callback: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


# call_with_hook(callback, function, *args, **kwargs). For each Python function whose frame starts in this thread during
# the call, `callback(function)` returns the Cache of its code (entry.make_hook_callback), or None to skip the frame. A
# callback of None turns the hook off during the call.
call_with_hook: Callable[..., Any] = _native.call_with_hook if _native is not None else _call_plainly

_left_alone: tuple[str, ...] = ()
_unhooked: tuple[str, ...] = ()


def _standard_folders() -> list[str]:
    paths = sysconfig.get_paths()
    # single folders, because the standard library's folder contains site-packages with users' code
    folders = [STATOR_FOLDER, "<frozen ", "<eval_with_key>", "<attrs generated"]
    for root in dict.fromkeys((paths["stdlib"], paths["platstdlib"])):
        if os.path.isdir(root):
            folders += [os.path.join(root, name) for name in os.listdir(root) if name.endswith(".py")]
            folders += [
                os.path.join(root, name) + os.sep
                for name in os.listdir(root)
                if "." not in name and name not in ("site-packages", "dist-packages", "__pycache__", "test")
            ]
    for site in dict.fromkeys((paths["purelib"], paths["platlib"])):
        folders += [os.path.join(site, name) + os.sep for name in ("functorch", "triton", "numpy", "sympy")]
    return folders


skip_files(*_standard_folders())
# torch code that runs compiled graphs, and that compiles backward graphs on first use, maybe inside a call at a break
skip_files(
    "<stator ",
    *(os.path.join(STATOR_FOLDER, name) + os.sep for name in ("prims", "graph", "runtime", "aot", "inductor")),
    with_callees=True,
)


def _mark_unhooked(code: CodeType) -> None:
    native.mark_code(code, True)


code_marks: list[Callable[[CodeType], None]] = [_mark_unhooked]  # called with each marked code object


def mark_as_ours(code: CodeType) -> None:
    """Tell every frame hook that stator runs this code."""
    for mark in code_marks:
        mark(code)
