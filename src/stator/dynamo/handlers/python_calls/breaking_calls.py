"""Functions that break the graph wherever captured code calls them, with the reasons that the user is shown; functions
by which a program asks whether it is compiled, or asks for a graph break."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import gc
import json
import re
import sys
import time
import typing
import warnings
import weakref
from typing import Any

import torch
from torch import nn

from stator.base.errors import Unsupported
from stator.dynamo.handlers.polyfills.transformer_encoder import encode
from stator.dynamo.host.compile_status import is_compiling
from stator.dynamo.host.native_status import native
from stator.dynamo.interpreter.calling import Handler, calls, named_handlers, questions
from stator.dynamo.interpreter.nested_break import user_code
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.objects import c_methods


def _breaking(kind: str, reason: str, hint: str | None = None) -> Handler:
    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        raise unsupported(kind, reason, hint)

    return handler


_DEBUGGER = _breaking("debugger", "a debugger starts here, which is to see the frame as it is")
calls(breakpoint)(_DEBUGGER)
named_handlers.register(
    ("pdb", "set_trace"),
    ("bdb", "set_trace"),
    ("ipdb.__main__", "set_trace"),
    ("pudb", "set_trace"),
    ("debugpy.public_api", "breakpoint"),
    ("IPython.core.debugger", "set_trace"),
    ("IPython.terminal.embed", "embed"),
    ("torch.distributed", "breakpoint"),
)(_DEBUGGER)

_TRACERS: list[Any] = [sys.settrace, sys.setprofile]
if sys.version_info >= (3, 12):
    _TRACERS += [sys.monitoring.set_events, sys.monitoring.set_local_events]
calls(*_TRACERS)(_breaking("debugger", "a function is set here that hears of every line or call of this frame"))

calls(sys.getrefcount, sys.getallocatedblocks, gc.get_objects, gc.get_referrers, gc.get_count)(
    _breaking("debugger", "objects or references are counted here, which compiling this frame would add to")
)

calls(builtins.locals, builtins.globals, builtins.dir)(_breaking("call-builtin", "locals(), globals() or dir()"))
calls(builtins.eval, builtins.exec, builtins.compile)(_breaking("call-builtin", "eval(), exec() or compile()"))
calls(builtins.open, builtins.input)(_breaking("call-builtin", "open() or input()"))
calls(builtins.__import__)(_breaking("call-builtin", "__import__()"))
calls(time.time, time.perf_counter, time.monotonic, time.time_ns)(_breaking("call-builtin", "reading the clock"))
calls(json.dumps, json.loads)(_breaking("call-builtin", "JSON text, which would be guarded whole"))
calls(re.finditer)(_breaking("call-builtin", "re.finditer(), an iterator in C"))
calls(typing.get_type_hints)(_breaking("call-builtin", "typing.get_type_hints(), which may evaluate text"))
calls(weakref.ref)(_breaking("new-object", "making a weak reference"))
calls(
    warnings.catch_warnings,
    warnings.catch_warnings.__enter__,
    warnings.catch_warnings.__exit__,
    warnings.simplefilter,
    warnings.filterwarnings,
    warnings.resetwarnings,
)(_breaking("call-builtin", "a change of the filters of warnings, which operators and calls may meet"))
calls(
    builtins.__build_class__,
    type.__new__,
    collections.namedtuple,
    typing.NamedTuple,
    dataclasses.make_dataclass,
    dataclasses._process_class,  # type: ignore[attr-defined]
    functools.total_ordering,
    enum.EnumMeta._create_,  # type: ignore[attr-defined]
)(_breaking("class-definition", "making a class in captured code"))
calls(torch.inference_mode.__enter__, torch.inference_mode.__exit__)(
    _breaking("call-builtin", "a block of torch.inference_mode", "enter it outside, or accept the break")
)

_GENERATOR = _breaking("call-builtin", "a random number generator of torch that is made, seeded, read or set")
calls(torch.Generator, torch.random.manual_seed, torch.random.get_rng_state, torch.random.set_rng_state)(_GENERATOR)
for _name in ("get_state", "initial_seed", "manual_seed", "seed", "set_state"):
    c_methods.register(getattr(torch.Generator, _name))(_GENERATOR)

calls(torch.nn.Buffer)(_breaking("parameter", "making an nn.Buffer", "use register_buffer"))
calls(torch.is_inference)(_breaking("tensor-method", "torch.is_inference"))
calls(torch.func.linearize)(_breaking("function-transform", "torch.func.linearize"))
named_handlers.register(
    ("torch._higher_order_ops.map", "map"),
    ("torch._higher_order_ops.scan", "scan"),
    ("torch._higher_order_ops.utils", "_maybe_compile_and_run_fn"),
    ("torch._ops", "HigherOrderOperator.__call__"),
)(_breaking("function-transform", "an operator of torch._higher_order_ops, which runs as in eager"))
# also the functions that torch wraps around it
named_handlers.register((torch.optim.LBFGS.__module__, torch.optim.LBFGS.step.__qualname__))(
    _breaking("data-dependent-value", "LBFGS.step, which decides by data how often it calls its closure")
)


@named_handlers.register(
    ("torch._dynamo.external_utils", "is_compiling"),
    ("torch._dynamo.eval_frame", "is_compiling"),
)
def _is_compiling(context: CaptureContext) -> ConstantValue:
    asker = user_code(context.frames[-1].program.code)
    if asker is nn.Module._call_impl.__code__:
        return ConstantValue(False)  # compiled or not, hooks marked `always_call` run behind an error as in eager
    if asker is nn.TransformerEncoder.forward.__code__:
        # Compiled encoders keep padding, as the polyfill wants. An encoder in a frame of its own computes as in eager.
        return ConstantValue(len(context.frames) > 1 and context.frames[-2].program.code is encode.__code__)
    context.asked_whether_compiling = True
    if context.assumptions.says_compiling:
        context.recorder.unlike_eager = True
    return ConstantValue(context.assumptions.says_compiling)


_ASKS = (is_compiling, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
calls(*_ASKS)(_is_compiling)
questions.update(_ASKS)


if native is not None:

    @calls(native.arrived, native.going_on)
    def _arrived(context: CaptureContext) -> ConstantValue:
        return ConstantValue(None)


@named_handlers.register(
    ("stator.control", "graph_break"),
    ("torch._dynamo.decorators", "skip_frame"),
    ("torch._dynamo.decorators", "step_unsupported"),
)
def _graph_break(context: CaptureContext, msg: Value | None = None) -> ConstantValue:
    raise break_requested(context, msg)


def break_requested(context: CaptureContext, message: Value | None) -> Unsupported:
    """The error for a call of graph_break(message)."""
    text = message.value if isinstance(message, ConstantValue) and isinstance(message.value, str) else ""
    return unsupported("requested", f"the program asks for a graph break{text and f': {text}'}")
