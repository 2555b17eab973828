"""Switches of cuDNN, as `torch.backends.cudnn.flags` reads and sets them, and of kinds of attention, as
`torch.nn.attention.sdpa_kernel` does: relied on, and set for real while capturing.

Precision of float32 is only relied on: where the program changes it, the graph ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..calling import calls
from ..guard import GuardKind
from ..source import CallSource
from ..torch_state import SWITCHES, sdp_priority
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue
from ..values.sequences import ListValue
from .torch_functions import set_state

if TYPE_CHECKING:
    from ..tracer import Tracer


def _relied_on(tracer: Tracer, read: Callable[[], Any]) -> Any:
    value = tracer.run_real(read, ())
    tracer.guard(CallSource(read), GuardKind.EQUALS, value)
    return value


def _switch(read: Callable[[], Any], write: Callable[[Any], None]) -> None:
    def asked(tracer: Tracer) -> Value:
        value = read() if read in tracer.recorder.switched else _relied_on(tracer, read)
        return tracer.wrap_result(value, f"the result of {read.__name__}")

    def written(tracer: Tracer, value: Value) -> Value:
        tracer.recorder.switched.add(read)
        return set_state(tracer, write, value)

    calls(read)(asked)
    calls(write)(written)


for _read, _write in SWITCHES:
    _switch(_read, _write)


if hasattr(torch._C, "_get_sdp_priority_order"):

    @calls(torch._C._get_sdp_priority_order)
    def _priority(tracer: Tracer) -> Value:
        return ListValue(list(tracer.iterate(tracer.call(tracer.known(sdp_priority), [], {}))))


@functools.cache
def _precision(backend: str, operators: str) -> Callable[[], str]:
    def float32_precision() -> str:
        return torch._C._get_fp32_precision_getter(backend, operators)

    return float32_precision


def _unchanged(tracer: Tracer, read: Callable[[], Any], wanted: Value) -> Value:
    """A setter that sets what is set already; anything else ends the graph."""
    value = tracer.constant_of(wanted, "a switch of torch")
    if _relied_on(tracer, read) != value:
        raise unsupported("call-builtin", f"setting a precision of float32 to {value!r}")
    return ConstantValue(None)


@calls(torch._C._get_fp32_precision_getter)
def _get_precision(tracer: Tracer, backend: Value, operators: Value) -> Value:
    names = [tracer.constant_of(name, "a name of operators") for name in (backend, operators)]
    return ConstantValue(_relied_on(tracer, _precision(*names)))


@calls(torch._C._set_fp32_precision_setter)
def _set_precision(tracer: Tracer, backend: Value, operators: Value, wanted: Value) -> Value:
    names = [tracer.constant_of(name, "a name of operators") for name in (backend, operators)]
    return _unchanged(tracer, _precision(*names), wanted)


@calls(torch._C._get_cudnn_allow_tf32)
def _get_tf32(tracer: Tracer) -> Value:
    return ConstantValue(_relied_on(tracer, torch._C._get_cudnn_allow_tf32))


@calls(torch._C._set_cudnn_allow_tf32)
def _set_tf32(tracer: Tracer, wanted: Value) -> Value:
    return _unchanged(tracer, torch._C._get_cudnn_allow_tf32, wanted)
