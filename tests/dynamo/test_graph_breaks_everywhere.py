"""A graph may have to end before any instruction that can fail. Here it is made to end before each of them in turn."""

from __future__ import annotations

import pytest
import test_interpreter_programs
import test_values_programs
from capturing import assert_same

import stator
from stator.base.errors import Unsupported, UserPlace
from stator.dynamo import capture, frame_compiler
from stator.dynamo.interpreter.prepared_code import program_of
from stator.dynamo.ir.capture_result import Break, BreakReason

NAMES = {
    "closure",
    "comprehension_closures",
    "exceptions",
    "generators",
    "mutate_containers",
    "mutate_object",
    "no_grad_",
    "varargs",
    "with_contextmanager",
    "dict_ops",
    "namedtuples",
}
CASES = [
    case for case in test_interpreter_programs.PROGRAMS + test_values_programs.PROGRAMS if case[0].__name__ in NAMES
]
CAN_FAIL = ("CALL", "BINARY", "COMPARE", "LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "STORE_ATTR", "STORE_SUBSCR",
            "DELETE_SUBSCR", "GET_ITER", "FOR_ITER", "UNPACK", "POP_JUMP", "CONTAINS", "FORMAT", "BEFORE_WITH", "RAISE",
            "SEND", "LIST_EXTEND", "DICT_", "BUILD_MAP", "BUILD_SET", "WITH_EXCEPT", "UNARY")  # fmt: skip


class EndingAt:
    """Stands in for `capture`: frames of `code` end before `step`. `reached` tells whether there was such a step."""

    def __init__(self, code, step):
        self.code, self.step, self.reached = code, step, False

    def __call__(self, function, arguments, **settings):
        if function.__code__ is not self.code:
            return capture.capture(function, arguments, **settings)
        reason = BreakReason("forced", "a test", UserPlace(self.code.co_filename, 0, function.__name__))
        try:
            captured = capture._Attempt(function, arguments, self.step, reason, [], capture.Told(), nested=True).run()
        except capture._Restart:
            self.reached = True
        except Unsupported as error:
            self.reached = error.kind == "reconstruct"
        else:
            self.reached = isinstance(captured.exit, Break)
            if self.reached and _operation(self.code, captured.exit).startswith(CAN_FAIL):
                return captured
        return capture.capture(function, arguments, **settings)


def _operation(code, exit_):
    """The instruction that is to run natively, of the innermost frame that the graph ends in."""
    last = exit_.inner[-1] if exit_.inner else exit_
    code, index = (last.code, last.index) if exit_.inner else (code, last.index)
    if last.steps is not None:  # the generator does it, whose next item that instruction gets
        code, index = last.steps.code, last.steps.place.index
    return program_of(code).instructions[index].opname


@pytest.mark.filterwarnings("error:stator")  # an error of the compiler would be hidden by its running eagerly
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_the_rest_goes_on_right(case, monkeypatch):
    function, makers = case
    expected_args = [make() for make in makers]
    expected = function(*expected_args)
    ends = 0
    for step in range(400):
        ending = EndingAt(function.__code__, step)
        monkeypatch.setattr(frame_compiler, "capture", ending)
        stator.reset()
        args = [make() for make in makers]
        actual = stator.compile(function, backend="eager")(*args)
        assert_same((expected, expected_args), (actual, args), f"ended before step {step}: {function.__name__}")
        if not ending.reached:
            break
        ends += 1
    assert ends > 5
