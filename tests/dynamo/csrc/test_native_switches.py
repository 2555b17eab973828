"""What makes compiled functions run their originals: blocks, the stance, debuggers; and the end of the C stack.

Runs under every supported interpreter, without torch (see test_interpreters.py).
"""

import bdb
import contextvars
import sys
import threading
import types
from dataclasses import dataclass

from driving import driven

from stator.dynamo.cache.compiled_frames import CompiledFrame, make_cache
from stator.dynamo.host import debuggers, stance
from stator.dynamo.host.native_status import native


@dataclass(frozen=True)
class Options:
    recompile_limit: int = 8


def original(a):
    return "original"


def instead(a):
    return "compiled"


def entry_of(function=original, code=instead.__code__):
    cache = make_cache(function.__code__, driven(lambda function, bound: CompiledFrame([], code)), Options())
    return native.Entry(function, cache)


def test_blocks_count():
    entry = entry_of()
    assert entry(1) == "compiled"
    native.switch_entries(True)
    native.switch_entries(True)
    assert entry(1) == "original"
    native.switch_entries(False)
    assert entry(1) == "original"
    native.switch_entries(False)
    assert entry(1) == "compiled"


def test_the_stance_of_the_context_counts():
    entry = entry_of()
    token = stance.set_stance("force_eager")
    try:
        assert entry(1) == "original" and native.runs_originals()
        assert contextvars.Context().run(entry, 1) == "compiled"
        found = []
        thread = threading.Thread(target=lambda: found.append(entry(1)))
        thread.start()
        thread.join()
        assert found == ["compiled"]
    finally:
        stance.reset_stance(token)
    assert entry(1) == "compiled"


def test_a_stance_may_be_put_back_in_another_context():
    token = contextvars.copy_context().run(stance.set_stance, "force_eager")
    stance.reset_stance(token)
    assert stance.may_compile("any frame", [])


class Debugger(bdb.Bdb):
    def __init__(self):
        super().__init__()
        self.lines = []

    def user_line(self, frame):
        if frame.f_code.co_name == "original":
            self.lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
        self.set_step()


def test_under_a_debugger_originals_run_line_by_line():
    entry = entry_of()
    before = sys.gettrace()
    debugger = Debugger()
    result = debugger.runcall(entry, 1)
    sys.settrace(before)
    assert result == "original" and debugger.lines == [1]
    assert entry(1) == "compiled"


def test_under_other_trace_functions_compiled_code_runs():
    entry, before, names = entry_of(), sys.gettrace(), []

    def coverage(frame, event, argument):
        names.append(frame.f_code.co_name)

    sys.settrace(coverage)
    result = entry(1)
    sys.settrace(before)
    assert result == "compiled" and "instead" in names


def test_a_debugger_is_known_by_its_class_or_its_module():
    assert debuggers.is_debugger(Debugger().trace_dispatch)
    pydevd = types.FunctionType(original.__code__, {"__name__": "_pydevd_bundle.pydevd_trace_dispatch"})
    assert debuggers.is_debugger(pydevd)
    assert not debuggers.is_debugger(original)


def test_a_debugger_that_uses_monitoring():
    if sys.version_info < (3, 12):
        return
    entry = entry_of()
    sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "coverage")
    assert entry(1) == "compiled"
    sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)
    sys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, "debugger")
    try:
        assert entry(1) == "original"
    finally:
        sys.monitoring.free_tool_id(sys.monitoring.DEBUGGER_ID)
    assert entry(1) == "compiled"


def test_profilers_are_not_compiled_by_the_hook():
    from stator.dynamo.host.hook import call_with_hook

    asked = []

    def callback(function):
        asked.append(function.__name__)

    def profile(frame, event, argument):
        profiled()

    def profiled():
        return None

    def program():
        return 1

    before = sys.getprofile()
    sys.setprofile(profile)
    call_with_hook(callback, program)
    sys.setprofile(before)
    assert asked == ["program"]


def deep(n):
    return n if n == 0 else again(n - 1)


again = entry_of(deep, None)


def test_a_recursion_that_would_use_up_the_stack_is_a_recursion_error():
    def run():
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(1_000_000)
        try:
            again(900_000)
        except RecursionError as error:
            results.append(str(error))
        finally:
            sys.setrecursionlimit(before)
        results.append(again(20))

    results = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(results) == 2 and "recursion" in results[0] and results[1] == 0
