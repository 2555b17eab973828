"""The frame hook: swapping code in place, leaving everything else alone, and never outliving its call.

Runs without torch and without pytest's features, so that test_interpreters.py can run it under other interpreters.
"""

import asyncio
import contextlib
import gc
import sys
import threading
import traceback
import warnings
import weakref
from dataclasses import dataclass

from driving import driven

from stator.base import logs
from stator.dynamo.cache.compiled_frames import CompiledFrame, make_cache, reset
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import LocalSource
from stator.dynamo.host import hook
from stator.dynamo.host.hook import call_with_hook, mark_as_ours
from stator.dynamo.host.native_status import native


@dataclass
class Options:
    recompile_limit: int = 8


def causes_internal_errors(test):
    """A test that means to: every other one fails where one makes a frame run eagerly."""
    test.internal_errors = True
    return test


class Policy:
    """A hook callback: `replacements` maps a function's name to the code that runs instead; others are left alone."""

    def __init__(self, guard=True, **replacements):
        self.guard, self.replacements, self.asked, self.compiled, self.caches = guard, replacements, [], [], []

    def __call__(self, function):
        self.asked.append(function.__name__)
        if function.__name__ not in self.replacements:
            return None
        self.caches.append(make_cache(function.__code__, driven(self.compile_frame), Options(), as_function=False))
        return self.caches[-1]

    def compile_frame(self, function, bound):
        self.compiled.append((function.__name__, dict(bound)))
        guards = [Guard(LocalSource(name), GuardKind.TYPE, type(value)) for name, value in bound.items()]
        replacement = self.replacements[function.__name__]
        return CompiledFrame(guards if self.guard else [], replacement and replacement.__code__)


def same_but_new(function):
    """The function with an equal code object of its own."""
    return type(function)(function.__code__.replace(co_name="new_" + function.__name__), function.__globals__)


def small(x, y):
    return x + y


def large(x, y):
    a, b, c = 1, 2, 3
    return ["large", x, y, a + b + c, [x, y, a, b, c, (x, y, a, (b, c, x))]]


def caller(x):
    return small(x, 1), small(x, 2)


def test_a_frame_below_gets_the_new_code():
    policy = Policy(small=large)
    expected = [large(5, 1), large(5, 2)]
    assert list(call_with_hook(policy, caller, 5)) == expected
    assert list(call_with_hook(policy, caller, 5)) == expected
    assert policy.asked == ["caller", "small"] and len(policy.compiled) == 1
    assert caller(5) == (6, 7), "the hook is off again"


def test_the_called_function_itself_gets_the_new_code():
    assert call_with_hook(Policy(small=large), small, 1, y=2) == large(1, 2)


def test_guards_choose_among_versions():
    policy = Policy(small=large)

    def both():
        return small(1, 2), small("a", "b"), small(3, 4), small("c", "d")

    assert call_with_hook(policy, both) == (large(1, 2), large("a", "b"), large(3, 4), large("c", "d"))
    assert [bound["x"] for _, bound in policy.compiled] == [1, "a"]


def test_no_code_leaves_the_original():
    policy = Policy(small=None)
    assert call_with_hook(policy, caller, 5) == (6, 7)
    assert len(policy.compiled) == 1


def test_closures_cells_defaults_and_keywords():
    def make(k):
        def inner(x, *args, w=5, **more):
            def deep():
                return k + x

            return deep() + w

        def instead(x, *args, w=5, **more):
            held = [k, x, args, w, more]

            def deep():
                return -(k + x)

            return deep(), held

        return inner, instead

    inner, instead = make(10)
    policy = Policy(inner=instead, guard=False)
    calls = (lambda: inner(1), lambda: inner(1, 2, 3), lambda: inner(1, w=7, z=8), lambda: inner(x=4))
    assert call_with_hook(policy, calls[0]) == (-11, [10, 1, (), 5, {}])
    assert call_with_hook(policy, calls[1]) == (-11, [10, 1, (2, 3), 5, {}])
    assert call_with_hook(policy, calls[2]) == (-11, [10, 1, (), 7, {"z": 8}])
    assert call_with_hook(policy, calls[3]) == (-14, [10, 4, (), 5, {}])
    other, _ = make(100)
    assert call_with_hook(policy, other, 1) == (-101, [100, 1, (), 5, {}]), "another closure of the same code"


def test_exceptions_pass_with_their_traceback_and_the_hook_goes_off():
    def failing(x):
        raise ValueError(x)

    def failing_newly(x):
        spare = [x] * 3
        raise KeyError(x, spare)

    def outer():
        return failing(3)

    try:
        call_with_hook(Policy(failing=failing_newly), outer)
    except KeyError as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert error.args == (3, [3, 3, 3]) and names[-2:] == ["outer", "failing_newly"]
    else:
        raise AssertionError("the exception was lost")
    assert native.hook_users() == 0 and not hook.active()


def test_the_hook_is_off_while_compiling_and_in_compiled_code():
    seen = []

    def probe():
        seen.append(hook.active())

    def watched(x):
        probe()
        return x

    def watched_newly(x):
        probe()
        return -x

    policy = Policy(watched=watched_newly)
    compile_frame = policy.compile_frame
    policy.compile_frame = lambda function, bound: (probe(), compile_frame(function, bound))[1]
    assert call_with_hook(policy, watched, 1) == -1
    assert seen == [False, False]
    call_with_hook(policy, probe)
    assert seen == [False, False, True]


def test_python_that_runs_while_the_hook_decides_is_not_hooked():
    """Guards, and weak reference callbacks of what is let go, may be Python functions of the user."""

    def always(value):
        return True

    def on_death(_):
        deaths.append(hook.active())

    def callback(function):
        asked.append(function.__name__)
        cache = make_cache(function.__code__, driven(compile_frame), Options(), as_function=False)
        references.append(weakref.ref(cache, on_death))
        return cache  # kept by nobody: it dies when the frame has its code

    def compile_frame(function, bound):
        return CompiledFrame([Guard(LocalSource("x"), GuardKind.PREDICATE, always)], large.__code__)

    asked, references, deaths = [], [], []
    for _ in range(2):
        assert call_with_hook(callback, small, 1, 2) == large(1, 2)
    assert asked == ["small", "small"] and deaths == [False, False]


def test_arguments_and_results_are_given_back():
    class Thing:
        pass

    thing = Thing()

    def use(thing, other):
        return 1

    def use_newly(thing, other):
        kept = [thing, other]
        if other == 7:
            raise ValueError(kept)
        return kept

    policy = Policy(use=use_newly)

    def work():
        for i in range(200):
            with contextlib.suppress(ValueError):
                use(thing, i % 10)  # noqa: F821

    call_with_hook(policy, work)
    gc.collect()
    before = sys.getrefcount(thing)
    call_with_hook(policy, work)
    gc.collect()
    assert sys.getrefcount(thing) == before
    gone = weakref.ref(thing)
    del thing
    policy.compiled.clear()
    gc.collect()
    assert gone() is None


def descend(n):
    return 0 if n == 0 else 1 + descend(n - 1)


def descend_newly(n):
    a = [n] * 3
    b = (a, n, [a, [n, [n, [n, (n, n, n)]]]])
    return 0 if n == 0 else 1 + call_with_hook(deep_policy, descend, n - 1) + (b is None)


def at_depth(n, function):
    return function() if n == 0 else at_depth(n - 1, function)


deep_policy = Policy(descend=descend_newly)


def test_deep_recursion_crosses_the_chunks_of_the_data_stack():
    before = native.hook_statistics()
    for base in range(60):
        assert at_depth(base, lambda: call_with_hook(deep_policy, descend, 90)) == 90
    after = native.hook_statistics()
    assert after["swapped"] > before["swapped"]
    assert after["called"] > before["called"], "no frame ever met the end of a chunk: the test is too shallow"


def test_endless_recursion_is_a_recursion_error():
    def endless(n):
        return endless(n + 1)

    def endless_newly(n):
        spare = [n, n]
        return endless(n + 1), spare

    for policy in (Policy(), Policy(endless=endless_newly)):
        try:
            call_with_hook(policy, endless, 0)
        except RecursionError:
            pass
        else:
            raise AssertionError("no RecursionError")
        assert native.hook_users() == 0


def test_generators_and_coroutines_run_by_themselves():
    def numbers():
        yield from (small(1, 2), 2)

    async def later():
        await asyncio.sleep(0)
        return small(3, 4)

    def work():
        return list(numbers()), asyncio.run(later()), [small(i, 0) for i in range(3)]

    policy = Policy()
    assert call_with_hook(policy, work) == ([3, 2], 7, [0, 1, 2])
    assert "small" in policy.asked and not {"numbers", "later"} & set(policy.asked)


def test_other_threads_are_not_affected():
    policy = Policy(small=large)
    inside, checked = threading.Event(), threading.Event()
    results = []

    def other():
        assert inside.wait(20)
        results.append((small(1, 2), hook.active(), native.hook_users()))
        checked.set()

    def work():
        inside.set()
        assert checked.wait(20)
        return small(1, 2)

    thread = threading.Thread(target=other)
    thread.start()
    assert call_with_hook(policy, work) == large(1, 2)
    thread.join()
    assert results == [(3, False, 1)]


def test_threads_may_use_the_hook_at_once():
    wrong = []

    def work(policy, expected):
        for i in range(300):
            if call_with_hook(policy, caller, i) != expected(i):
                wrong.append(i)

    swapped = Policy(small=large)
    plain = Policy()
    threads = [
        threading.Thread(target=work, args=(swapped, lambda i: (large(i, 1), large(i, 2)))),
        threading.Thread(target=work, args=(plain, lambda i: (i + 1, i + 2))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and native.hook_users() == 0


def test_nested_hooks_use_the_innermost_callback():
    def inner_call(x):
        return call_with_hook(inner, small, x, 1), small(x, 1)

    inner, outer = Policy(small=large), Policy()
    assert call_with_hook(outer, inner_call, 5) == (large(5, 1), 6)
    assert "inner_call" in outer.asked and inner.asked == ["small"]


def test_a_callback_of_none_turns_the_hook_off():
    def work():
        return call_with_hook(None, small, 1, 2), small(1, 2)

    assert call_with_hook(Policy(small=large), work) == (3, large(1, 2))


def test_each_callback_has_versions_of_its_own():
    first, second = Policy(small=large), Policy(small=None)
    for _ in range(2):
        assert call_with_hook(first, small, 1, 2) == large(1, 2)
        assert call_with_hook(second, small, 1, 2) == 3
    assert first.asked == second.asked == ["small"]


def test_code_marked_never_to_compile_runs_unhooked():
    def hidden(x):
        return small(x, 1), hook.active()

    mark_as_ours(hidden.__code__)
    policy = Policy(small=large, hidden=large)
    assert call_with_hook(policy, hidden, 1) == (2, False)
    assert policy.asked == []


def looks(seen, act):
    seen.append(native.hook_is_there())


def looks_and_acts(seen, act):
    seen.append(native.hook_is_there())
    act()
    seen.append(native.hook_is_there())


def test_the_interpreter_is_without_the_hook_while_no_thread_needs_it():
    seen = []

    def nested():
        native.hook_on(policy)
        seen.append(native.hook_is_there())
        native.hook_off()

    def work():
        looks(seen, nested)
        seen.append(native.hook_is_there())

    policy = Policy(looks=looks_and_acts)
    call_with_hook(policy, work)
    assert seen == [False, True, False, True] and not native.hook_is_there()


def test_the_hook_stays_for_another_thread_that_needs_it():
    seen, others = [], []
    begin, ready, end = threading.Event(), threading.Event(), threading.Event()

    def other():
        assert begin.wait(20)
        others.append((small(1, 2), native.hook_is_there()))
        call_with_hook(Policy(small=large), lambda: (others.append(small(1, 2)), ready.set(), end.wait(20)))

    def act():
        begin.set()
        assert ready.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        call_with_hook(Policy(looks=looks_and_acts), lambda: looks(seen, act))
    finally:
        end.set()
        thread.join()
    assert seen == [False, True], "the other thread had begun a call under the hook"
    assert others == [(3, False), large(1, 2)] and not native.hook_is_there()


def test_the_hook_is_there_again_behind_an_exception():
    def failing():
        raise KeyError("expected")

    def work():
        seen = []
        with contextlib.suppress(KeyError):
            looks(seen, failing)
        return seen, native.hook_is_there(), small(1, 2)

    assert call_with_hook(Policy(looks=looks_and_acts, small=large), work) == ([False], True, large(1, 2))
    assert not native.hook_is_there()


def test_the_standard_library_is_left_alone_but_not_what_it_calls():
    def user_key(x):
        return small(x, 0)

    policy, results = Policy(small=large), []
    call_with_hook(policy, through_the_standard_library, user_key, results)
    assert results == [large(1, 0)]
    assert policy.asked == ["through_the_standard_library", "<lambda>", "user_key", "small"]


def through_the_standard_library(function, results):
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: results.append(function(1)))


def test_an_entry_that_gave_up_is_not_compiled_again_by_the_hook():
    def given_up(x):
        return small(x, 1)

    cache = make_cache(given_up.__code__, None, Options())
    cache.eager = True
    entry = native.Entry(given_up, cache)
    policy = Policy(given_up=large, small=large)
    assert call_with_hook(policy, entry, 4) == large(4, 1)
    assert policy.asked == ["small"]


def test_compiled_code_called_through_an_entry_is_not_compiled_again():
    function = same_but_new(small)
    cache = make_cache(
        function.__code__,
        driven(lambda f, bound: CompiledFrame([], large.__code__.replace(co_name="target"))),
        Options(),
    )
    entry = native.Entry(function, cache)
    policy = Policy()
    assert call_with_hook(policy, entry, 1, 2) == large(1, 2)
    assert policy.asked == []


def test_an_error_in_the_callback_is_raised_and_nothing_breaks():
    class Broken(Exception):
        pass

    class Thing:
        pass

    def callback(function):
        raise Broken

    thing = Thing()
    gc.collect()
    before = sys.getrefcount(thing)
    for _ in range(20):
        try:
            call_with_hook(callback, same_but_new(small), thing, 2)
        except Broken:
            pass
        else:
            raise AssertionError("the error was swallowed")
    gc.collect()
    assert sys.getrefcount(thing) == before
    assert small(1, 2) == 3


@causes_internal_errors
def test_an_error_of_the_compiler_leaves_the_original():
    def broken(function, bound):
        raise RuntimeError("cannot")

    caches = []

    def callback(function):
        caches.append(make_cache(function.__code__, driven(broken), Options(), as_function=False))
        return caches[-1]

    function = same_but_new(small)
    logs.forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [call_with_hook(callback, function, 1, 2) for _ in range(3)] == [3, 3, 3]
    assert len(caught) == 1 and "cannot" in str(caught[0].message) and len(caches) == 1


def test_reset_forgets_what_callbacks_said():
    policy = Policy(small=large)
    call_with_hook(policy, small, 1, 2)
    reset()
    call_with_hook(policy, small, 1, 2)
    assert policy.asked == ["small", "small"] and len(policy.compiled) == 2


def test_code_objects_keep_no_callback_alive():
    for _ in range(3):
        policy = Policy(small=large)
        assert call_with_hook(policy, small, 1, 2) == large(1, 2)
        assert call_with_hook(policy, small, 1, 2) == large(1, 2) and policy.asked == ["small"]
        gone = weakref.ref(policy)
        del policy
        gc.collect()
        assert gone() is None


def test_what_compiled_code_holds_is_freed_with_the_callback():
    class Held:
        pass

    policy = Policy()
    policy.held = Held()

    def small_newly(x, y):
        return "constant"

    constants = tuple(policy if constant == "constant" else constant for constant in small_newly.__code__.co_consts)
    code = small_newly.__code__.replace(co_consts=constants)
    policy.replacements["small"] = type(small)(code, {})
    del code, constants
    assert call_with_hook(policy, small, 1, 2) is policy
    policy.replacements.clear()
    gone = weakref.ref(policy.held)
    del policy
    gc.collect()
    assert gone() is None


def test_tracing_functions_see_the_frames():
    lines = []

    def tracer(frame, event, argument):
        lines.append((frame.f_code.co_name, event))
        return tracer

    def work():
        return small(1, 2)

    policy = Policy(small=large)
    call_with_hook(policy, work)
    sys.settrace(tracer)
    try:
        assert call_with_hook(policy, work) == large(1, 2)
    finally:
        sys.settrace(None)
    assert ("work", "call") in lines and ("large", "return") in lines


def test_what_a_collection_runs_is_left_alone():
    called = []

    def told(phase, info):
        called.append(phase)

    class Finalized:
        def __del__(self):
            called.append("finalized")

    def work():
        one = Finalized()
        one.itself = one
        del one
        gc.collect()
        return small(1, 2)

    policy = Policy(small=large)
    gc.collect()
    gc.callbacks.append(told)
    try:
        assert call_with_hook(policy, work) == large(1, 2)
    finally:
        gc.callbacks.remove(told)
    assert called == ["start", "finalized", "stop"]
    assert policy.asked == ["work", "small"]
