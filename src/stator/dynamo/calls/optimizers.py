"""What torch.optim calls around its arithmetic: profiler labels and break requests, which change nothing computed.

How the arithmetic is captured is nobody's special business: optimizers are inlined like any other Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.autograd.profiler import record_function
from torch.optim import Optimizer

from ..calling import calls, named_handlers
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue
from ..values.mappings import DictValue

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
    """Optimizers ask for one so that torch's own compiler sees their grad mode; here modes are part of the graph."""
    if tracer.frames[-1].globals.names.get("__name__") == "torch.optim.optimizer":
        return ConstantValue(None)
    raise unsupported("requested", "the program asks for a graph break")


@calls(
    *{
        vars(Optimizer)[name]
        for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
        if name in vars(Optimizer)
    }
)
def _step_begins(tracer: Tracer, optimizer: Value) -> Value:
    """Every step calls this first. Optimizers with a `capturable` option decide by numbers that they read back from
    tensors unless it is on; so it reads as on until the step is over."""
    for group in tracer.iterate(tracer.get_attr(optimizer, "param_groups")):
        if isinstance(group, DictValue) and group.find(tracer, "capturable") is not None:
            tracer.overlaid.append((group, "capturable", group.entries["capturable"]))
            group.entries["capturable"] = ConstantValue(True)
    return ConstantValue(None)


@calls(Optimizer._optimizer_step_code)
def _step_is_over(tracer: Tracer, optimizer: Value) -> Value:
    """Called by every step at its end."""
    while tracer.overlaid:
        mapping, key, value = tracer.overlaid.pop()
        mapping.entries[key] = value
    return ConstantValue(None)
