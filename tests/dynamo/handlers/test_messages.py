"""print, logging and warnings in captured code: every call gives the messages, in order, with the user's lines."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import pprint
import sys
import types
import warnings

import pytest
import torch

import stator
from stator.base import counters
from stator.base.errors import Unsupported

LOGGER = logging.getLogger("tests.messages")


def recorder():
    return logging.handlers.BufferingHandler(1000)


def seen(handler):
    return [
        (one.levelname, one.getMessage(), (one.filename, one.lineno, one.funcName), one.args) for one in handler.buffer
    ]


def helper(x, n):
    print("helper", n)
    LOGGER.warning("in %s with %d", "helper", n)
    warnings.warn("in helper", DeprecationWarning, stacklevel=1)
    warnings.warn("of the caller of helper", stacklevel=2)
    warnings.warn("of the caller of all", stacklevel=3)
    return x * n


class Layer(torch.nn.Module):
    def forward(self, x):
        warnings.warn("in forward")
        LOGGER.info("not shown %s", x)
        return x + 1


layer = Layer()


def speaks(x, n):
    print("begin", n, x.shape, sep="-")
    y = helper(x, n) + 1
    warnings.warn(UserWarning("an instance"))
    LOGGER.error("sum over %s", list(x.shape))
    y = layer(y)
    print(f"end {n}", end="!\n")
    return y


def said(function, capsys, *arguments):
    """The result with everything that is printed, logged or warned about."""
    handler = recorder()
    LOGGER.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(*arguments)  # the caller of all
    finally:
        LOGGER.removeHandler(handler)
    warned = [(str(one.message), one.category, one.filename, one.lineno) for one in caught]
    return result.tolist(), capsys.readouterr().out, seen(handler), warned


def test_messages_equal_those_of_eager(capsys):
    stator.reset()
    compiled = stator.compile(speaks, backend="eager", fullgraph=True)
    for n in (2, 2, 3, 4, 5):
        x = torch.ones(3)
        assert said(compiled, capsys, x, n) == said(speaks, capsys, x, n)


class Warns(torch.nn.Module):
    def forward(self, x):
        warnings.warn("of the module's call", stacklevel=2)
        warnings.warn("of the caller", stacklevel=4)
        return x + 1


def test_warnings_in_the_name_of_a_modules_caller_break(capsys):
    module = Warns()

    def calls(x):
        return module(x * 2) + 1

    compiled = stator.compile(calls, backend="eager")
    for _ in range(2):
        assert said(compiled, capsys, torch.ones(3)) == said(calls, capsys, torch.ones(3))


def test_a_warning_comes_once_for_each_line(capsys):
    """The default filter reads the registry of the module that warns."""

    def warns(x):
        for _ in range(3):
            warnings.warn("only once")
        helper(x, 1)
        return x + 1

    def counted(function):
        globals().pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                function(torch.ones(2))
        return [(str(one.message), one.lineno) for one in caught]

    expected = counted(warns)
    stator.reset()
    assert counted(stator.compile(warns, backend="eager")) == expected
    assert [text for text, _ in expected].count("only once") == 1


def test_a_warning_that_is_an_error_is_raised_where_it_is_given():
    changed = []

    def warns(x):
        changed.append("before")
        try:
            warnings.warn("now an error")
        except UserWarning:
            changed.append("caught")
            return x - 1
        changed.append("after")
        return x + 1

    stator.reset()
    compiled = stator.compile(warns, backend="eager")
    for action, result in (("ignore", 2.0), ("error", 0.0), ("ignore", 2.0)):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            assert compiled(torch.ones(1)).item() == result
    assert changed == ["before", "after", "before", "caught", "before", "after"]


def test_a_level_that_is_turned_on_later(capsys):
    def logs(x):
        LOGGER.debug("tensor %s", x)
        return x + 1

    stator.reset()
    compiled = stator.compile(logs, backend="eager")
    counters.clear()
    assert said(compiled, capsys, torch.ones(1))[2] == []
    assert not counters.counts["graph_breaks"]
    LOGGER.setLevel(logging.DEBUG)
    try:
        x = torch.ones(1)
        assert said(compiled, capsys, x) == said(logs, capsys, x)
    finally:
        LOGGER.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    "says",
    [
        lambda x: LOGGER.error("tensor %s", x),
        lambda x: LOGGER.error("with stack", stack_info=True),
        lambda x: print("to a file", file=None),
    ],
)
def test_other_messages_break(says, capsys):
    def function(x):
        says(x + 1)
        return x + 2

    stator.reset()
    x = torch.ones(2)
    assert said(stator.compile(function, backend="eager"), capsys, x)[:2] == said(function, capsys, x)[:2]
    with pytest.raises(Unsupported):
        stator.compile(function, backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("text", [lambda x: f"{x}", repr, str, lambda x: f"{x.sum():.2f}", lambda x: x.__format__("")])
def test_the_text_of_a_tensor_is_that_of_its_values(text):
    def function(x):
        y = x * 2
        return text(y), y + 1

    stator.reset()
    x = torch.ones(2)
    assert stator.compile(function, backend="eager")(x)[0] == function(x)[0]


TEXTS = {
    "percent": lambda x: "%s" % x,  # noqa: UP031
    "str.format": lambda x: "{}".format(x),  # noqa: UP032
    "joined": lambda x: ",".join(map(str, [x])),
    "of a list": lambda x: str([x]),
    "of a dictionary": lambda x: repr({"a": x}),
    "of a tuple": lambda x: f"{(x, 1)}",
    "ascii": lambda x: f"{x!a}",
    "of an exception": lambda x: str(ValueError("a", x)),
    "specification": lambda x: format(x.sum(), ".3f"),
    "of a parameter": lambda x: str(torch.nn.Parameter(x)),
    "of a namespace": lambda x: repr(types.SimpleNamespace(a=x)),
    "printed nicely": lambda x: pprint.pformat([x]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_what_holds_a_tensor_is_that_of_its_values(name):
    def function(x):
        y = x * 2
        return TEXTS[name](y), y + 1

    stator.reset()
    x = torch.ones(2)
    assert stator.compile(function, backend="eager")(x)[0] == function(x)[0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_text_made_inside_one_operation_of_the_graph_is_that_of_its_values(backend):
    """Capture calls such a function on fake tensors, whose text must not appear."""
    said = []

    @stator.allow_in_graph
    def named(x):
        said.append(f"{x}")
        return x * 2

    x = torch.ones(2)
    compiled = stator.compile(lambda x: named(x + 1) + 1, backend=backend)
    for _ in range(2):
        assert compiled(x).tolist() == [5.0, 5.0]
    assert said == [f"{x + 1}"] * 2


def by_context_manager(x):
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        print("inside", x.shape)
    print("outside")
    return x + len(stream.getvalue())


def by_assignment(x):
    before, sys.stdout = sys.stdout, io.StringIO()
    print("inside", x.shape)
    stream, sys.stdout = sys.stdout, before
    print("outside")
    return x + len(stream.getvalue())


@pytest.mark.parametrize("redirects", [by_context_manager, by_assignment])
def test_messages_go_where_the_captured_code_sends_them(redirects, capsys):
    compiled = stator.compile(redirects, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x), redirects(x))
    assert capsys.readouterr().out == "outside\n" * 4


def test_a_logger_that_the_captured_code_turns_off_for_a_while():
    def speak(x):
        LOGGER.disabled = True
        LOGGER.warning("never")
        LOGGER.disabled = False
        LOGGER.warning("always")
        return x + 1

    records = recorder()
    LOGGER.addHandler(records)
    try:
        compiled = stator.compile(speak, backend="eager")
        for _ in range(2):
            compiled(torch.ones(2))
    finally:
        LOGGER.removeHandler(records)
    assert [record[1] for record in seen(records)] == ["always", "always"]


def says_numbers(x):
    loss, count = x.mean().item(), (x > 0).sum().item()
    print("loss", loss, "of", count, sep="|")
    LOGGER.info("loss %.3f, twice %s, of %d", loss, loss * 2, count)
    x.add_(1)
    print(x.sum().item(), loss)
    return x * loss


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_messages_with_numbers_of_tensors(backend, capsys):
    compiled = stator.compile(says_numbers, backend=backend, fullgraph=True)
    for x in (torch.tensor([0.5, -2.0, 3.0]), torch.tensor([1.5, 2.0, 4.0])):
        assert said(compiled, capsys, x.clone()) == said(says_numbers, capsys, x.clone())


def test_a_handler_of_the_program_hears_a_message_when_it_comes():
    heard = []

    class Hears(logging.Handler):
        def emit(self, record):
            heard.append(record.getMessage())

    def speak(x):
        LOGGER.warning("before")
        return x * len(heard)

    handler = Hears()
    LOGGER.addHandler(handler)
    try:
        compiled = stator.compile(speak, backend="eager")
        assert [compiled(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]
    finally:
        LOGGER.removeHandler(handler)


def prints_otherwise(x):
    before = torch._tensor_str.PRINT_OPTS.precision
    torch.set_printoptions(precision=1)
    print(x)
    torch.set_printoptions(precision=before)
    return x + 1


def prints_tensors(x):
    y = x * 2
    print("both", x, y, f"{y.sum():.2f}", f"{y.mean().item():.1f}", sep=" | ")
    y.add_(100)
    warnings.warn(f"now {y[0]}")
    return y


@pytest.mark.parametrize("program", [prints_otherwise, prints_tensors])
def test_text_of_tensors_breaks(program, capsys):
    x = torch.tensor([0.123456])
    expected = said(program, capsys, x.clone())
    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        counters.clear()
        assert said(compiled, capsys, x.clone()) == expected
    with pytest.raises(Unsupported):
        stator.compile(program, backend="eager", fullgraph=True)(x.clone())


PLACES = {"constant", "reflect", "replicate"}


def test_the_text_of_a_set_follows_the_order_of_its_members() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x + 1, f"{PLACES} {PLACES!s}"

    compiled, x = stator.compile(program, fullgraph=True), torch.ones(2)
    assert compiled(x)[1] == program(x)[1]
    PLACES.add("circular")
    assert compiled(x)[1] == program(x)[1]
    PLACES.discard("constant")
    PLACES.add("constant")
    assert compiled(x)[1] == program(x)[1]
