"""What torch.optim calls around its arithmetic: profiler labels and break requests, which change nothing computed.

How the arithmetic is captured is nobody's special business: optimizers are inlined like any other Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.autograd.profiler import record_function

from ..calling import calls, named_handlers
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue

if TYPE_CHECKING:
    from ..tracer import Tracer


@calls(record_function.__enter__)
def _enter_label(tracer: Tracer, label: Value) -> Value:
    """A label for the profiler: what is compiled has none."""
    return label


@calls(record_function.__exit__)
def _exit_label(tracer: Tracer, label: Value, kind: Value, error: Value, traceback: Value) -> Value:
    return ConstantValue(None)


@named_handlers.register(("torch._dynamo.decorators", "graph_break"))
def _graph_break(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    """Optimizers ask for a break so that torch's own compiler sees their grad mode; here modes are part of the graph."""
    if tracer.frames[-1].globals.names.get("__name__") == "torch.optim.optimizer":
        return ConstantValue(None)
    raise unsupported("requested", "the program asks for a graph break")
