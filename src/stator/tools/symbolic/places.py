"""Where a running program is: the user's lines on the stack, and the modules whose `forward` runs.

Never here: what the program does there.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from stator.base.errors import UserPlace

_OURS = (os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, str(Path(__file__).parents[2]) + os.sep)
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = (os.path.join(_LIBRARY, "site-packages"), os.path.join(_LIBRARY, "dist-packages"))
_CALL = torch.nn.Module._call_impl.__code__


def is_users(filename: str) -> bool:
    """Whether a file belongs to the program: neither torch, nor stator, nor Python's own library."""
    if filename.startswith(("<frozen", *_OURS)):
        return False
    return not filename.startswith(_LIBRARY) or filename.startswith(_INSTALLED)


def current_place() -> UserPlace | None:
    """The innermost line of the program that runs now."""
    for frame in _outwards(sys._getframe(1)):
        if is_users(frame.f_code.co_filename):
            return UserPlace(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
    return None


def current_module() -> torch.nn.Module | None:
    """The innermost module that is being called now."""
    for frame in _outwards(sys._getframe(1)):
        if frame.f_code is _CALL:
            module: Any = frame.f_locals["self"]
            return module  # type: ignore[no-any-return]
    return None


def places_of(traceback: TracebackType | None) -> list[UserPlace]:
    """The program's lines in a traceback, outermost first."""
    found = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_users(code.co_filename):
            found.append(UserPlace(code.co_filename, traceback.tb_lineno, code.co_qualname))
        traceback = traceback.tb_next
    return found


def module_of(traceback: TracebackType | None) -> torch.nn.Module | None:
    """The innermost module that was being called when an error was raised."""
    found = None
    while traceback is not None:
        if traceback.tb_frame.f_code is _CALL:
            found = traceback.tb_frame.f_locals["self"]
        traceback = traceback.tb_next
    return found


def is_raised_by_program(traceback: TracebackType | None) -> bool:
    """Whether the program's own statement raised the error, and no function of torch."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and is_users(traceback.tb_frame.f_code.co_filename)


def source_line(place: UserPlace) -> str:
    """The text of a line, without indentation; empty if the source is not known."""
    return linecache.getline(place.filename, place.line).strip()


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
