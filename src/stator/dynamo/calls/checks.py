"""Checks of the data of tensors that raise where they fail: part of the graph, which fails then.

The frame begins anew by itself after that (failed_graphs.py), and raises what the program raises, at its line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard, cast

import torch

from ..calling import calls
from ..program import Program
from ..values.base import Value, unsupported
from ..values.constants import ConstantValue
from ..values.functions import FunctionValue
from ..values.tensors import TensorValue

if TYPE_CHECKING:
    from ..frame import Frame
    from ..tracer import Tracer

_MOST_INSTRUCTIONS = 80  # of code that makes an exception
_NAME = "a check of the data of a tensor"


def can_check(condition: Value, tracer: Tracer) -> TypeGuard[TensorValue]:
    """Whether the graph can check this: a number not known yet, on the CPU (a failing check breaks other devices)."""
    if not isinstance(condition, TensorValue) or tracer.later is not None:
        return False
    recorder, fake = tracer.recorder, condition.fake
    if recorder.graph is not recorder.root or fake.device.type != "cpu" or fake.numel() != 1:
        return False
    return recorder.known_number(fake) is None


def check(tracer: Tracer, condition: TensorValue) -> None:
    """Let the graph fail where the number is zero. The frame must be able to begin anew then."""
    recorder = tracer.recorder
    recorder.noticed = _NAME
    recorder.keep_repeatable()
    node = recorder.graph.call_function(torch.ops.aten._assert_async.msg, (recorder.node_of(condition), _NAME))
    node.meta["place"] = tracer.place()
    node.meta["example_value"] = None
    recorder.op_count += 1


def passed(frame: Frame, condition: Value, wanted: bool) -> bool:
    """At a conditional jump over code that only raises: whether the graph checks that it is jumped."""
    tracer = frame.tracer
    if not can_check(condition, tracer) or not _only_raises(frame.program, frame.pc):
        return False
    holds = condition if wanted else tracer.record_method("logical_not", [condition], {})
    check(tracer, cast(TensorValue, holds))
    return True


def _only_raises(program: Program, at: int) -> bool:
    for instruction in program.instructions[at : at + _MOST_INSTRUCTIONS]:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if instruction.target is not None or instruction.opname.startswith(("RETURN", "YIELD", "STORE", "DELETE")):
            return False
    return False


@calls(torch._check_tensor_all_with)
def _check_all(tracer: Tracer, error_type: Value, cond: Value, message: Value | None = None) -> Value:
    if isinstance(cond, TensorValue) and cond.fake.dtype is torch.bool and cond.fake.followed_value() is None:  # type: ignore[attr-defined]
        every = tracer.record_function(torch.all, [cond], {})
        if can_check(every, tracer):
            check(tracer, every)
            return ConstantValue(None)
    function = cast(FunctionValue, tracer.known(torch._check_tensor_all_with))
    return tracer.inline(function, [error_type, cond, *([message] if message else [])], {})


@calls(torch._assert)
def _assert(tracer: Tracer, condition: Value, message: Value) -> Value:
    if isinstance(condition, TensorValue) and tracer.recorder.known_number(condition.fake) is None:
        if not can_check(condition, tracer):
            raise unsupported("data-dependent-jump", "torch._assert on the data of a tensor")
        check(tracer, condition)
    elif not tracer.truth(condition):
        raise tracer.raised_with(AssertionError, [message])
    return ConstantValue(None)
