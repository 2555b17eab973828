"""Going on behind a graph break: one frame at any time, arguments that belong to it alone, nothing extra in tracebacks.

Runs without torch and without pytest's features, so that test_interpreters.py can run it under other interpreters.
"""

import gc
import inspect
import sys
import traceback
import types
import weakref
from dataclasses import dataclass

from driving import driven

from stator.dynamo.cache.compiled_frames import CompiledFrame, make_cache
from stator.dynamo.host.hook import call_with_hook
from stator.dynamo.host.native_status import native

arrived = native.arrived


@dataclass
class Options:
    recompile_limit: int = 8


def callback(function):
    """A hook callback that leaves everything alone."""


def continuation(function, compiled=True):
    """Goes on with `function`; by a copy of its code that stands for a compiled version, or by itself."""

    def compile_frame(function, bound):
        return CompiledFrame([], function.__code__.replace(co_name="compiled") if compiled else None)

    cache = make_cache(function.__code__, driven(compile_frame), Options())
    made = native.Continuation(function, cache, callback)
    KEPT.append(cache)
    return made


KEPT = []


def entered(function, emitted):
    """An entry of `function` that runs the code of `emitted`."""
    cache = make_cache(function.__code__, driven(lambda *_: CompiledFrame([], emitted.__code__)), Options())
    KEPT.append(cache)
    return native.Entry(function, cache)


def total(n):
    return sum(range(n + 1))


def total_broken(n):
    return GO_ON(n, 0)


def rest_of_total(n, so_far):
    arrived()
    return so_far if n == 0 else GO_ON(n - 1, so_far + n)


def test_a_hundred_thousand_breaks_are_one_frame():
    global GO_ON
    for compiled in (True, False):
        GO_ON = continuation(rest_of_total, compiled)
        assert entered(total, total_broken)(100_000) == total(100_000)


def test_the_hook_goes_on_too():
    global GO_ON
    GO_ON = continuation(rest_of_total)
    cache = make_cache(
        total.__code__, driven(lambda *_: CompiledFrame([], total_broken.__code__)), Options(), as_function=False
    )
    asked = []

    def of_total(function):
        asked.append(function.__name__)
        return cache if function is total else None

    def caller():
        return total(3000), total(2)

    assert call_with_hook(of_total, caller) == (total(3000), 3)
    assert asked == ["caller", "total"]


def names_of_stack(n):
    return stack_broken(n)


def stack_broken(n):
    return GO_ON(n)


def rest_of_stack(n):
    arrived()
    return [frame.function for frame in inspect.stack()][:2] if n == 0 else GO_ON(n - 1)


def test_the_stack_shows_the_caller_right_above():
    global GO_ON
    GO_ON = continuation(rest_of_stack)
    entry = entered(names_of_stack, stack_broken)

    def calls_it():
        return entry(5)

    assert calls_it() == ["compiled", "calls_it"]


def rest_that_fails(n):
    arrived()
    return GO_ON(n - 1) if n else 1 // n


def test_a_traceback_has_one_entry_for_the_frame():
    global GO_ON
    GO_ON = continuation(rest_that_fails)
    entry = entered(names_of_stack, stack_broken)
    try:
        entry(5)
    except ZeroDivisionError as error:
        names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
    assert names == ["test_a_traceback_has_one_entry_for_the_frame", "compiled"]


class Thing:
    pass


def lets_go(n):
    return GO_ON(n)


def rest_that_lets_go(thing):
    arrived()
    alive = weakref.ref(thing)
    del thing
    return alive() is None


def test_arguments_belong_to_the_new_frame():
    global GO_ON
    for compiled in (True, False):
        GO_ON = continuation(rest_that_lets_go, compiled)

        def makes_one():
            return GO_ON(Thing())

        def take_none():
            pass

        assert entered(take_none, makes_one)() is True


def cells_broken(n):
    return GO_ON(types.CellType(n), 5)


def test_each_call_brings_its_own_closure():
    global GO_ON
    n = "none"

    def rest(more):
        arrived()
        return n + more

    for compiled in (True, False):
        GO_ON = continuation(rest, compiled)
        entry = entered(names_of_stack, cells_broken)
        assert [entry(1), entry(2)] == [6, 7]


SEEN = []


def rest_that_looks(n):
    arrived()
    SEEN.append(repr(sys.exception()))
    return GO_ON(n - 1) if n else "done"


def test_what_is_being_handled_stays_so():
    global GO_ON
    GO_ON = continuation(rest_that_looks, compiled=False)
    entry = entered(names_of_stack, stack_broken)
    try:
        raise ValueError(1)
    except ValueError:
        assert entry(1) == "done"
    assert SEEN == ["ValueError(1)"] * 2 and sys.exception() is None


def test_a_closure_must_be_given():
    n = 1

    def rest():
        return n

    for given in ((), (5,)):
        try:
            entered(lambda made, given: None, give_on)(continuation(rest), given)
        except TypeError as error:
            assert "cells" in str(error)
        else:
            raise AssertionError(given)


def give_on(made, given):
    return made(*given)


def test_nothing_is_left_behind():
    global GO_ON
    GO_ON = continuation(rest_that_lets_go)
    thing = Thing()
    entered(names_of_stack, lets_go)(thing)
    alive = weakref.ref(thing)
    del thing
    gc.collect()
    assert alive() is None
    assert native.arrived() is None, "nothing to take over"
