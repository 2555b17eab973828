"""Switches of cuDNN, as `torch.backends.cudnn.flags` reads and sets them, and of kinds of attention, as
`torch.nn.attention.sdpa_kernel` does: relied on, and set for real while capturing.

Whether oneDNN is used and the precision of float32 are only relied on: where the program changes them, the graph ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.torch_state import SWITCHES, sdp_priority
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue

from .torch_functions import set_state

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def _relied_on(context: CaptureContext, read: Callable[[], Any]) -> Any:
    value = context.run_real(read, ())
    context.guard(CallSource(read), GuardKind.EQUALS, value)
    return value


def _switch(read: Callable[[], Any], write: Callable[[Any], None]) -> None:
    def asked(context: CaptureContext) -> Value:
        value = read() if read in context.recorder.switched else _relied_on(context, read)
        return context.wrap_result(value, f"the result of {read.__name__}")

    def written(context: CaptureContext, value: Value) -> Value:
        context.recorder.switched.add(read)
        return set_state(context, write, value)

    calls(read)(asked)
    calls(write)(written)


for _read, _write in SWITCHES:
    _switch(_read, _write)


if hasattr(torch._C, "_get_sdp_priority_order"):

    @calls(torch._C._get_sdp_priority_order)
    def _priority(context: CaptureContext) -> Value:
        return ListValue(list(context.iterate(context.call(context.known(sdp_priority), [], {}))))


@functools.cache
def _precision(backend: str, operators: str) -> Callable[[], str]:
    def float32_precision() -> str:
        return torch._C._get_fp32_precision_getter(backend, operators)

    return float32_precision


def _unchanged(context: CaptureContext, read: Callable[[], Any], wanted: Value) -> Value:
    """A setter that sets what is set already; anything else ends the graph."""
    value = context.constant_of(wanted, "a switch of torch")
    if _relied_on(context, read) != value:
        raise unsupported("call-builtin", f"setting a switch of torch's backends to {value!r}", _SET_OUTSIDE)
    return ConstantValue(None)


_SET_OUTSIDE = "set it outside of the compiled function, or accept the break"


@calls(torch._C._get_fp32_precision_getter)
def _get_precision(context: CaptureContext, backend: Value, operators: Value) -> Value:
    names = [context.constant_of(name, "a name of operators") for name in (backend, operators)]
    return ConstantValue(_relied_on(context, _precision(*names)))


@calls(torch._C._set_fp32_precision_setter)
def _set_precision(context: CaptureContext, backend: Value, operators: Value, wanted: Value) -> Value:
    names = [context.constant_of(name, "a name of operators") for name in (backend, operators)]
    return _unchanged(context, _precision(*names), wanted)


def _only_relied_on(read: Callable[[], Any]) -> None:
    calls(read)(lambda context: context.wrap_result(_relied_on(context, read), f"the result of {read.__name__}"))


def _kept(read: Callable[[], Any], write: Any) -> None:
    calls(write)(lambda context, wanted: _unchanged(context, read, wanted))


for _name in ("cudnn_allow_tf32", "onednn_allow_tf32", "mkldnn_enabled", "mkldnn_deterministic"):
    if hasattr(torch._C, f"_get_{_name}") and hasattr(torch._C, f"_set_{_name}"):
        _only_relied_on(getattr(torch._C, f"_get_{_name}"))
        _kept(getattr(torch._C, f"_get_{_name}"), getattr(torch._C, f"_set_{_name}"))
# these set other precisions, too, also where they are what is asked for already: the graph ends
_only_relied_on(torch._C._get_cublas_allow_tf32)
_only_relied_on(torch._C._get_float32_matmul_precision)
