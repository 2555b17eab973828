"""Whether a handler of signals has raised an exception: such a one comes once, at any point, and is the program's, so
it passes through whatever handles errors of our own.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any


def is_of_a_signal(error: BaseException) -> bool:
    """Whether a handler of signals that is written in Python raised this."""
    if threading.current_thread() is not threading.main_thread():
        return False  # where no handler runs
    codes = [code for number in signal.valid_signals() for code in _code_of(signal.getsignal(number))]
    handlers = set(map(id, codes))  # equal code is not the same, and not all constants of ours have a hash
    entry = error.__traceback__ if handlers else None
    while entry is not None:
        if id(entry.tb_frame.f_code) in handlers:
            return True
        entry = entry.tb_next
    return False


def _code_of(handler: Any) -> Iterator[CodeType]:
    """The code that runs when a handler of signals is called, if it is written in Python."""
    for function in (handler, getattr(handler, "__func__", None), type(handler).__call__) if callable(handler) else ():
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code
