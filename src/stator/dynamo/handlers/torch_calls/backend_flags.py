"""Flags of torch.backends. Capture sets those of cuDNN (`torch.backends.cudnn.flags`) and of attention kernels
(`torch.nn.attention.sdpa_kernel`); it reads the other flags under a guard, and the graph ends where the program changes
one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.ir.torch_state import BACKEND_FLAGS
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue
from stator.graph.operators.attention_settings import kernel_order

from .torch_functions import set_state


def _guarded(context: CaptureContext, read: Callable[[], Any]) -> Value:
    value = context.run_real(read, ())
    context.guard(CallSource(read), GuardKind.EQUALS, value)
    return context.wrap_result(value, f"the result of {read.__name__}")


def _flag(read: Callable[[], Any], write: Callable[[Any], None]) -> None:
    def get(context: CaptureContext) -> Value:
        if read in context.recorder.backend_flags_set:
            return context.wrap_result(read(), f"the result of {read.__name__}")
        return _guarded(context, read)

    def set_(context: CaptureContext, value: Value) -> Value:
        context.recorder.backend_flags_set.add(read)
        return set_state(context, write, value)

    calls(read)(get)
    calls(write)(set_)


for _read, _write in BACKEND_FLAGS:
    _flag(_read, _write)


if hasattr(torch._C, "_get_sdp_priority_order"):

    @calls(torch._C._get_sdp_priority_order)
    def _priority(context: CaptureContext) -> Value:
        return ListValue(list(context.iterate(context.call(context.known(kernel_order), [], {}))))


@functools.cache
def _precision(backend: str, operators: str) -> Callable[[], str]:
    def float32_precision() -> str:
        return torch._C._get_fp32_precision_getter(backend, operators)

    return float32_precision


@calls(torch._C._get_fp32_precision_getter)
def _get_precision(context: CaptureContext, backend: Value, operators: Value) -> Value:
    names = [context.constant_of(name, "a name of operators") for name in (backend, operators)]
    return _guarded(context, _precision(*names))


def _read_only(read: Callable[[], Any]) -> None:
    calls(read)(lambda context: _guarded(context, read))


for _name in (
    "cudnn_allow_tf32",
    "onednn_allow_tf32",
    "mkldnn_enabled",
    "mkldnn_deterministic",
    "cublas_allow_tf32",
    "float32_matmul_precision",
):
    if hasattr(torch._C, f"_get_{_name}"):
        _read_only(getattr(torch._C, f"_get_{_name}"))


def _unchanged(context: CaptureContext, read: Callable[[], Any], wanted: Value) -> Value:
    """A setter that `cudnn.flags` calls with the present value; another value ends the graph."""
    value = context.constant_of(wanted, "a flag of torch.backends")
    if context.constant_of(_guarded(context, read), "a flag") != value:
        raise unsupported("call-builtin", f"setting a flag of torch.backends to {value!r}", _SET_OUTSIDE)
    return ConstantValue(None)


_SET_OUTSIDE = "set it outside of the compiled function, or accept the break"


@calls(torch._C._set_cudnn_allow_tf32)
def _set_allow_tf32(context: CaptureContext, wanted: Value) -> Value:
    return _unchanged(context, torch._C._get_cudnn_allow_tf32, wanted)


@calls(torch._C._set_fp32_precision_setter)
def _set_precision(context: CaptureContext, backend: Value, operators: Value, wanted: Value) -> Value:
    names = [context.constant_of(name, "a name of operators") for name in (backend, operators)]
    return _unchanged(context, _precision(*names), wanted)
