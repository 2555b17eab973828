"""Programs that break the graph inside loops, `try`, `with` and calls do what they do in eager: results, the order of
side effects, exceptions with their chains and tracebacks, what is being handled, and which variables there are."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import sys
import traceback
import warnings
import weakref

import pytest
import torch

import stator
from stator.base import counters
from stator.dynamo.capture import capture

PROGRAMS = []


def program(*arguments):
    def register(function):
        PROGRAMS.append(pytest.param(function, arguments, id=function.__name__))
        return function

    return register


class Log(list):
    """Writes down what happened; a call of it always breaks the graph, and never runs in one."""

    @torch._dynamo.disable
    def __call__(self, *what):
        self.append(what)
        return len(self)


def current():
    """What is being handled, outermost last, by type and text."""
    found, error = [], sys.exc_info()[1]
    while error is not None:
        found.append(f"{type(error).__name__}: {error}")
        error = error.__context__
    return found


current = torch._dynamo.disable(current)


def outcome(function, arguments):
    """All that a caller can see: result, log, exception and its traceback as text, and what is handled behind."""
    log = Log()
    try:
        result = function(log, torch.ones(3), *copy.deepcopy(arguments))
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next  # this function
        result = "".join(traceback.format_exception(error))
    return flat(result), [flat(entry) for entry in log], current(), torch.is_grad_enabled()


def flat(value):
    """To be compared by ==."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.tolist(), value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(map(flat, value))
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    return value


# ---- loops ----


@program(5)
def for_range(log, x, n):
    for i in range(n):
        x = x * 2 + i
        log(i, x)
        x = x - 1
    return x


@program(4)
def for_break_and_continue(log, x, n):
    for i in itertools.count():
        x = x + 1
        if log(i) % 2:
            continue
        x = x * 2
        if i > n:
            break
    else:
        x = x * 0
    return x


@program([1, 2, 3])
def over_list_that_grows(log, x, items):
    for item in items:
        x = x + item
        log(item)
        if len(items) < 6:
            items.append(item * 10)
    return x, items


@program([1, 2, 3, 4])
def over_list_that_shrinks(log, x, items):
    for item in items:
        log(item)
        x = x + item
        items.remove(item)
        log(items[:])
    return x, items


@program({"a": 1, "b": 2})
def dictionary_changes_size(log, x, names):
    for name in names:
        x = x + 1
        log(name)
        names[name + "!"] = 5
        x = x * 2
    return x


@program(1e3)
def while_loop(log, x, limit):
    turns = 0
    while x.sum() < limit:
        x = x * 2
        turns += 1
        log(turns)
        x = x + 0.5
    else:
        x = x - 1
    return x, turns


@program(3)
def comprehensions(log, x, n):
    a = [x + log(i) for i in range(n)]
    b = {i: log(i) for i in range(n)}
    return a, b, sum(log(i) for i in range(n))


@program([2, 3])
def iterator_in_a_variable(log, x, items):
    iterator = iter(items * 3)
    for item in iterator:
        x = x + item
        log(item)
        x = x * next(iterator, 7)
    return x, list(iterator)


@program(3)
def loop_in_try_in_loop(log, x, n):
    for i in range(n):
        try:
            for j in range(i):
                x = x + j
                log(i, j)
                if j == 1:
                    raise KeyError(j)
        except KeyError as error:
            x = x - 1
            log("caught", str(error))
        finally:
            x = x * 2
            log("finally")
    return x


@program(3)
def loop_with_closure(log, x, n):
    count = 0

    def add(k):
        nonlocal count
        count += k
        return x * count

    out = []
    for i in range(n):
        out.append(add(i))
        log(i, count)
    return out, count


@program(40)
def many_turns(log, x, n):
    depth = None
    for i in range(n):
        x = x + i
        now = log(i)
        depth = now if depth is None else depth
    return x, depth


# ---- handlers ----


@program(0)
def in_except(log, x, n):
    try:
        x = x + 1
        log(10 // n)
    except ZeroDivisionError as error:
        x = x * 2
        log("handling", str(error), current())
        x = x + 3
    log("behind", current())
    return x


@program(0)
def reraise(log, x, n):
    try:
        x = x + 1
        log(10 // n)
    except ZeroDivisionError:
        x = x * 2
        log("handling", current())
        raise


@program(0)
def raise_from(log, x, n):
    try:
        log(x / x)
        10 // n
    except ZeroDivisionError as error:
        x = x * 2
        log("handling", current(), x)
        raise KeyError("other") from error


@program(0)
def in_finally(log, x, n):
    try:
        x = x + 1
        log(10 // n)
    finally:
        x = x * 2
        log("finally", current(), x)


@program(2)
def in_finally_without_exception(log, x, n):
    for i in range(3):
        try:
            x = x + 1
            if i == n:
                return x * 100
            if i == 1:
                continue
        finally:
            x = x * 2
            log("finally", current(), x)
        log("turn", i)
    return x


@program(0)
def nested_handlers(log, x, n):
    try:
        try:
            log(x)
            10 // n
        except ZeroDivisionError:
            x = x + 1
            log("outer handler", current())
            try:
                x = x * 2
                {}["missing"]
            except KeyError:
                x = x + 3
                log("inner handler", current(), x)
                x = x + 4
            log("outer again", current(), x)
            x = x * 5
            raise
    except ArithmeticError as error:
        log("last", str(error), current())
    return x, current()


@program(0)
def handler_in_loop(log, x, n):
    for i in range(4):
        try:
            x = x + i
            log(6 // (i - 2))
        except ZeroDivisionError as error:
            x = x * 10
            log("handling", i, str(error), current())
            x = x + 1
            continue
        x = x - 1
    return x


@program(0)
def loop_in_handler(log, x, n):
    try:
        10 // n
    except ZeroDivisionError:
        for i in range(3):
            x = x + i
            log(i, current())
            x = x * 2
        else:
            log("else", current())
    return x, current()


@program(0)
def return_from_handler(log, x, n):
    try:
        10 // n
    except ZeroDivisionError:
        x = x + 1
        log(current())
        return x * 2
    finally:
        log("finally", current())


@program(0)
def exception_in_handler_of_break(log, x, n):
    try:
        log("a")
        try:
            10 // n
        finally:
            x = x + 1
            log("cleanup", current())
            x = x + len(log.missing)
    except AttributeError as error:
        log(type(error.__context__).__name__, current())
    return x


class Manager:
    def __init__(self, log, swallow=()):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log("enter")
        return 7

    def __exit__(self, kind, error, trace):
        self.log("exit", kind and kind.__name__, str(error), current())
        return kind is not None and issubclass(kind, self.swallow)


@program(0)
def with_own_manager(log, x, n):
    with Manager(log) as seven:
        x = x * seven
        log("inside", x)
        x = x + 1
    return x


@program(0)
def with_swallows(log, x, n):
    for i in range(3):
        with Manager(log, (ZeroDivisionError, KeyError)):
            x = x + 1
            log("inside", x)
            x = x + 10 // (i - 1)
        log("behind", current())
    return x


@contextlib.contextmanager
def managed(log):
    log("enter")
    try:
        yield 3
    except ZeroDivisionError as error:
        log("caught", str(error), current())
    finally:
        log("exit", current())


@program(0)
def with_torch_managers(log, x, n):
    x = x.clone().requires_grad_()
    with torch.no_grad():
        y = x * 2
        log(torch.is_grad_enabled(), y.requires_grad)
        with torch.enable_grad():
            z = x * 3
            log(torch.is_grad_enabled(), z.requires_grad)
            z = z + 1
        u = x + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            log(torch.is_autocast_enabled("cpu"))
            v = (x[None] @ x[:, None]).dtype
        log(torch.is_autocast_enabled("cpu"), str(v))
    return y, z, u, torch.is_grad_enabled()


@program(0)
def exit_stack(log, x, n):
    with contextlib.ExitStack() as stack:
        for i in range(3):
            x = x + stack.enter_context(Manager(log, ZeroDivisionError))
            log(i)
        x = x + 10 // n
    return x


# ---- calls ----


def innermost(log, x, n):
    x = x * 2
    log("innermost", n)
    x = x + 10 // n
    return x - 1


def middle(log, x, n):
    x = x + 1
    y = innermost(log, x, n) * 2
    return x + y


def outermost(log, x, n):
    x = x * 3
    y = middle(log, x, n=n) + 1
    return x * y


@program(0)
def inlined_calls_raise_in_try(log, x, n):
    for i in range(3):
        try:
            x = outermost(log, x + 1, i) + 5
        except ZeroDivisionError as error:
            log([entry.name for entry in traceback.extract_tb(error.__traceback__)])
            x = x * 2
    return x


class Owner:
    def __init__(self, log):
        self.log = log

    @property
    def half(self):
        self.log("half")
        return 0.5

    def __add__(self, other):
        self.log("add")
        return other + 1

    def __iter__(self):
        for i in range(3):
            self.log("iter", i)
            yield i

    def __len__(self):
        return self.log("len")


@program()
def implicit_calls(log, x):
    owner = Owner(log)
    x = x * owner.half
    x = owner + x
    for i in owner:
        x = x + i
        log(i)
    return x, len(owner)


# ---- what a program sees of its frame ----


@program(2)
def own_variables(log, x, n):
    y = x + 1
    log(sorted(locals()))
    for i in [1, 2]:
        z = y + i
        log(sorted(vars()), sorted(dir()))
    return y, sorted(locals())


@program(2)
def own_frame(log, x, n):
    frame = sys._getframe()
    for i in [1, 2]:
        y = x + i
        log(sorted(frame.f_locals), frame is sys._getframe(), frame.f_lineno)
    return y


@program(2)
def own_stack(log, x, n):
    for i in range(n):
        x = x + 1
        log(i)
        log([frame.function for frame in inspect.stack()][:3])
    return x


class Thing:
    pass


dead = torch._dynamo.disable(lambda reference: reference() is None)


@program()
def lifetimes(log, x):
    thing = Thing()
    alive = weakref.ref(thing)
    x = x + 1
    log(dead(alive))
    del thing
    x = x * 2
    log(dead(alive))
    for _ in range(3):
        other = Thing()
        x = x + 1
        log("before", dead(alive))
        alive = weakref.ref(other)
        log("held", dead(alive))
        other = None
        log("gone", dead(alive))
    return x


@program()
def attributes_read_before_they_are_written(log, x):
    thing = Thing()
    thing.number, thing.items = 1, [1]
    number, items = thing.number, thing.items
    thing.number, thing.items = 100, [5]
    log(number)
    return number, items, thing.number, thing.items, x + number


# ---- tracebacks ----


@program()
def torch_operation_raises(log, x):
    log(1)
    for i in range(3):
        x = x.reshape(3 + (i == 2))
        log(i)
    return x


@program()
def callee_raises(log, x):
    def fails(y):
        log("in")
        raise ValueError(y.shape)

    log("out")
    y = x + 1
    return fails(y) + 1


@program()
def assertion(log, x):
    log(1)
    x = x + 1
    if x.sum() > 0:
        raise AssertionError(f"sum is {x.sum()}")
    return x


@program()
def recursion(log, x):
    def descend(n, y):
        y = y + 1
        log(n)
        return descend(n - 1, y) + 1 if n else y + 10 // n

    return descend(3, x)


# ---- the comparison ----


@pytest.mark.parametrize(("function", "arguments"), PROGRAMS)
def test_as_eager(function, arguments):
    expected = outcome(function, arguments)
    stator.reset()
    compiled = stator.compile(function, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert outcome(compiled, arguments) == expected


def captures_of(compiled, *arguments):
    """How many frames a call captures, and the result."""
    counters.clear()
    result = compiled(*arguments)
    return counters.counts["captured_frames"], result


def test_the_number_of_turns_does_not_matter():
    def function(log, x, n):
        for i in range(n):
            x = x + i
            log(i)
        while x.sum() > 100:
            x = x * 0.9
            log("smaller")
        return x

    stator.reset()
    compiled = stator.compile(function, backend="eager")
    for turns in range(20, 30):
        captures_of(compiled, Log(), torch.ones(3), turns)
    captures, result = captures_of(compiled, Log(), torch.ones(3), 2000)
    assert captures == 0 and torch.equal(result, function(Log(), torch.ones(3), 2000))


def test_each_turn_is_one_graph():
    graphs = []

    def backend(gm, example_inputs):
        def run(*args):
            graphs.append(len(gm.graph.nodes))
            return gm.forward(*args)

        return run

    def function(log, x):
        for i in [1, 2, 3, 4, 5]:
            x = x + i
            log(i)
            x = x * 2
        return x

    stator.reset()
    stator.compile(function, backend=backend)(Log(), torch.ones(3))
    assert len(graphs) == 6, "before the first break, from break to break, behind the last"


@torch._dynamo.disable
def callers(log):
    log.append([frame.function for frame in inspect.stack()])


def deep(log, x, n):
    x = x + n
    callers(log)
    return x * 2


def test_the_frames_on_the_way_are_compiled_together():
    def middle(log, x):
        x = x * 3
        x = deep(log, x, 1) + 1
        return x - 1

    def function(log, x):
        x = x + 1
        x = middle(log, x) * 2
        return x + 5

    stator.reset()
    log, eager_log = Log(), Log()
    captures, result = captures_of(stator.compile(function, backend="eager"), log, torch.ones(3))
    assert captures == 2, "three frames before the break, and three behind it"
    assert torch.equal(result, function(eager_log, torch.ones(3)))
    start, length = eager_log[0].index("deep"), len(["deep", "middle", "function"])
    assert [name for name in log[0] if name in ("deep", "middle", "function")] == eager_log[0][start : start + length]


def test_a_break_where_a_block_of_except_ends_has_a_line_of_it():
    def items(x):
        yield x

    def throws(x):
        generator = items(x + 1)
        next(generator)
        try:
            return generator.throw(ValueError("thrown"))
        except TypeError:  # another one: it leaves the frame behind this line
            return x

    with pytest.raises(stator.Unsupported) as error:
        capture(throws, {"x": torch.ones(2)}, fullgraph=True)
    assert error.value.place.line == throws.__code__.co_firstlineno + 5
