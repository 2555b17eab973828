"""A graph ends inside of functions that the program enters in many ways: for each way and each kind of break, how many
graphs there are, that results, effects and output are eager's, and that fullgraph says where the break is."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import stator
from stator.base.errors import Unsupported

BREAKS = {
    "builtin": "os.getcwd() and print('result', tuple(y.shape))",
    "branch": "y = y + 2 if y.sum() > 0 else y - 2",
    "requested": "stator.graph_break()",
}

# what runs in the entered frame: a graph before, the break, a graph behind
BODY = """
        y = y + 1
        log.append(('before', tuple(y.shape)))
        BREAK
        log.append('behind')
        y = y * 3"""


@dataclass(frozen=True)
class Way:
    """setup: module-level code, where BODY stands for the lines above at eight columns; use: lines of a function that
    has x and log, and leaves its result in x. graphs: how many there are; `of_kinds` where that differs."""

    name: str
    setup: str
    use: str
    graphs: int = 2
    of_kinds: tuple[tuple[str, int], ...] = ()

    def expected(self, kind: str) -> int:
        return dict(self.of_kinds).get(kind, self.graphs)


WAYS = [
    Way("function", "if True:\n    def f(y, log):BODY\n        return y", "x = f(x, log)"),
    Way("method", "class C:\n    def f(self, y, log):BODY\n        return y", "x = C().f(x, log)"),
    Way("callable_object", "class C:\n    def __call__(self, y, log):BODY\n        return y\nc = C()", "x = c(x, log)"),
    Way(
        "wrapped",
        "def around(f):\n"
        "    @functools.wraps(f)\n"
        "    def wrapper(*args, **options):\n"
        "        return f(*args, **options)\n"
        "    return wrapper\n"
        "if True:\n"
        "    @around\n"
        "    @around\n"
        "    def f(y, log):BODY\n"
        "        return y",
        "x = f(x, log=log)",
    ),
    Way("partial", "if True:\n    def f(y, log):BODY\n        return y\np = functools.partial(f)", "x = p(x, log)"),
    Way(
        "module", "class M(nn.Module):\n    def forward(self, y, log):BODY\n        return y\nm = M()", "x = m(x, log)"
    ),
    Way(
        "module_with_hooks",
        "class M(nn.Module):\n"
        "    def forward(self, y, log):BODY\n"
        "        return y\n"
        "m = M()\n"
        "m.register_forward_pre_hook(lambda module, args: (args[0] + 1, args[1]))\n"
        "m.register_forward_hook(lambda module, args, result: result * 2)",
        "x = m(x, log)",
    ),
    Way(
        "forward_hook",
        "class M(nn.Module):\n"
        "    def forward(self, y, log):\n"
        "        return y - 1\n"
        "class H:\n"
        "    def hook(module, args, y):\n"
        "        log = args[1]BODY\n"
        "        return y\n"
        "m = M()\n"
        "m.register_forward_hook(H.hook)",
        "x = m(x, log)",
    ),
    Way("init", "class C:\n    def __init__(self, y, log):BODY\n        self.y = y", "x = C(x, log).y", graphs=4),
    Way(
        "enter",
        "class C:\n"
        "    def __init__(self, log):\n"
        "        self.log = log\n"
        "    def __enter__(self):\n"
        "        y, log = self.y, self.logBODY\n"
        "        return y\n"
        "    def __exit__(self, *error):\n"
        "        self.log.append(error)",
        "c = C(log)\n    c.y = x\n    with c as x:\n        x = x - 1",
        graphs=4,
    ),
    Way(
        "exit",
        "class C:\n"
        "    def __init__(self, log):\n"
        "        self.log = log\n"
        "    def __enter__(self):\n"
        "        return self\n"
        "    def __exit__(self, *error):\n"
        "        y, log = self.y, self.logBODY\n"
        "        self.y = y",
        "with C(log) as c:\n        c.y = x - 1\n    x = c.y",
    ),
    Way(
        "inside_with",
        "class C:\n"
        "    def __init__(self, log):\n"
        "        self.log = log\n"
        "    def __enter__(self):\n"
        "        self.log.append('enter')\n"
        "    def __exit__(self, *error):\n"
        "        self.log.append(error)\n"
        "if True:\n"
        "    def f(y, log):BODY\n"
        "        return y",
        "with C(log):\n        x = f(x - 1, log)",
    ),
    Way(
        "inside_contextmanager",
        "@contextlib.contextmanager\n"
        "def managed(log):\n"
        "    log.append('enter')\n"
        "    try:\n"
        "        yield\n"
        "    finally:\n"
        "        log.append('exit')\n"
        "if True:\n"
        "    def f(y, log):BODY\n"
        "        return y",
        "with managed(log):\n        x = f(x - 1, log)",
        graphs=4,
    ),
    Way(
        "contextmanager",
        "class C:\n"
        "    @contextlib.contextmanager\n"
        "    def managed(y, log):BODY\n"
        "        yield y\n"
        "        log.append('exit')",
        "with C.managed(x, log) as x:\n        x = x - 1",
        graphs=3,
    ),
    Way(
        "property",
        "class C:\n    @property\n    def f(self):\n        y, log = self.y, self.logBODY\n        return y",
        "c = C()\n    c.y, c.log = x, log\n    x = c.f",
        graphs=4,
    ),
    Way(
        "getattr",
        "class C:\n    def __getattr__(self, name):\n        y, log = self.y, self.logBODY\n        return y",
        "c = C()\n    c.y, c.log = x, log\n    x = c.f",
        graphs=4,
    ),
    Way(
        "getitem",
        "class C:\n    def __getitem__(self, y):\n        log = self.logBODY\n        return y",
        "c = C()\n    c.log = log\n    x = c[x]",
        graphs=4,
    ),
    Way(
        "add",
        "class C:\n    def __add__(self, n):\n        y, log = self.y, self.logBODY\n        return y + n",
        "c = C()\n    c.y, c.log = x, log\n    x = c + 3",
        graphs=4,
    ),
    Way(
        "generator",
        "if True:\n    def g(y, log):\n      for i in range(3):BODY\n        yield y",
        "for y in g(x, log):\n        x = x + y",
        graphs=3,
    ),
    Way(
        "comprehension",
        "if True:\n    def f(y, log):BODY\n        return y",
        "x = sum([f(x + i, log) for i in range(3)])",
        graphs=4,
    ),
    Way(
        "inside_loop_over_generator",
        "def g():\n    for i in range(3):\n        yield i\nif True:\n    def f(y, log):BODY\n        return y",
        "for i in g():\n        x = f(x + i, log)",
        graphs=4,
    ),
    Way("next", "if True:\n    def g(y, log):BODY\n        yield y", "x = next(g(x, log))"),
    Way(
        "iterator",
        "class C:\n"
        "    def __iter__(self):\n"
        "        return self\n"
        "    def __next__(self):\n"
        "        if self.n == 3:\n"
        "            raise StopIteration\n"
        "        y, log = self.y, self.logBODY\n"
        "        self.n += 1\n"
        "        return y",
        "c = C()\n    c.y, c.log, c.n = x, log, 0\n    for y in c:\n        x = x + y",
        graphs=6,
    ),
    Way("map", "if True:\n    def f(y, log):BODY\n        return y", "(x,) = map(f, [x], [log])", graphs=4),
]

NUMBER = itertools.count()


def made(way: Way, kind: str) -> dict[str, Any]:
    body = BODY.replace("BREAK", BREAKS[kind])
    source = (
        f"{way.setup.replace('BODY', body)}\n\ndef program(x, log):\n    x = x * 2\n    {way.use}\n    return x + 1\n"
    )
    filename = f"<way{next(NUMBER)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {"stator": stator, "torch": torch, "nn": nn, "functools": functools, "os": os}
    namespace |= {"contextlib": contextlib, "operator": operator, "dataclass": dataclass, "__name__": __name__}
    exec(compile(source, filename, "exec"), namespace)
    return namespace


X = torch.rand(4, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def anew() -> None:
    stator.reset()


CASES = [pytest.param(way, kind, id=f"{way.name}-{kind}") for way in WAYS for kind in BREAKS]


@pytest.mark.filterwarnings("error:stator")
@pytest.mark.parametrize("way, kind", CASES)
def test_graphs_and_effects(way: Way, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    graphs = []

    def backend(gm: Any, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    namespace, again = made(way, kind), made(way, kind)
    compiled = stator.compile(namespace["program"], backend=backend)
    for _ in range(3):
        logs: list[list[Any]] = [[], []]
        found = compiled(X, logs[0])
        printed = capsys.readouterr().out
        expected = again["program"](X, logs[1])
        assert torch.equal(found, expected)
        assert logs[0] == logs[1]
        assert printed == capsys.readouterr().out
    assert len(graphs) == way.expected(kind)


@pytest.mark.parametrize("way, kind", CASES)
def test_fullgraph_says_where(way: Way, kind: str) -> None:
    namespace = made(way, kind)
    with pytest.raises(Unsupported) as caught:
        stator.compile(namespace["program"], backend="eager", fullgraph=True)(X, [])
    lines = linecache.cache[namespace["program"].__code__.co_filename][2]  # type: ignore[misc]
    assert caught.value.place is not None
    assert BREAKS[kind] in lines[caught.value.place.line - 1]
