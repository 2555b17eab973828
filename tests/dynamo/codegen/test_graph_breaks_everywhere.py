"""A graph may have to end before any instruction that can fail. Here it is made to end before each of them in turn."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_outcome, observe
from tests.programs.language import control_flow, values

import stator
from stator.base.errors import Unsupported, UserPlace
from stator.dynamo import capture, frame_compiler
from stator.dynamo.ir.capture_assumptions import CaptureAssumptions, GraphEnd, Retry
from stator.dynamo.ir.capture_result import Break, BreakReason
from stator.dynamo.ir.prepared_code import prepare_code

PROGRAMS = [control_flow.closure, control_flow.comprehension_closures, control_flow.exceptions, control_flow.generators]
PROGRAMS += [control_flow.no_grad_, control_flow.varargs, control_flow.with_contextmanager]
PROGRAMS += [values.dict_ops, values.namedtuples]
CAN_FAIL = ("CALL", "BINARY", "COMPARE", "LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "STORE_ATTR", "STORE_SUBSCR",
            "DELETE_SUBSCR", "GET_ITER", "FOR_ITER", "UNPACK", "POP_JUMP", "CONTAINS", "FORMAT", "BEFORE_WITH", "RAISE",
            "SEND", "LIST_EXTEND", "DICT_", "BUILD_MAP", "BUILD_SET", "WITH_EXCEPT", "UNARY")  # fmt: skip


class EndingAt:
    """Stands in for `capture`: frames of `code` end before `step`. `reached` tells whether there was such a step."""

    def __init__(self, code, step):
        self.code, self.step, self.reached = code, step, False

    def __call__(self, function, arguments, assumptions, **settings):
        if function.__code__ is not self.code:
            return capture.capture(function, arguments, assumptions, **settings)
        reason = BreakReason("forced", "a test", UserPlace(self.code.co_filename, 0, function.__name__))
        try:
            captured = capture.capture(
                function, arguments, CaptureAssumptions(end=GraphEnd(self.step, reason, self.step)), **settings
            )
        except Retry:
            self.reached = True
        except Unsupported as error:
            self.reached = error.kind == "reconstruct"
        else:
            self.reached = isinstance(captured.exit, Break)
            if self.reached and _operation(self.code, captured.exit).startswith(CAN_FAIL):
                return captured
        return capture.capture(function, arguments, assumptions, **settings)


def _operation(code, exit_):
    """The instruction that is to run natively, of the innermost frame that the graph ends in."""
    last = exit_.inner[-1] if exit_.inner else exit_
    code, index = (last.code, last.index) if exit_.inner else (code, last.index)
    return prepare_code(code).instructions[index].opname


@pytest.mark.parametrize("function", PROGRAMS)
def test_the_rest_goes_on_right(function, monkeypatch):
    expected = observe(function, (torch.arange(6.0).reshape(2, 3),))
    ends = 0
    for step in range(len(function.__name__) % 2, 400, 2):  # every second one: each is a compilation
        ending = EndingAt(function.__code__, step)
        monkeypatch.setattr(frame_compiler, "capture", ending)
        stator.reset()
        found = observe(stator.compile(function, backend="eager"), (torch.arange(6.0).reshape(2, 3),))
        assert not found.said, f"ended before step {step}"
        assert_same_outcome(found, expected)
        if not ending.reached:
            break
        ends += 1
    assert ends > 3
