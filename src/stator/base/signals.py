"""Recognises exceptions that a signal handler of the program raised. Such an exception may come at any point and
belongs to the program, so it must pass through stator's own error handling."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler written in Python raised this."""
    if threading.current_thread() is not threading.main_thread():
        return False  # no handlers run in this thread
    codes = [code for number in signal.valid_signals() for code in _code_of(signal.getsignal(number))]
    # by identity: equal code may belong to another function, and some constants have no hash
    handlers = set(map(id, codes))
    entry = error.__traceback__ if handlers else None
    while entry is not None:
        if id(entry.tb_frame.f_code) in handlers:
            return True
        entry = entry.tb_next
    return False


def _code_of(handler: Any) -> Iterator[CodeType]:
    """Yield the code that runs when a signal handler is called, if it is written in Python."""
    for function in (handler, getattr(handler, "__func__", None), type(handler).__call__) if callable(handler) else ():
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
