"""The C entry and the cache behind it: binding, choosing versions, recompiling, giving up, and leaving nothing behind.

Runs without torch and without pytest's features, so that test_interpreters.py can run it under other interpreters.
"""

import copy
import gc
import inspect
import pickle
import sys
import threading
import types
import warnings
import weakref
from dataclasses import dataclass

from driving import driven

from stator.base import counters, logs
from stator.base.errors import CompileError
from stator.dynamo.cache.compiled_frames import CompiledFrame, make_cache, reset
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import AttrSource, CellSource, FunctionSource, GlobalSource, ItemSource, LocalSource
from stator.dynamo.host.native_status import native


@dataclass
class Options:
    recompile_limit: int = 8


def entry_of(function, compile_frame, fullgraph=False, **options):
    cache = make_cache(function.__code__, driven(compile_frame), Options(**options), fullgraph=fullgraph)
    entry = native.Entry(function, cache)
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(entry, name, getattr(function, name))
    return entry


class Compiler:
    """Gives the function's own code, with one more constant to tell it apart; guards on the arguments."""

    def __init__(self, kind=GuardKind.TYPE, code=None):
        self.kind, self.code, self.seen = kind, code, []

    def __call__(self, function, bound):
        self.seen.append(dict(bound))
        expected = type if self.kind is GuardKind.TYPE else (lambda value: value)
        guards = [Guard(LocalSource(name), self.kind, expected(value)) for name, value in bound.items()]
        return CompiledFrame(guards, self.code or copied(function.__code__))


def causes_internal_errors(test):
    """A test that means to: every other one fails where one makes a frame run eagerly."""
    test.internal_errors = True
    return test


def copied(code):
    return code.replace(co_consts=(*code.co_consts, "compiled"))


def warnings_of(call):
    logs.forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(warning.message) for warning in caught]


def raised_by(call, *args, **kwargs):
    try:
        return "returned", call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


def no_parameters():
    return "none"


def positional(a, b=2, c=3):
    return [a, b, c]


def positional_only(a, b=5, /, c=6):
    return [a, b, c]


def keyword_only(a, *, b, c=7):
    return [a, b, c]


def everything(a, b=1, /, c=2, *rest, d, e=3, **more):
    inner = [a, b, c, rest, d, e, sorted(more.items())]
    return (lambda: inner)()


def starred(*args, **kwargs):
    return args, kwargs


CALLS = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, 3), {}),
    ((1, 2, 3, 4, 5), {}),
    ((), {"a": 1}),
    ((1,), {"b": 2}),
    ((1,), {"c": 2, "b": 9}),
    ((1,), {"a": 1}),
    ((1,), {"d": 4}),
    ((1, 2, 3, 4), {"d": 4, "z": 5, "y": 6}),
    ((1,), {"d": 4, "e": 5, "c": 8}),
    ((1, 2, 3), {"c": 3}),
    ((), {"unknown": 1}),
]


def test_calls_bind_and_fail_as_python_does():
    for function in (no_parameters, positional, positional_only, keyword_only, everything, starred):
        compiler = Compiler()
        entry = entry_of(function, compiler)
        for args, kwargs in CALLS:
            expected = raised_by(function, *args, **kwargs)
            assert raised_by(entry, *args, **kwargs) == expected, (function, args, kwargs)
            assert raised_by(entry, *args, **kwargs) == expected, "second call differs"


def test_the_compiler_gets_every_bound_argument():
    for function in (no_parameters, positional, positional_only, keyword_only, everything, starred):
        compiler = Compiler(GuardKind.IS)
        entry = entry_of(function, compiler, recompile_limit=100)
        for args, kwargs in CALLS:
            try:
                bound = inspect.signature(function).bind(*args, **kwargs)
            except TypeError:
                continue
            bound.apply_defaults()
            compiler.seen.clear()
            reset()
            entry(*args, **kwargs)
            assert compiler.seen == [bound.arguments], (function, args, kwargs)


def test_more_parameters_than_fit_on_the_stack():
    names = [f"p{i}" for i in range(100)]
    scope = {}
    exec(f"def wide({', '.join(names)}, *rest): return [{', '.join(names)}, rest]", scope)
    entry = entry_of(scope["wide"], Compiler())
    assert entry(*range(100), 7) == [*range(100), (7,)]
    assert entry(*range(50), **dict.fromkeys(names[50:], 0)) == [*range(50), *[0] * 50, ()]


def test_a_version_is_used_again_while_its_guards_hold():
    compiler = Compiler()
    entry = entry_of(positional, compiler)
    for value in (1, 2, 3):
        entry(value)
    assert len(compiler.seen) == 1
    entry("text")
    assert len(compiler.seen) == 2
    assert entry(5) == [5, 2, 3] and len(compiler.seen) == 2


def test_the_compiled_code_runs_and_not_the_original():
    def replacement(a, b=2, c=3):
        return ("replaced", a, b, c)

    entry = entry_of(positional, Compiler(code=replacement.__code__))
    assert entry(1) == ("replaced", 1, 2, 3)
    assert entry(1, c=9) == ("replaced", 1, 2, 9)


def test_the_version_used_last_is_tried_first():
    entry = entry_of(positional, Compiler())
    for value in (1, "a", 1.5):
        entry(value)
    versions = set(entry._cache.versions)
    entry(1)
    entry(2)
    first = entry._cache.versions[0]
    assert first.guards.check((0, 2, 3), positional) and first.hits == 2
    assert set(entry._cache.versions) == versions


def test_closures_and_defaults_reach_the_compiled_code():
    factor = [10]

    def scaled(x, offset=1):
        return x * factor[0] + offset

    entry = entry_of(scaled, Compiler())
    assert entry(2) == 21
    factor[0] = 100
    assert entry(2) == 201
    scaled.__defaults__ = (5,)
    assert entry(2) == 205


def test_keyword_defaults_follow_the_original():
    def scaled(x, *, offset=1):
        return x + offset

    entry = entry_of(scaled, Compiler())
    assert entry(1) == 2
    scaled.__kwdefaults__ = {"offset": 50}
    assert entry(1) == 51
    scaled.__kwdefaults__["offset"] = 70
    assert entry(1) == 71


def test_replacing_the_code_of_the_original_is_obeyed():
    def first(x):
        return "first"

    def second(x):
        return "second"

    entry = entry_of(first, Compiler())
    assert entry(1) == "first"
    first.__code__ = second.__code__
    assert entry(1) == "second"


def test_an_entry_is_a_method():
    class Account:
        def __init__(self, balance):
            self.balance = balance

        def add(self, amount, times=1):
            return self.balance + amount * times

    Account.add = entry_of(Account.add, Compiler())
    account = Account(10)
    assert account.add(5) == 15 and account.add(5, times=2) == 20
    bound = account.add
    assert bound(1) == 11 and bound.__self__ is account and Account.add(account, 2) == 12


def test_an_entry_looks_like_its_function():
    def documented(a: int, b=1) -> str:
        """About it."""

    documented.marker = 3
    entry = entry_of(documented, Compiler())
    assert (entry.__name__, entry.__doc__, entry.__module__) == ("documented", "About it.", __name__)
    assert entry.__code__ is documented.__code__ and entry.__defaults__ == (1,) and entry.marker == 3
    entry.__wrapped__ = documented
    assert inspect.signature(entry) == inspect.signature(documented)
    entry.own = 4
    assert not hasattr(documented, "own") and entry.own == 4
    assert raised_by(lambda: entry.nothing)[0] is AttributeError
    assert weakref.ref(entry)() is entry


def test_entries_are_copied_and_pickled_by_reference():
    assert copy.deepcopy(pickled_entry) is pickled_entry and copy.copy(pickled_entry) is pickled_entry
    assert pickle.loads(pickle.dumps(pickled_entry)) is pickled_entry


def pickled_entry(x):
    return x


pickled_entry = entry_of(pickled_entry, Compiler())


def test_an_entry_whose_name_finds_another_is_pickled_as_its_original():
    """As compiled modules are: what is compiled belongs to this process."""
    entry = entry_of(pickled_by_name, Compiler())
    assert pickle.loads(pickle.dumps(entry)) is pickled_by_name
    assert copy.deepcopy(entry) is entry and copy.copy(entry) is entry
    try:
        pickle.dumps(entry_of(lambda x: x, Compiler()))
    except (pickle.PicklingError, AttributeError) as error:  # as of the function itself
        assert "<lambda>" in str(error)
    else:
        raise AssertionError("a lambda was pickled")


def pickled_by_name(x):
    return x + 2


def test_exceptions_of_the_compiled_code_pass():
    def failing(x):
        raise KeyError(x)

    entry = entry_of(failing, Compiler())
    assert raised_by(entry, 3) == (KeyError, "3")
    assert raised_by(entry, 3) == (KeyError, "3")


def test_no_code_means_the_original_under_these_guards():
    calls = []

    def skipped(function, bound):
        calls.append(bound["a"])
        return CompiledFrame([Guard(LocalSource("a"), GuardKind.TYPE, type(bound["a"]))], None)

    entry = entry_of(positional, skipped)
    assert entry(1) == [1, 2, 3] and entry(2) == [2, 2, 3] and entry("x") == ["x", 2, 3]
    assert calls == [1, "x"]


def test_the_limit_stops_recompiling_with_one_warning_and_the_reasons():
    compiler = Compiler(GuardKind.EQUALS)
    entry = entry_of(positional, compiler, recompile_limit=2)
    entry(1)
    entry(2)
    result, texts = warnings_of(lambda: [entry(3), entry(4), entry(1)])
    assert result == [[3, 2, 3], [4, 2, 3], [1, 2, 3]]
    assert len(compiler.seen) == 2 and len(texts) == 1
    assert "positional" in texts[0] and "recompile_limit=2" in texts[0] and __file__ in texts[0]
    assert "a: 2 became 3" in texts[0] and "a: 1 became 3" in texts[0]


@causes_internal_errors
def test_compiling_leaves_the_garbage_collector_as_it_is():
    states = []

    def compile_frame(function, bound):
        states.append(gc.isenabled())
        if bound["a"] == "fail":
            raise ValueError
        return Compiler()(function, bound)

    entry = entry_of(positional, compile_frame)
    entry(1)
    states.append(gc.isenabled())
    gc.disable()
    try:
        warnings_of(lambda: entry("fail"))
        states.append(gc.isenabled())
    finally:
        gc.enable()
    assert states == [True, True, False, False]


def test_a_failed_compilation_runs_the_original_and_warns_once():
    def broken(function, bound):
        raise CompileError("inductor", "no such loop")

    entry = entry_of(positional, broken)
    before = counters.counts["dynamo.failed_frames"]
    result, texts = warnings_of(lambda: [entry(1), entry(2)])
    assert result == [[1, 2, 3], [2, 2, 3]]
    assert len(texts) == 1 and "inductor" in texts[0] and "no such loop" in texts[0] and "positional" in texts[0]
    assert counters.counts["dynamo.failed_frames"] == before + 1


def test_warnings_point_at_the_line_that_called():
    def broken(function, bound):
        raise CompileError("inductor", "no such loop")

    failing = entry_of(positional, broken)
    limited = entry_of(positional, Compiler(GuardKind.EQUALS), recompile_limit=1)
    limited(1)
    logs.forget_warnings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failing(1)
        limited(2)
    assert [warning.filename for warning in caught] == [__file__] * 2, caught


@causes_internal_errors
def test_an_internal_error_names_where_it_came_from():
    def broken(function, bound):
        return 1 // 0

    result, texts = warnings_of(lambda: entry_of(positional, broken)(1))
    assert result == [1, 2, 3]
    assert "ZeroDivisionError" in texts[0] and "in broken" in texts[0]


def test_a_failed_compilation_raises_under_fullgraph_every_time():
    def broken(function, bound):
        raise CompileError("dynamo", "not this")

    entry = entry_of(positional, broken, fullgraph=True)
    for _ in range(2):
        kind, text = raised_by(entry, 1)
        assert kind is CompileError and "not this" in text


def test_an_interrupt_of_the_compiler_passes():
    def interrupted(function, bound):
        raise KeyboardInterrupt

    entry = entry_of(positional, interrupted)
    try:
        entry(1)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("the interrupt was swallowed")


@causes_internal_errors
def test_guards_that_fail_at_once_are_an_internal_error():
    def wrong(function, bound):
        return CompiledFrame([Guard(LocalSource("a"), GuardKind.EQUALS, "something else")], copied(function.__code__))

    entry = entry_of(positional, wrong)
    result, texts = warnings_of(lambda: [entry(1), entry(1)])
    assert result == [[1, 2, 3]] * 2
    assert len(texts) == 1 and "does not hold for the values" in texts[0] and "a: 'something else' became 1" in texts[0]


class Racing:
    """Compiles guards on items of a list that another thread writes to before they are asked."""

    def __init__(self, items, times):
        self.items, self.times, self.attempts = items, times, 0

    def __call__(self, function, bound):
        guards = [Guard(ItemSource(LocalSource("a"), at), GuardKind.EQUALS, item) for at, item in enumerate(self.items)]
        self.attempts += 1
        if self.attempts <= self.times:
            writer = threading.Thread(target=self.items.__setitem__, args=(self.attempts % 2, 100 + self.attempts))
            writer.start()
            writer.join()
        return CompiledFrame(guards, copied(function.__code__))


def test_what_another_thread_changes_meanwhile_is_looked_at_anew():
    items = [1, 2, 3]
    entry = entry_of(positional, Racing(items, 2))
    before = counters.counts["dynamo.failed_frames"]
    result, texts = warnings_of(lambda: entry(items))
    assert result == [items, 2, 3] and not texts
    assert counters.counts["dynamo.failed_frames"] == before


def test_what_another_thread_changes_all_the_time_is_no_internal_error():
    items = [1, 2, 3]
    compiler = Racing(items, 3)
    entry = entry_of(positional, compiler)
    result, texts = warnings_of(lambda: entry(items))
    assert result == [items, 2, 3] and compiler.attempts == 3
    assert len(texts) == 1 and "values that change meanwhile" in texts[0] and "for some calls" in texts[0]
    assert warnings_of(lambda: entry(items)) == ([items, 2, 3], [])  # compiled


@causes_internal_errors
def test_code_that_binds_differently_is_refused():
    def outer():
        captured = 1

        def inner(a, b=2, c=3):
            return captured

        return inner.__code__

    for code, what in (
        (outer(), "co_freevars"),
        (keyword_only.__code__, "co_argcount"),
        (renamed.__code__, "other parameters"),
    ):
        result, texts = warnings_of(lambda code=code: entry_of(positional, Compiler(code=code))(1))
        assert result == [1, 2, 3] and what in texts[0], texts


def renamed(a, b=2, other=3):
    return None


def test_calls_during_compilation_run_eagerly():
    def reentrant(function, bound):
        inner.append(entry(bound["a"] + 1) if bound["a"] < 5 else None)
        return Compiler()(function, bound)

    inner = []
    entry = entry_of(positional, reentrant)
    assert entry(1) == [1, 2, 3] and inner == [[2, 2, 3]]


def test_another_thread_does_not_wait_for_the_compiler():
    started, finish = threading.Event(), threading.Event()

    def slow(function, bound):
        started.set()
        assert finish.wait(20)
        return Compiler()(function, bound)

    entry = entry_of(positional, slow)
    results = []
    thread = threading.Thread(target=lambda: results.append(entry(1)))
    thread.start()
    assert started.wait(20)
    assert entry(2) == [2, 2, 3] and len(entry._cache.versions) == 0
    finish.set()
    thread.join()
    assert results == [[1, 2, 3]] and len(entry._cache.versions) == 1


def test_many_threads_share_the_versions():
    entry = entry_of(positional, Compiler())
    wrong = []

    def work(number):
        for i in range(300):
            value = i if (i + number) % 3 else str(i)
            if entry(value) != [value, 2, 3]:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(entry._cache.versions) == 2


def test_reset_forgets_versions_and_decisions():
    compiler = Compiler(GuardKind.EQUALS)
    entry = entry_of(positional, compiler, recompile_limit=1)
    entry(1)
    warnings_of(lambda: entry(2))
    assert entry._cache.eager
    reset()
    assert not entry._cache.eager and entry._cache.versions == ()
    entry(2)
    assert [seen["a"] for seen in compiler.seen] == [1, 2]


def test_reset_inside_a_running_version_is_safe():
    def resetting(a, b=2, c=3):
        reset()
        gc.collect()
        return [a, b, c]

    entry = entry_of(resetting, Compiler())
    assert [entry(1), entry(1)] == [[1, 2, 3]] * 2


def test_recompile_reasons_name_the_source_and_the_place():
    from stator.base.errors import UserPlace

    def compile_frame(function, bound):
        guard = Guard(LocalSource("a"), GuardKind.EQUALS, bound["a"], UserPlace("model.py", 12, "forward"))
        return CompiledFrame([guard], copied(function.__code__))

    entry = entry_of(positional, compile_frame)
    lines = []
    original_log = logs.log
    logs.log = lambda artifact, message, *args: lines.append((artifact, message % args))
    try:
        entry(1)
        entry(2)
    finally:
        logs.log = original_log
    text = dict(lines)["recompiles"]
    assert 'a: 1 became 2 (relied on at File "model.py", line 12, in forward)' in text and "positional" in text


# ---- leaks ----


class Thing:
    pass


def test_arguments_are_given_back():
    thing = Thing()
    for function in (positional, everything, starred):
        entry = entry_of(function, Compiler())
        kwargs = {"d": thing} if function is everything else {}
        entry(thing, **kwargs)
        gc.collect()
        before = sys.getrefcount(thing)
        for _ in range(50):
            entry(thing, **kwargs)
            raised_by(entry, thing, thing, thing, bad=thing)
            entry(1, **({"d": 1} if kwargs else {}))
        reset()
        gc.collect()
        assert sys.getrefcount(thing) <= before, function


def test_dead_entries_free_everything():
    def make():
        captured = Thing()

        def function(a):
            return captured if a else entry  # a cycle through the closure

        entry = entry_of(function, Compiler())
        entry(1)
        version = entry._cache.versions[0]
        entry.itself = entry
        code = weakref.ref(version.code)
        return [weakref.ref(captured), weakref.ref(function), weakref.ref(entry), code, weakref.ref(version.guards)]

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None] * 5


def with_constant(code, marker, value):
    return code.replace(co_consts=tuple(value if constant == marker else constant for constant in code.co_consts))


def test_cycles_through_the_constants_of_compiled_code_are_freed():
    """Code objects are unknown to the garbage collector, but emitted code refers back to the entry and its compiler."""

    def original(a):
        return a

    def template(a):
        entry = "the entry"
        compiler = "the compiler"
        return entry, compiler

    class Cyclic:
        def __call__(self, function, bound):
            code = with_constant(template.__code__, "the entry", self.entry)
            return CompiledFrame([], with_constant(code, "the compiler", self))

    compiler = Cyclic()
    entry = compiler.entry = entry_of(original, compiler)
    assert entry(1) == (entry, compiler)
    gone = weakref.ref(entry), weakref.ref(compiler), weakref.ref(entry._cache.versions[0].code)
    del entry, compiler
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_code_that_runs_keeps_its_constants_while_everything_else_is_collected():
    def original(a):
        return a

    def template(a):
        a.pop()  # the last way to the entry
        gc.collect()
        held = "the entry"
        return held(a), "the compiler"

    class Cyclic:
        attribute = "still here"

        def __call__(self, function, bound):
            code = with_constant(template.__code__, "the entry", self.inner)
            return CompiledFrame([], with_constant(code, "the compiler", self))

    compiler = Cyclic()
    compiler.inner = entry_of(positional, compiler)
    compiler.inner._cache.eager = True
    entry = entry_of(original, compiler)
    compiler.entry = entry
    holder = [entry]
    del compiler
    call = holder[0]
    del entry
    for _ in range(2):
        holder.append(None)
        values, kept = call(holder)
        assert values == [holder, 2, 3] and kept.attribute == "still here" and kept.inner is not None
        del kept


def test_a_target_held_elsewhere_keeps_its_constants():
    def original(a):
        return a

    def template(a):
        return "the compiler"

    class Cyclic:
        attribute = "still here"

        def __call__(self, function, bound):
            return CompiledFrame([], with_constant(template.__code__, "the compiler", self))

    compiler = Cyclic()
    entry = compiler.entry = entry_of(original, compiler)
    entry(1)
    target = entry._cache.versions[0].target
    del entry, compiler
    gc.collect()
    assert target(1).attribute == "still here" and target(1).entry(1) is target(1)


def test_versions_do_not_keep_guarded_objects_alive_and_go_with_them():
    def compile_frame(function, bound):
        return CompiledFrame([Guard(LocalSource("a"), GuardKind.IS, bound["a"])], copied(function.__code__))

    entry = entry_of(positional, compile_frame)
    thing = Thing()
    entry(thing)
    gone = weakref.ref(thing)
    assert len(entry._cache.versions) == 1
    del thing
    gc.collect()
    assert gone() is None and entry._cache.versions == ()


def test_an_object_at_the_address_of_a_dead_one_is_not_taken_for_it():
    tree = native.GuardTree(None)
    node = tree.add_node(0, native.ACCESS_LOCAL, None, 0, 0)
    thing = Thing()
    tree.add_check(node, native.CHECK_IS, thing, 0)
    assert tree.check((thing,), positional)
    address = id(thing)
    del thing
    for _ in range(1000):
        other = Thing()
        assert not tree.check((other,), positional)
        if id(other) == address:
            break
    assert not tree.check((None,), positional)


def test_guards_through_closure_and_globals():
    captured = [1, 2]

    def function(a):
        return captured[0] + a + SOME_GLOBAL

    def compile_frame(function, bound):
        guards = [
            Guard(CellSource("captured"), GuardKind.LENGTH, len(captured)),
            Guard(GlobalSource("SOME_GLOBAL"), GuardKind.EQUALS, SOME_GLOBAL),
            Guard(AttrSource(FunctionSource(), "__name__"), GuardKind.EQUALS, "function"),
        ]
        compiled.append(1)
        return CompiledFrame(guards, copied(function.__code__))

    global SOME_GLOBAL
    SOME_GLOBAL = 5
    compiled = []
    entry = entry_of(function, compile_frame)
    assert entry(1) == 7 and entry(2) == 8 and len(compiled) == 1
    SOME_GLOBAL = 6
    assert entry(1) == 8 and len(compiled) == 2
    captured = [1, 2, 3]
    assert entry(1) == 8 and len(compiled) == 3


SOME_GLOBAL = 5


def test_an_entry_wants_a_function_and_a_cache():
    assert raised_by(native.Entry, 1, 2)[0] is TypeError
    assert raised_by(native.Cache, positional, None)[0] is TypeError
    assert isinstance(entry_of(positional, Compiler())._function, types.FunctionType)
