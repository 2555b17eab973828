"""Generated programs whose graphs break deep in nested calls: in loops, `try` and `with` of callers and callees, which
share lists and closures and let exceptions through. Results, effects in order, stacks and tracebacks are eager's."""

from __future__ import annotations

import functools
import itertools
import linecache
import re
import sys
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tests.dynamo.codegen.test_breaks_at_any_position import Log, Manager, current, managed, outcome
from tests.dynamo.codegen.test_generated_breaks import Writer

import stator

NUMBER = itertools.count()
MOST = 5  # functions that call one another
KINDS = (
    *("function", "closure", "method", "starred", "module", "wrapped", "subclass"),
    *("hooked", "constructed", "property", "entered", "exited", "operated", "iterated"),
)


@torch._dynamo.disable
def stack():
    """Names and lines of the generated program's frames that are running, innermost first."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<nested"):
            found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


class NestedWriter(Writer):
    """Writes functions of several kinds, each of which calls the ones before it."""

    def program(self):
        names = []
        for at in range(self.random.randint(2, MOST)):
            kind = self.random.choice(KINDS)
            name = f"call{at}"
            getattr(self, f"{kind}_")(name, names[-2:])
            names.append(name)
        self.line(0, "shared, flags = [], []")
        self.function("main", names[-2:])
        return "\n".join(self.lines) + "\n"

    def simple(self, depth, callees, loop, handler):
        more = (
            "log(stack())",
            "shared.append(total)",
            "shared[:] = shared[-3:]",
            "log(list(shared), n)",
            "x = x.sin()",
            "x = x + len(flags)",
        )
        if self.random.random() < 0.3:
            self.line(depth, self.random.choice(more))
        elif callees and self.random.random() < 0.35:
            given = self.random.choice(("n", "n - 1", "1", "total % 3"))
            call = f"{self.random.choice(callees)}(log, x, {given})"
            shapes = (
                "x = x + {}",
                "x = {} * 2 + x",
                "total += int(log() > 2) if {}.sum() > 0 else 1",
                "out.append({})",
            )
            self.line(depth, self.random.choice(shapes).format(call))
        else:
            super().simple(depth, callees, loop, handler)

    def body(self, depth, callees):
        self.line(depth, "out, total = [], 0")
        self.left = max(self.left, 4)
        self.block(depth, callees, loop=False, handler=False)
        self.line(depth, "return x + total")

    def function_(self, name, callees):
        self.line(0, f"def {name}(log, x, n):")
        self.body(1, callees)

    def closure_(self, name, callees):
        """It shares variables with a function that it makes and calls."""
        self.line(0, f"def {name}(log, x, n):")
        self.line(1, "out, total = [], 0")
        self.line(1, "def inner(y):")
        self.line(2, f"nonlocal {self.random.choice(('total', 'total, x', 'total, n'))}")
        self.line(2, "total += 1")
        self.line(2, self.random.choice(("log(total, stack())", "y = y * 2", "log(total)")))
        self.line(2, self.random.choice(("n = n - 1" if "n" in self.lines[-3] else "y = y + 1", "y = y + n")))
        self.line(2, "total += len(out)")
        self.line(2, "return y + total")
        self.line(1, "x = inner(x)")
        self.left = max(self.left, 4)
        self.block(1, [*callees], loop=False, handler=False)
        self.line(1, "x = x + inner(x)")
        self.line(1, "return x + total")

    def method_(self, name, callees):
        self.line(0, f"class Of{name}:")
        self.line(1, "def __init__(self):")
        self.line(2, "self.calls = 0")
        self.line(1, "def run(self, log, x, n):")
        self.line(2, "self.calls += 1")
        self.body(2, callees)
        self.line(0, f"{name} = Of{name}().run")

    def subclass_(self, name, callees):
        self.line(0, f"class Base{name}:")
        self.line(1, "def run(self, log, x, n):")
        self.line(2, "log(stack())")
        self.line(2, "x = x + 1")
        self.line(2, self.random.choice(("log(10 // n)", "return x", "log(type(self).__name__)")))
        self.line(2, "return x * 2")
        self.line(0, f"class Of{name}(Base{name}):")
        self.line(1, "def run(self, log, x, n):")
        self.body(2, callees)
        self.lines[-1] = "        return super().run(log, x, n) + total"
        self.line(0, f"{name} = Of{name}().run")

    def starred_(self, name, callees):
        self.line(0, f"def {name}(*args, **options):")
        self.line(1, "log, x, n = args")
        self.body(1, callees)
        if self.random.random() < 0.5:
            self.line(0, f"{name} = functools.partial({name}, flag=True)")

    def module_(self, name, callees):
        self.line(0, f"class Of{name}(torch.nn.Module):")
        self.line(1, "def forward(self, log, x, n):")
        self.body(2, callees)
        self.line(0, f"{name} = Of{name}()")

    def hooked_(self, name, callees):
        """Before or behind the forward of a module."""
        self.line(0, f"class Of{name}(torch.nn.Module):")
        self.line(1, "def forward(self, log, x, n):")
        self.line(2, "log('forward')")
        self.line(2, "return log, x * 2, n")
        self.line(0, f"def hook{name}(module, args, *result):")
        self.line(1, "log, x, n = result[0] if result else args")
        self.body(1, callees)
        self.lines[-1] = "    return log, x + total, n"
        self.line(0, f"module{name} = Of{name}()")
        self.line(0, f"module{name}.register_forward_{self.random.choice(('', 'pre_'))}hook(hook{name})")
        self.uses(name, f"module{name}(log, x, n)[1]")

    def uses(self, name, how, *before):
        self.line(0, f"def {name}(log, x, n):")
        for line in before:
            self.line(1, line)
        self.line(1, f"return {how}")

    def constructed_(self, name, callees):
        base = self.random.choice(("", "(list)", "(Exception)"))
        self.line(0, f"class Of{name}{base}:")
        self.line(1, "def __init__(self, log, x, n):")
        if base != "(Exception)":
            self.line(2, "super().__init__()")
        self.body(2, callees)
        self.lines[-1] = "        self.result = x + total"
        self.uses(name, f"Of{name}(log, x, n=n).result")

    def special_(self, name, callees, method, how, *before, returns="x + total", rest=()):
        """An object that holds the arguments, and has this method."""
        self.line(0, f"class Of{name}:")
        for line in rest:
            self.line(1, line)
        self.line(1, method)
        self.line(2, "log, x, n = self.given")
        self.body(2, callees)
        self.lines[-1] = f"        return {returns}"
        self.uses(name, how, f"made = Of{name}()", "made.__dict__['given'] = log, x, n", *before)

    def property_(self, name, callees):
        self.special_(name, callees, "def result(self):", "made.result + 1", rest=("@property",))

    def operated_(self, name, callees):
        method, how = self.random.choice(
            (
                ("__add__(self, other)", "made + n"),
                ("__rsub__(self, other)", "n - made"),
                ("__mul__(self, other)", "made * made"),
                ("__lt__(self, other)", "made < n"),
                ("__gt__(self, other)", "n < made"),
                ("__eq__(self, other)", "x * int(made == n)"),
                ("__neg__(self)", "-made"),
            )
        )
        returns = self.random.choice(("x + total", "x + total", "NotImplemented"))
        if "int(" in how and returns != "NotImplemented":
            returns = "total > 1"
        self.special_(name, callees, f"def {method}:", how, returns=returns)

    def iterated_(self, name, callees):
        how = self.random.choice(("for", "for", "else", "next", "try"))
        self.line(0, f"class Of{name}:")
        self.line(1, "def __iter__(self):")
        self.line(2, "return self")
        self.line(1, "def __next__(self):")
        self.line(2, "log, x, n = self.given")
        self.line(2, "self.turn += 1")
        late = self.random.random() < 0.4
        end = "if self.turn > 2: raise StopIteration(n)"
        if not late:
            self.line(2, end)
        self.body(2, callees)
        if late:
            self.lines.insert(-1, f"        {end}")
        loop = ["for y in made:", "    x = x + y", "    if x.sum() > 90: break"]
        loops = {
            "for": loop,
            "else": [*loop, "else:", "    log('else', stack())"],
            "next": ["x = next(made) + x"],
            "try": ["try:", *(f"    {line}" for line in loop), "except StopIteration as error:", "    log(str(error))"],
        }
        self.uses(name, "x * 2", f"made = Of{name}()", "made.given, made.turn = (log, x, n), 0", *loops[how])

    def entered_(self, name, callees):
        rest = ("def __exit__(self, *error):", "    self.given[0]('exit', [str(one) for one in error[:2]])")
        self.special_(name, callees, "def __enter__(self):", "x * 2", "with made as y:", "    x = y + x", rest=rest)

    def exited_(self, name, callees):
        swallows = self.random.choice(("True", "None"))
        body = self.random.choice(("x = x + 10 // n", "x = x + 1", "raise ValueError(n)", "return x"))
        self.special_(
            name,
            callees,
            "def __exit__(self, *error):",
            "x * 2",
            "with made:",
            f"    {body}",
            returns=swallows,
            rest=("def __enter__(self):", "    pass"),
        )

    def wrapped_(self, name, callees):
        """Behind a decorator, which is a frame of its own."""
        self.line(0, "def around(function):")
        self.line(1, "@functools.wraps(function)")
        self.line(1, "def wrapper(*args, **options):")
        self.line(2, self.random.choice(("with torch.no_grad():", "try:", "with managed(args[0]):")))
        self.line(3, "return function(*args, **options)")
        if self.lines[-2].strip() == "try:":
            self.line(2, "finally:")
            self.line(3, "args[0]('finally')")
        self.line(1, "return wrapper")
        self.line(0, "@around")
        self.function_(name, callees)


def made(source):
    filename = f"<nested{next(NUMBER)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace = {"torch": torch, "Manager": Manager, "managed": managed, "current": current, "Log": Log}
    namespace |= {"stack": stack, "functools": functools, "itertools": itertools}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


def check(random):
    source = NestedWriter(random).program()
    namespace, again = made(source), made(source)
    function, twin = namespace["main"], again["main"]
    stator.reset()
    limit = random.choice((1, 2, 8))  # at which parts of them run as they are
    compiled = stator.compile(function, backend="eager", options={"recompile_limit": limit})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(4):
            namespace["flags"][:] = again["flags"][:] = "a" * (turn % 3)
            expected = outcome(twin, ())
            assert same(outcome(compiled, ()), expected), f"in call {turn} of\n{source}"
            assert namespace["shared"] == again["shared"]


def same(one, other):
    """But for the name of the file."""
    return _plain(one) == _plain(other) or pytest.fail(f"{one}\n\n{other}")


def _plain(value):
    if isinstance(value, str):
        return re.sub(r"<nested\d+>", "", value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


SETTINGS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@seed(5)
@settings(max_examples=40, **SETTINGS)
@given(st.randoms(use_true_random=False))
def test_generated_programs(random):
    check(random)


@pytest.mark.slow
@settings(max_examples=1500, **SETTINGS)
@given(st.randoms(use_true_random=False))
def test_many_generated_programs(random):
    check(random)
