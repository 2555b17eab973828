"""Calls that start a debugger, or set a function that is told of every line: the frame is looked at from its first line
to its last, and so it is not compiled.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stator.dynamo.interpreter.calling import calls, named_handlers
from stator.dynamo.values.base import Value, unsupported

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@calls(breakpoint)
@named_handlers.register(
    ("pdb", "set_trace"),
    ("bdb", "set_trace"),
    ("ipdb.__main__", "set_trace"),
    ("pudb", "set_trace"),
    ("debugpy.public_api", "breakpoint"),
    ("IPython.core.debugger", "set_trace"),
    ("IPython.terminal.embed", "embed"),
    ("torch.distributed", "breakpoint"),
)
def _debugger(context: CaptureContext, *args: Value, **kwargs: Any) -> Value:
    raise unsupported("debugger", "a debugger starts here, which is to see the frame as it is")


_WATCHERS = [sys.settrace, sys.setprofile]
if sys.version_info >= (3, 12):
    _WATCHERS += [sys.monitoring.set_events, sys.monitoring.set_local_events]


@calls(*_WATCHERS)
def _traced(context: CaptureContext, *args: Value, **kwargs: Any) -> Value:
    raise unsupported("debugger", "a function is set here that is told of every line or call, which are to happen")
