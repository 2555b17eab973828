"""Code that does nothing with tensors runs as it is, whole or up to a graph break: what the program can notice of its
objects is exactly what the interpreter does, and what comes behind the break is compiled."""

from __future__ import annotations

import gc
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import config, counters
from stator.dynamo.bytecode import decode
from stator.dynamo.cache.entry import cache_of
from stator.dynamo.host.native_status import native

CALLS = 3


@pytest.fixture(autouse=True)
def as_users_get_it(keep_empty_graphs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(config, "keep_empty_graphs", False)
    stator.reset()
    counters.clear()
    yield


def opaque(value: Any = None) -> Any:
    """Nothing that can be captured."""
    gc.isenabled()
    return value


def same(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]] = tuple) -> Any:
    """The compiled function, which did in all of its calls what the program does."""
    compiled = stator.compile(function, backend="eager")
    for _ in range(CALLS):
        assert compiled(*make()) == function(*make())
    assert counters.counts["graph_breaks"], "the program was meant to break"
    assert not counters.counts["dynamo.failed_frames"]
    return compiled


class Thing:
    def __init__(self, name: str = "thing") -> None:
        self.name = name

    def method(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return (self.name, args, sorted(kwargs.items()))


# ---- what is on the stack and in variables over a break ----


def nested_calls(n: int) -> Any:
    return max(n, opaque(3), min(opaque(7), n + 1))


def method_under_a_break(n: int) -> Any:
    return Thing("t").method(n, opaque(4), key=opaque(n)), "-".join([str(n), opaque("x")])


def keywords(n: int) -> Any:
    return sorted([n, opaque(1), 2], key=lambda x: -x, reverse=opaque(True)), dict(a=opaque(n), **{"b": n})


def spread(n: int) -> Any:
    items = [1, n]
    return Thing().method(*items, *opaque((5,)), **opaque({"k": n}))


def displays(n: int) -> Any:
    return [n, opaque(1), *(2, opaque(3))], {"a": opaque(n), n: 1}, {n, opaque(2)}, f"{n}{opaque(n)!r:>4}"


def conditional_argument(n: int) -> Any:
    return opaque("a" if n > 2 else "b") + ("x" if opaque(n) else "y")


def loops(n: int) -> Any:
    found = []
    for i in range(n):
        if i == 1:
            continue
        for letter in opaque("ab"):
            found.append((i, letter))
        while len(found) > opaque(3):
            found.pop(0)
    else:
        found.append("end")
    return found


def break_in_a_later_turn(n: int) -> Any:
    found = []
    for i in range(4):
        if i == 2:
            found.append(opaque(i))
        found.append(i)
    return found


def handlers(n: int) -> Any:
    log = []
    for text in ("1", "x", opaque("2")):
        try:
            log.append(int(text) + opaque(n))
        except ValueError as error:
            log.append(str(error) + opaque("!"))
            try:
                opaque()["key"]
            except TypeError as inner:
                log.append(type(inner.__context__).__name__)
        else:
            log.append("fine")
        finally:
            log.append(opaque("finally"))
    return log, sys.exception() if sys.version_info >= (3, 12) else sys.exc_info()


class Manager:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> str:
        self.log.append("in")
        return "value"

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.log.append(kind and kind.__name__)
        return True


def with_blocks(n: int) -> Any:
    log: list[Any] = []
    with Manager(log) as value, Manager(log):
        log.append(opaque(value))
        raise KeyError(n)
    with Manager(log):
        opaque()
    with Manager(log):
        opaque()[n]
    return log


def closures(n: int) -> Any:
    total = [n]

    def add(x: int) -> int:
        nonlocal n
        n += x
        return n

    first = add(opaque(1))
    total.append(first)
    second = add(opaque(len(total)))
    return first, second, n, [add(i) for i in range(opaque(3))], n


def comparison_chain(n: int) -> Any:
    return 0 < opaque(n) < opaque(9) <= n + 7, (n and opaque(n)) or 5


def unpacking(n: int) -> Any:
    (a, *b), c = opaque(([n, 2, 3], 4))
    a, b = b, opaque(a)
    del c
    x = {**opaque({"p": 1}), "q": n}
    return a, b, x


def matching(n: int) -> Any:
    match opaque({"kind": "pair", "items": [n, 2]}):
        case {"kind": "pair", "items": [a, b], **rest}:
            return a, b, rest, opaque("pair")
        case _:
            return None


PROGRAMS = [
    nested_calls,
    method_under_a_break,
    keywords,
    spread,
    displays,
    conditional_argument,
    loops,
    break_in_a_later_turn,
    handlers,
    with_blocks,
    closures,
    comparison_chain,
    unpacking,
    matching,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_without_tensors(program: Callable[..., Any]) -> None:
    same(program, lambda: (3,))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_comes_behind_a_break_is_compiled(program: Callable[..., Any]) -> None:
    def run(n: int, x: torch.Tensor) -> Any:
        found = program(n)
        opaque()
        return found, (x + 1).tolist()

    same(run, lambda: (3, torch.arange(2.0)))
    assert counters.counts["graphs"] >= 1


def test_super_behind_a_break() -> None:
    class Child(Thing):
        def method(self, *args: Any, **kwargs: Any) -> Any:
            first = opaque(super().method(opaque(1)))
            return first, super().method(*args)

    same(Child("child").method, lambda: (2,))


# ---- what only the interpreter's own objects show ----


def test_weak_references_and_finalizers_see_what_eager_shows() -> None:
    def run() -> list[Any]:
        log: list[Any] = []
        thing = Thing()
        reference = weakref.ref(thing, lambda _: log.append("gone"))
        log.append(reference() is thing)
        opaque()
        del thing
        log.append(reference() is None)
        opaque()
        return log

    same(run)


def test_counts_of_references() -> None:
    def run() -> Any:
        thing = Thing()
        before = sys.getrefcount(thing)
        other = thing
        return before, sys.getrefcount(thing), opaque(other is thing), sys.getrefcount(other)

    same(run)


def test_sizes_of_instances_whose_dicts_share_their_keys() -> None:
    def run() -> Any:
        things = [Thing(), Thing()]
        opaque()
        for thing in things:
            thing.name = "other"
        return [sys.getsizeof(vars(thing)) for thing in things]

    for _ in range(100):  # CPython 3.12 makes a class's first dictionaries larger, less so from one to the next
        run()
    same(run)


def test_identity_of_what_was_computed() -> None:
    def run(n: int) -> Any:
        text, number = f"a{n}", n + 2.5
        texts = [text, opaque(text), f"a{n}"]
        return [[one is other for one in texts] for other in texts], opaque(number) is number

    same(run, lambda: (7,))


def test_iterators_go_on_where_they_are() -> None:
    def run(source: Iterator[int]) -> Any:
        first = next(source)
        second = opaque(next(source))
        return first, second, [*zip(source, opaque("ab"), strict=False)], list(source)

    same(run, lambda: (iter([1, 2, 3, 4, 5, 6]),))


def test_the_line_of_an_exception_that_passes_through_blocks() -> None:
    def run(n: int) -> Any:
        log: list[Any] = []
        with open("/dev/null") as file:
            opaque(file)
            try:
                opaque()
                raise ValueError(n)
            finally:
                log.append(opaque(1))
        return log

    def lines(function: Callable[..., Any]) -> list[int | None]:
        with pytest.raises(ValueError) as caught:
            function(3)
        trace = traceback.extract_tb(caught.value.__traceback__)
        return [frame.lineno for frame in trace if frame.name == "run"]

    compiled = stator.compile(run, backend="eager")
    assert [lines(compiled) for _ in range(CALLS)] == [lines(run)] * CALLS


# ---- when it is done, and when not ----


def own_code(compiled: Any) -> list[bool]:
    """Of each version: whether it runs instructions of the program in front of what comes at its break."""
    original = [instruction.opname for instruction in decode(compiled.__code__)][:4]
    versions = cache_of(compiled).versions
    return [
        version.code is None or [one.opname for one in decode(version.code)][:4] == original for version in versions
    ]


def listing(n: int) -> Any:
    found = [str(i) for i in range(n)]
    opaque()
    return found


def test_a_frame_keeps_its_code_only_without_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = stator.compile(listing, backend="eager")
    compiled(3)
    assert own_code(compiled) == [True]
    monkeypatch.setattr(config, "keep_empty_graphs", True)
    compiled = stator.compile(listing, backend="eager")
    compiled(3)
    assert own_code(compiled) == [False]


def test_a_frame_that_is_told_that_it_is_compiled_is_replaced() -> None:
    def run(log: list[Any]) -> Any:
        log.append(torch.compiler.is_compiling())
        opaque()
        log.append(stator.is_compiling())
        return log

    compiled = stator.compile(run, backend="eager")
    assert [compiled([]) for _ in range(2)] == [[True, True]] * 2


def test_a_constant_result_is_asked_for_once() -> None:
    asked: list[int] = []

    @stator.assume_constant_result
    def answer() -> int:
        asked.append(1)
        return 7

    def run(log: list[int]) -> list[int]:
        log.append(answer())
        return log

    compiled = stator.compile(run, backend="eager")
    compiled([])
    known = len(asked)
    assert [compiled([]) for _ in range(3)] == [[7]] * 3 and len(asked) == known


def test_random_numbers_come_in_the_order_of_the_program() -> None:
    import random

    def run() -> Any:
        first = random.random()
        second = opaque(random.random())
        return first, second, random.random()

    compiled = stator.compile(run, backend="eager")
    for seed in range(CALLS):
        random.seed(seed)
        expected = run(), random.getstate()
        random.seed(seed)
        assert (compiled(), random.getstate()) == expected


def test_other_arguments_are_captured() -> None:
    def run(x: Any) -> Any:
        opaque()
        return x if isinstance(x, int) else x * 2

    compiled = stator.compile(run, backend="eager")
    assert [compiled(n) for n in range(20)] == list(range(20)) and not counters.counts["graphs"]
    assert compiled(torch.ones(2)).tolist() == [2, 2] and counters.counts["graphs"] == 1


def test_values_that_change_in_every_call_are_no_reason_to_give_up() -> None:
    class Counting:
        def __init__(self) -> None:
            self.names: dict[str, int] = {}

        def count(self, name: str) -> int:
            self.names[name] = len(self.names) + 1
            return self.names[name]

    def run(counting: Counting, key: Any) -> Any:
        return counting.count(key) if isinstance(key, str) else key + 1

    compiled, counting = stator.compile(run, backend="eager"), Counting()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [compiled(counting, f"key {n}") for n in range(30)] == list(range(1, 31))
    versions = cache_of(compiled).versions
    assert not cache_of(compiled).eager and [version.followed for version in versions] == [2]
    assert compiled(counting, torch.ones(2)).tolist() == [2, 2] and counters.counts["graphs"] == 1
    assert compiled(counting, "another") == 31 and counters.counts["graphs"] == 1


def test_what_comes_behind_a_break_stays_compiled_when_values_change_in_every_call() -> None:
    def run(key: str, x: torch.Tensor) -> Any:
        text = key + "!"
        opaque(text)
        return text, x + 1

    compiled = stator.compile(run, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(30):
            text, result = compiled(f"key {n}", torch.ones(2))
            assert text == f"key {n}!" and result.tolist() == [2, 2]
    versions = cache_of(compiled).versions
    assert [version.followed for version in versions] == [2] and versions[0].code is not None
    assert not cache_of(compiled).eager and counters.counts["graphs"]


def test_a_variable_that_is_bound_on_some_paths_only_keeps_its_guards() -> None:
    def run(key: str) -> Any:
        if len(key) % 2:
            extra = key
        opaque(key)
        try:
            return extra
        except UnboundLocalError:
            return "unbound"

    compiled = stator.compile(run, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [compiled("x" * n) for n in range(24)] == ["x" * n if n % 2 else "unbound" for n in range(24)]


def test_a_class_that_was_made_on_the_way_goes_when_the_program_lets_go_of_it() -> None:
    def run() -> Any:
        class Made:
            table: dict[Any, Any] = {}

            def method(self) -> int:
                return len(self.table)

        Made.table[Made] = Made().method()
        reference = weakref.ref(Made)
        del Made
        gc.collect()
        return reference() is None

    same(run)


def test_following_leaves_nothing_for_the_collector_that_holds_objects_of_the_program() -> None:
    def run(made: list[Any]) -> Any:
        thing = None
        for i in range(3):
            thing, last = Thing(thing), thing
            thing.items = [i, last, {"it": last}]
            opaque()
            made.append(weakref.ref(thing))
        total = [*thing.items, thing.items[2]["it"]]
        opaque()
        return len(total)

    compiled, made = stator.compile(run, backend="eager"), []
    gc.collect()
    gc.disable()
    try:
        assert compiled(made) == 4
        assert [reference() for reference in made] == [None] * 3
    finally:
        gc.enable()


def test_containers_that_come_to_hold_tensors_are_looked_at_again() -> None:
    def run(items: list[Any], n: str) -> Any:
        return [item + 1 for item in items], n + "!"

    compiled = stator.compile(run, backend="eager")
    for n in range(12):
        compiled([1, 2], str(n))
    assert cache_of(compiled).versions[-1].followed == 2 and not counters.counts["graphs"]
    assert compiled([torch.ones(2)], "x")[0][0].tolist() == [2, 2] and counters.counts["graphs"] == 1


def test_nothing_below_a_frame_without_tensors_is_compiled() -> None:
    def leaf(n: int) -> int:
        return n + 1

    def middle(n: int) -> int:
        return leaf(n) * 2

    def run(n: int) -> Any:
        return opaque(1), middle(n), opaque(2)

    compiled = stator.compile(run, backend="eager")
    compiled(1)
    before = native.hook_statistics()["seen"], counters.counts["captured_frames"]
    assert compiled(1) == (1, 4, 2)
    assert native.code_mode(middle.__code__) == "ask" and counters.counts["captured_frames"] == before[1]
    assert cache_of(compiled).versions[0].code is not None


def test_nothing_is_compiled_while_built_in_functions_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(x: Any) -> Any:
        return len([x, x])

    compiled = stator.compile(run, backend="eager")
    monkeypatch.setattr("builtins.len", lambda items: 7)
    found = compiled(1)
    monkeypatch.undo()
    assert found == 7 and not cache_of(compiled).versions and compiled(1) == 2


def test_explain_says_that_there_is_nothing_to_compile() -> None:
    text = str(stator.explain(listing)(3))
    assert "nothing to compile" in text and "graph breaks: 2" in text
    assert "nothing to compile" not in str(stator.explain(lambda x: x + 1)(torch.ones(2)))
