"""Python's language with arguments of other kinds, threads, and callers that look on: compiled code does as eager."""

from __future__ import annotations

import sys
import threading
import types
import warnings
import weakref

import pytest
import torch
from tests.differential import check
from tests.programs.language.semantics import flattened

import stator
from stator.base import config


def mutate_containers(x, items, table):
    items.append(x)
    items[0] = 7
    table["b"] = x + 1
    del table["a"]
    return items, table


def mutate_object(x, holder):
    holder.v += 1
    holder.t = x * holder.v
    holder.items.append(holder.v)
    holder.new = types.SimpleNamespace(back=holder)
    return holder.t


def decided_by_constants(x, nothing, flag, scale, name):
    return x * scale if flag and nothing is None and name == "s" else x


def nested_input(pair):
    return pair[0] + pair[1][0] + pair[1][1]["k"]


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (mutate_containers, (torch.ones(2), [1, 2], {"a": 1})),
        (mutate_object, (torch.ones(2), types.SimpleNamespace(v=1, items=[1]))),
        (decided_by_constants, (torch.ones(2), None, True, 2.5, "s")),
        (nested_input, ((torch.ones(2), [torch.zeros(2), {"k": torch.ones(1)}]),)),
    ],
)
def test_arguments_are_read_and_changed(program, arguments):
    check(program, *arguments, fullgraph=True)


def counted_down(count):
    while count:
        count -= 1
    return "done"


def test_lines_are_told_to_a_trace_function():
    def program(x):
        lines = []

        def trace(frame, event, argument):
            if event == "line" and frame.f_code is counted_down.__code__:
                lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            counted_down(2)
        finally:
            sys.settrace(before)
        return lines

    check(program, torch.ones(2))


class Closeable:
    """An iterator that is no generator, but wants to know of the end."""

    def __init__(self, log):
        self.log = log

    def __iter__(self):
        return self

    def __next__(self):
        return 5

    def close(self):
        self.log.append("closed")


def test_an_iterator_behind_yield_from_is_closed_with_the_generator():
    def dropped(x):
        log = []
        steps = flattened([Closeable(log)])
        y = x + next(steps)
        del steps
        return y, (*log, "after")

    def closed(x):
        log = []
        steps = flattened([Closeable(log)])
        y = x + next(steps)
        steps.close()
        return y, (*log, "after")

    for function in (dropped, closed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert stator.compile(function, backend="eager")(torch.ones(2))[1] == ("closed", "after")


def test_dir_and_vars_show_the_program_s_variables_alone():
    def function(x):
        return x + 1, set(vars()), set(dir())

    _, names, listed = stator.compile(function, backend="eager")(torch.ones(2))
    assert names == {"x"} and listed == {"x"}


def test_an_exception_handled_by_the_caller_is_seen():
    def function(x):
        return x + 1, sys.exception()

    compiled = stator.compile(function, backend="eager")
    assert compiled(torch.ones(2))[1] is None
    try:
        raise ValueError("outer")
    except ValueError as error:
        assert compiled(torch.ones(2))[1] is error


def test_a_weak_proxy_reads_what_it_stands_for():
    class Owner:
        field = 5

    def function(x, proxy):
        return x + proxy.field

    owner = Owner()
    assert stator.compile(function, backend="eager")(torch.zeros(1), weakref.proxy(owner)).item() == 5


def test_a_method_of_the_same_object_under_another_name_is_another_method():
    def function(x, method):
        return x + 1, method(2)

    compiled = stator.compile(function, backend="eager")
    items = [1, 2, 3]
    for method in (items.count, items.index, items.count):
        assert compiled(torch.ones(2), method)[1] == method(2)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_complex_constants_keep_the_signs_of_zeros(backend):
    def function(x):
        return x * complex(-0.0, 1.0), x + complex(0.0, -0.0), x * complex(float("inf"), 1.0)

    x = torch.tensor([1 + 0j, 0j])
    for got, expected in zip(stator.compile(function, backend=backend)(x), function(x), strict=True):
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
        assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(torch.signbit(got[~got.isnan()]), torch.signbit(expected[~expected.isnan()]))


class Depth(threading.local):
    depth = 0

    def __init__(self):
        self.items = [5]


LOCAL, DEPTH = threading.local(), Depth()


def test_each_thread_has_its_own():
    def run(function):
        results = []

        def calls():
            results.append([function(torch.ones(2)) for _ in range(4)] + [dict(vars(LOCAL)), list(DEPTH.items)])

        for _ in range(3):
            thread = threading.Thread(target=calls)
            thread.start()
            thread.join()
        return results

    def compiled_part(x):
        LOCAL.calls = getattr(LOCAL, "calls", 0) + 1
        DEPTH.depth += 1
        DEPTH.items.append(DEPTH.depth)
        if hasattr(LOCAL, "flag"):
            del LOCAL.flag
        else:
            LOCAL.flag = True
        return x * LOCAL.calls + len(DEPTH.items)

    def eager(x):
        return compiled_part(x).tolist(), DEPTH.depth, hasattr(LOCAL, "flag")

    compiled = stator.compile(compiled_part, backend="eager")
    expected = run(eager)
    assert run(lambda x: (compiled(x).tolist(), DEPTH.depth, hasattr(LOCAL, "flag"))) == expected


def test_a_whole_number_that_no_float_can_hold(monkeypatch):
    """float() of a number that changes is computed in each call, at its place: where it fails, the program sees it."""
    monkeypatch.setattr(config, "keep_empty_graphs", True)

    def convert(number):
        try:
            found = float(number)
        except OverflowError:
            found = "too large"
        stator.graph_break()
        return found

    stator.reset()
    compiled = stator.compile(convert, backend="eager")
    for number in (1, 2, 3, 10**300, 10**400, 5, 10**500):
        assert compiled(number) == convert(number)


def test_python_types_as_dtypes() -> None:
    def made(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ones(2, dtype=kind) + x for kind in (bool, int, float, complex))

    check(made, torch.arange(2, dtype=torch.int32), graphs=1)
