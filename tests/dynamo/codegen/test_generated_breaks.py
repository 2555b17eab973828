"""Generated programs whose graphs break inside loops, `try`, `with` and nested calls, against the interpreter: results,
side effects in order, exceptions with chains and tracebacks, what is being handled. Each is called twice."""

from __future__ import annotations

import itertools
import linecache
import warnings

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tests.dynamo.codegen.test_breaks_at_any_position import Log, Manager, current, managed, outcome

import stator

NUMBER = itertools.count()
ERRORS = ("ValueError", "KeyError", "ZeroDivisionError")


class Writer:
    """Writes one program: `main(log, x)` and the functions that it calls."""

    def __init__(self, random):
        self.random = random
        self.lines: list[str] = []
        self.names = itertools.count()
        self.left = random.randint(6, 22)  # statements to go

    def line(self, depth, text):
        self.lines.append("    " * depth + text)

    def program(self):
        functions = self.random.randint(0, 2)
        for at in range(functions):
            self.function(f"call{at}", [f"call{lower}" for lower in range(at)])
        self.function("main", [f"call{at}" for at in range(functions)])
        return "\n".join(self.lines) + "\n"

    def function(self, name, callees):
        parameters = "log, x" if name == "main" else "log, x, n"
        self.line(0, f"def {name}({parameters}):")
        self.line(1, "out, total = [], 0" if name != "main" else "out, total, n = [], 0, 2")
        self.left = max(self.left, 3)
        self.block(1, callees, loop=False, handler=False)
        self.line(1, "return x, out, total" if name == "main" else "return x + total")
        self.line(0, "")

    def block(self, depth, callees, *, loop, handler):
        for _ in range(self.random.randint(1, 4)):
            self.left -= 1
            kind = "simple" if self.left <= 0 or depth > 5 else self.random.choice(list(STATEMENTS))
            STATEMENTS[kind](self, depth, callees, loop, handler)

    def simple(self, depth, callees, loop, handler):
        choices = [
            "x = x * 2",
            "x = x + total",
            "out.append(x - 1)",
            "total += n",
            "log(total, x)",
            "log(current())",
            "log('mark', out[-1:])",
            "total += len(out)",
            "x = x + int(x.sum() > 3)",
            "n -= 1",
            "log(10 // n)",
            "y = out.pop()",
        ]
        choices += [
            f"x = x + {callee}(log, x, {self.random.choice(('n', 'n - 1', '1', 'total % 3'))})" for callee in callees
        ]
        if loop:
            choices += ["continue", "break"]
        if handler:
            choices += ["raise", f"raise {self.random.choice(ERRORS)}(total)"]
        if self.random.random() < 0.15:
            choices = [f"raise {self.random.choice(ERRORS)}('made')", "return x * 3", "total = {}['absent']"]
        text = self.random.choice(choices)
        if text.startswith(("continue", "break", "raise", "return")):
            self.line(depth, f"if {self.condition()}:")
            depth += 1
        self.line(depth, text)

    def condition(self):
        return self.random.choice(("n > 1", "total % 2", "len(out) > 1", "x.sum() > 9", "log() % 2", "True"))

    def branch(self, depth, callees, loop, handler):
        self.line(depth, f"if {self.condition()}:")
        self.block(depth + 1, callees, loop=loop, handler=handler)
        if self.random.random() < 0.4:
            self.line(depth, "else:")
            self.block(depth + 1, callees, loop=loop, handler=handler)

    def for_loop(self, depth, callees, loop, handler):
        name = f"i{next(self.names)}"
        over = self.random.choice(
            (
                f"{name} in range(3)",
                f"{name} in [1, 0, 2]",
                f"{name} in (2, 1)",
                f"at, {name} in enumerate((3, 4))",
                f"{name}, other in zip(range(3), [5, 6])",
                f"{name} in {{'a': 1, 'b': 2}}.values()",
                f"{name} in reversed([1, 2])",
                f"{name} in sorted({{3, 1}})",
            )
        )
        self.line(depth, f"for {over}:")
        self.line(depth + 1, f"total += {name}")
        self.block(depth + 1, callees, loop=True, handler=handler)
        self.otherwise(depth, callees, loop, handler)

    def while_loop(self, depth, callees, loop, handler):
        name = f"w{next(self.names)}"
        self.line(depth, f"{name} = 0")
        self.line(depth, f"while {name} < {self.random.choice(('2', '3', 'log() % 4'))}:")
        self.line(depth + 1, f"{name} += 1")
        self.block(depth + 1, callees, loop=True, handler=handler)
        self.otherwise(depth, callees, loop, handler)

    def otherwise(self, depth, callees, loop, handler):
        if self.random.random() < 0.3:
            self.line(depth, "else:")
            self.block(depth + 1, callees, loop=loop, handler=handler)

    def attempt(self, depth, callees, loop, handler):
        self.line(depth, "try:")
        self.block(depth + 1, callees, loop=loop, handler=handler)
        kind = self.random.choice(("except", "finally", "both"))
        if kind != "finally":
            error = self.random.choice((*ERRORS, "Exception", "(KeyError, IndexError)"))
            self.line(depth, f"except {error}{self.random.choice(('', ' as error'))}:")
            self.block(depth + 1, callees, loop=loop, handler=True)
            if self.random.random() < 0.2:
                self.line(depth, "else:")
                self.block(depth + 1, callees, loop=loop, handler=handler)
        if kind != "except":
            self.line(depth, "finally:")
            self.block(depth + 1, callees, loop=False, handler=handler)

    def context(self, depth, callees, loop, handler):
        managers = ("torch.no_grad()", "Manager(log)", "Manager(log, (ValueError, IndexError))", "managed(log)")
        self.line(depth, f"with {self.random.choice(managers)}:")
        self.block(depth + 1, callees, loop=loop, handler=handler)


STATEMENTS = {
    "simple": Writer.simple,
    "more": Writer.simple,
    "again": Writer.simple,
    "if": Writer.branch,
    "for": Writer.for_loop,
    "loop": Writer.for_loop,
    "while": Writer.while_loop,
    "try": Writer.attempt,
    "guarded": Writer.attempt,
    "with": Writer.context,
}


def made(source):
    """The program's main function; tracebacks find its lines."""
    import torch

    filename = f"<generated {next(NUMBER)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"torch": torch, "Manager": Manager, "managed": managed, "current": current, "Log": Log}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["main"]


def check(random):
    source = Writer(random).program()
    function = made(source)
    expected = outcome(function, ())
    stator.reset()
    compiled = stator.compile(function, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(2):
            assert outcome(compiled, ()) == expected, f"in call {turn} of\n{source}"


SETTINGS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@seed(11)
@settings(max_examples=60, **SETTINGS)
@given(st.randoms(use_true_random=False))
def test_generated_programs(random):
    check(random)


@pytest.mark.slow
@settings(max_examples=1500, **SETTINGS)
@given(st.randoms(use_true_random=False))
def test_many_generated_programs(random):
    check(random)
