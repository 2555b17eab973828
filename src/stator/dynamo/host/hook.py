"""Calls a function with the frame hook on, so that frames which cannot be seen beforehand get compiled too.

The hook itself is csrc/frame_hook.c; here is only which code it leaves alone.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from .native_status import native as _native

STATOR_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def skip_files(*prefixes: str, with_callees: bool = False) -> None:
    """Add file name prefixes of code that is run as it is. What it calls is still looked at, unless `with_callees`."""
    global _left_alone, _unhooked
    if with_callees:
        _unhooked = tuple(dict.fromkeys((*_unhooked, *prefixes)))
    else:
        _left_alone = tuple(dict.fromkeys((*_left_alone, *prefixes)))
    if _native is not None:
        _native.set_left_alone(_left_alone, _unhooked)


def skip_recursively(code: CodeType) -> None:
    """Frames of this code, and all that they call, run without the hook."""
    if _native is not None:
        _native.mark_code(code, True)


def skip_frame(code: CodeType) -> None:
    """Frames of this code run as they are; what they call is still looked at."""
    if _native is not None:
        _native.mark_code(code, False)


def always_compile(code: CodeType) -> None:
    """Frames of this code are compiled although its file is left alone."""
    if _native is not None:
        _native.ask_about(code)


def is_skipped(code: CodeType) -> bool:
    """Is this code of the standard library, of torch or of the like, which the hook runs as it is?"""
    return code.co_filename.startswith(_left_alone)


def active() -> bool:
    """Is the hook on in this thread?"""
    return _native is not None and _native.hook_callback() is not None


@contextmanager
def entries_off() -> Iterator[None]:
    """Compiled functions that are called in this thread meanwhile run their originals."""
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
# the call, `callback(function)` gives the Cache of its code (entry.make_hook_callback), or None to leave it alone. A
# callback of None turns the hook off during the call.
call_with_hook: Callable[..., Any] = _native.call_with_hook if _native is not None else _call_plainly

_left_alone: tuple[str, ...] = ()
_unhooked: tuple[str, ...] = ()


def _standard_folders() -> list[str]:
    paths = sysconfig.get_paths()
    # the standard library's folder holds site-packages, whose packages are users' code: so its parts, not the whole
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
# what runs compiled graphs, and compiles backward graphs when they are first needed, maybe under a call at a break
skip_files(
    "<stator ",
    *(os.path.join(STATOR_FOLDER, name) + os.sep for name in ("prims", "graph", "runtime", "aot", "inductor")),
    with_callees=True,
)
