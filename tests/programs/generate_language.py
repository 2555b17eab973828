"""Random programs out of what the language has beyond numbers and containers: generators that are sent to and thrown
into, classes made inside, descriptors, patterns, closures that change variables of frames that break, and `finally`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

PRELUDE = '''
import collections
import contextlib
import dataclasses
import functools
import itertools
import torch
import stator

counted = 0

@stator.disable
def opaque(log, *values):
    log.append([value.tolist() if isinstance(value, torch.Tensor) else value for value in values])
    return len(log) % 3 + 1

@stator.disable
def fail_if(condition, log):
    if condition:
        log.append("fails")
        raise KeyError("failed")
    return 1

Pair = collections.namedtuple("Pair", "one other")

@dataclasses.dataclass
class Point:
    x: int = 0
    y: int = 0
    tags: list = dataclasses.field(default_factory=list)
    def moved(self, by):
        return dataclasses.replace(self, x=self.x + by, tags=[*self.tags, by])

@dataclasses.dataclass(frozen=True, order=True)
class Fixed:
    x: int = 0

class Checked:
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, instance, owner):
        return self if instance is None else getattr(instance, self.name, 0)
    def __set__(self, instance, value):
        if value > 50:
            raise ValueError("too large")
        setattr(instance, self.name, value)
    def __delete__(self, instance):
        delattr(instance, self.name)

class Meta(type):
    made = 0
    def __new__(mcs, name, bases, namespace, **options):
        cls = super().__new__(mcs, name, bases, namespace)
        cls.options = sorted(options)
        mcs.made += 1
        return cls
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.called = True
        return made
    def __len__(cls):
        return 3

class Base(metaclass=Meta):
    level = Checked()
    kinds = []
    def __init__(self, log, level=1):
        self.log = log
        self.level = level
    def __init_subclass__(cls, **options):
        Base.kinds.append(cls.__name__)
    def step(self, by=1):
        self.level = self.level + by
        return self.level
    def loud(self, by=1):
        opaque(self.log, "loud", by)
        return self.step(by)
    @property
    def double(self):
        return self.level * 2
    @double.setter
    def double(self, value):
        self.level = value // 2
    @classmethod
    def make(cls, log, *args, **kwargs):
        return cls(log, *args, **kwargs)
    @staticmethod
    def add(x, y):
        return x + y
    def __getattr__(self, name):
        if name.startswith("any_"):
            return len(name)
        raise AttributeError(name)
    def __eq__(self, other):
        return isinstance(other, Base) and self.level == other.level
    def __hash__(self):
        return self.level
    def __iter__(self):
        yield self.level
        opaque(self.log, "iterated")
        yield self.level + 1
    def __enter__(self):
        self.log.append("enter")
        return self
    def __exit__(self, kind, value, trace):
        opaque(self.log, "exit", kind and kind.__name__)
        return kind is KeyError
    def __call__(self, *args, key=0, **rest):
        return sum(args) + key + len(rest)

class Derived(Base, option=1):
    def step(self, by=1):
        opaque(self.log, "before")
        found = super().step(by)
        opaque(self.log, "after")
        return found + 1
    def loud(self, by=1):
        return super().loud(by) + super().double

class Slotted:
    __slots__ = ("x", "y")
    def __init__(self, x):
        self.x = x

def steps(log, count):
    """A generator that is sent to, thrown into and closed."""
    got = 0
    try:
        while count > 0:
            try:
                sent = yield count + got
                if sent is not None:
                    got += sent
                    opaque(log, "sent", sent)
            except KeyError as error:
                log.append("thrown")
                got += 10
                fail_if(got > 15, log)
            count -= 1
        return got
    finally:
        opaque(log, "closed", got)

def delegating(log, count):
    got = yield from steps(log, count)
    log.append(("got", got))
    try:
        yield from [got, got + 1]
    finally:
        log.append("end")
    return got

@contextlib.contextmanager
def managed(log, swallow):
    log.append("in")
    try:
        yield len(log)
    except KeyError:
        opaque(log, "caught")
        if not swallow:
            raise
    finally:
        log.append("out")

def changing(log, items):
    """Changes what it was given, and breaks in between."""
    items.append(len(items))
    opaque(log, "changing")
    items[0] = opaque(log, items)
    return items

def deep(log, depth, items, fails=False):
    try:
        if depth:
            return deep(log, depth - 1, items, fails) + 1
        fail_if(fails, log)
        items.append(opaque(log, "deep"))
        return len(items)
    finally:
        log.append(depth)

def described(value):
    match value:
        case 0 | 1:
            return "small"
        case int(number) if number > 5:
            return f"large {number}"
        case Point(x=0, y=y):
            return f"axis {y}"
        case Point(x, tags=[first, *rest]):
            return f"point {x} {first} {rest}"
        case Pair(one, Pair(x, y)):
            return f"pairs {one} {x} {y}"
        case Pair(one=one):
            return f"pair {one}"
        case [x, *_, y]:
            return f"list {x} {y}"
        case {"k": k, **rest}:
            return f"dict {k} {sorted(map(str, rest))}"
        case str() as text:
            return text
        case _:
            return "other"
'''

BEGIN = """
def program(a, log):
    global counted
    counted = 0
    b = a + 1
    m, n = 1, 2
    p, q = [1, 2, 3], []
    d = {"k": 1}
    s = {1, 2}
    t = (1, 2, 3)
    point = Point(1, 2)
    pair = Pair(1, 2)
    thing = Base(log, 2)
    other = Derived(log, 3)
    g = steps(log, 3)
    def bump(by=1, *more, key=0, **rest):
        nonlocal m
        m = (m + by + sum(more) + key + len(rest)) % 17
        return m
    def breaking(by=1):
        nonlocal n, b
        n = (n + by) % 13
        opaque(log, "in breaking", n)
        b = b * 0.5 + n
        def inside():
            nonlocal n
            global counted
            counted += 1
            n += 1
            opaque(log, "inside", n)
            return bump(n)
        return inside()
"""

END = (
    "    return (a, b, m, n, p, q, sorted(d.items(), key=repr), sorted(s), t, point, pair, thing.level, other.level,"
    " counted, len(Base.kinds) and Base.kinds[-1])"
)


class Language:
    """Writes one program. `budget` bounds the number of statements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.budget = 18
        self.names = 0

    def source(self) -> str:
        lines: list[str] = []
        while self.budget > 0:
            lines += self.block(1, loop=False)
        return PRELUDE + BEGIN + "\n".join(lines) + "\n" + END + "\n"

    # ---- expressions ----

    def number(self) -> str:
        r = self.random
        return r.choice(
            [
                *("m", "n", "len(p)", "point.x", "pair.other", "thing.double", "counted", "len(Base)", "m & 3"),
                str(r.randint(0, 4)),
                "opaque(log, m)",
                "thing.any_name",
                "t[1]",
                "sum(x for x in p if x) % 11",
                "max(s, default=0)",
                "functools.reduce(lambda x, y: (x + y) % 7, p, 1)",
                "next((x for x in q if x > 2), 5)",
                "(y := m + 1)",
                "thing(1, 2, key=m, z=3)",
                'd.get("k", 3) % 19',
                "min([*p, 3], key=lambda x: -x) % 9",
            ]
        )

    def call(self) -> str:
        """A call that may break inside."""
        r, x = self.random, self.number()
        return r.choice(
            [
                f"bump({x})",
                f"bump({x}, 1, 2, key={self.number()}, z=1)",
                "bump(*p[:2], **{'key': 2})",
                f"breaking({x})",
                "thing.step()",
                "other.step()",
                "other.loud(2)",
                f"thing.loud({x} % 3)",
                "deep(log, 2, q)",
                "deep(log, 3, p)",
                "len(changing(log, p))",
                f"Base.add({x}, {self.number()})",
                "next(g, 0)",
                "sum(thing)",
                "max(thing)",
                "len(sorted(itertools.chain(thing, p)))",
                "point.moved(1).x",
                "sum(map(bump, [1, 2]))",
                "sum(breaking(i) for i in range(2))",
                "Derived.make(log, level=1).loud()",
                "getattr(other, 'step')(by=1)",
                "functools.partial(breaking, by=2)()",
            ]
        )

    def condition(self) -> str:
        r = self.random
        return r.choice(
            [
                f"{self.number()} > {r.randint(0, 3)}",
                f"{self.call()} % 2 == 0",
                f"{self.number()} in p",
                "thing == other",
                "not q",
                "isinstance(thing, Derived) or m > 3",
                "a.sum() > 0",
                f"1 < {self.number()} < 7 and {self.call()}",
            ]
        )

    # ---- statements ----

    def block(self, depth: int, loop: bool) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 3) if depth > 1 else 8):
            if self.budget <= 0:
                break
            self.budget -= 1
            lines += self.statement(depth, loop)
        return lines or ["    " * depth + "pass"]

    def statement(self, depth: int, loop: bool) -> list[str]:
        choices: list[Callable[[int, bool], list[str]]] = [self.simple] * 5
        if depth < 5:
            choices += [self.branch, self.loop, self.attempt, self.attempt, self.manage, self.define, self.make_class]
            choices += [self.coroutine]
        if loop:
            choices.append(self.leave_loop)
        return [
            "    " * depth + line if not line.startswith("@@") else line[2:] for line in self.made(choices, depth, loop)
        ]

    def made(self, choices: list[Callable[[int, bool], list[str]]], depth: int, loop: bool) -> list[str]:
        return self.random.choice(choices)(depth, loop)

    def inner(self, depth: int, loop: bool) -> list[str]:
        return ["@@" + line for line in self.block(depth + 1, loop)]

    def simple(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        x, y, call = self.number(), self.number(), self.call()
        return r.choice(
            [
                [f"m = ({call} + {x}) % 17"],
                [f"n = {call} % 13"],
                [f"{call}"],
                [f"a = a * 0.5 + {x}"],
                [f"b = torch.maximum(a, b * {call})"],
                [f"p.append({call} % 7)"],
                [f"q[:] = [x + {x} for x in p]", "q.reverse()"],
                ["p = p[-4:] or [1]"],
                ["q.sort(key=lambda x: (x * 7) % 5)"],
                [f"d[{call}] = {x}"],
                [f'd.setdefault("l", {x})', 'd["k"] = d.pop("l") + 1'],
                ["for key in list(d): d.pop(key) if len(d) > 3 else None"],
                [f'd |= {{"z": {x}}}', "d.pop('z')"],
                [f"s.add({x} % 20)", "s.discard(1)"],
                [f"s = s | {{{x} % 9}}", "s -= {2}"],
                [f"point.x = {call} % 40", "point.tags.append(point.y)"],
                [f"point = point.moved({x} % 5)"],
                [f"pair = pair._replace(one={x})"],
                [f"pair = Pair({x}, Pair({y}, 3))", "pair = Pair(*pair.other)"],
                [f"first, *rest = {x}, *p, {y}", "m = (m + first + len(rest)) % 17"],
                [f"log.append(described({r.choice(('m', 'p', 'd', 'point', 'pair', 't', 'Pair(1, pair)'))}))"],
                [f"log.append(g.send({x} if m % 2 else None) if n % 2 else next(g, 0))"],
                ["log.append(g.throw(KeyError('in')))"],
                ["g.close()", f"g = delegating(log, {r.randint(1, 3)})"],
                ["log.extend(itertools.islice(g, 1))"],
                ["log.append(list(delegating(log, 2)))"],
                [f"thing.level = {x} % 40"],
                [f"thing.double = {call} % 60"],
                ["thing.extra = m", "del thing.extra"],
                [f"t = (*t[1:], {x})"],
                [f"slotted = Slotted({x})", "slotted.y = m", "del slotted.y", "log.append(hasattr(slotted, 'y'))"],
                [f"log.append(f'{{m:>3}}|{{{x}!r}}|{{p}}')"],
                [f"assert m < {r.randint(5, 18)}, 'assertion'"],
                [f"fail_if({x} > 6, log)"],
                ["lazy = (opaque(log, x) for x in p)", "log.append(next(lazy, None))", "lazy.close()"],
                [f"log.append([*zip(p, thing, strict=False)] and {x})"],
                ["p, q = q, p", "del p[1:2]"],
                ["log.append(sorted([Fixed(3), Fixed(1)])[0].x)"],
                ["del b", "b = a * 2"],
            ]
        )

    def branch(self, depth: int, loop: bool) -> list[str]:
        lines = [f"if {self.condition()}:", *self.inner(depth, loop)]
        if self.random.random() < 0.5:
            lines += ["else:", *self.inner(depth, loop)]
        return lines

    def loop(self, depth: int, loop: bool) -> list[str]:
        r, name = self.random, f"i{depth}"
        head = r.choice(
            [
                f"for {name} in range({r.randint(1, 4)}):",
                f"for {name}, _ in enumerate(list(p)[:3]):",
                f"for {name} in sorted(s)[:2]:",
                f"for {name} in thing:",
                f"for {name} in delegating(log, 2):",
                f"for {name}, _ in zip(itertools.count(), [1, 2]):",
            ]
        )
        lines = [head, *self.inner(depth, True), f"    m = (m + {name}) % 17"]
        if r.random() < 0.3:
            lines += ["else:", *self.inner(depth, loop)]
        return lines

    def leave_loop(self, depth: int, loop: bool) -> list[str]:
        return [f"if {self.condition()}:", f"    {self.random.choice(['break', 'continue'])}"]

    def attempt(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        lines = ["try:", *self.inner(depth, loop)]
        raising = r.choice(
            ["fail_if(m % 2 == 0, log)", "p[99]", "raise ValueError(m)", "deep(log, 2, q, True)", "1 // 0"]
        )
        lines.append(f"    {raising}")
        kinds = r.sample(["KeyError", "(ValueError, IndexError)", "ZeroDivisionError", "Exception"], r.randint(0, 2))
        kinds.sort(key="Exception".__eq__)
        for kind in kinds:
            lines += [f"except {kind} as error:", "    log.append((type(error).__name__, str(error)))"]
            lines += self.inner(depth, loop)
            if r.random() < 0.2:
                lines.append(r.choice(["    raise", "    raise RuntimeError('another') from error"]))
        if kinds and r.random() < 0.3:
            lines += ["else:", *self.inner(depth, loop)]
        if not kinds or r.random() < 0.6:
            lines += ["finally:", f"    {self.call()}", *self.inner(depth, False)]
        return lines

    def manage(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        head = r.choice(
            [
                "with managed(log, True) as held:",
                "with managed(log, False):",
                "with thing as held, managed(log, True):",
                "with contextlib.suppress(KeyError), other:",
                "with torch.no_grad():",
                "with contextlib.ExitStack() as stack:",
            ]
        )
        lines = [head]
        if "stack" in head:
            lines.append("    stack.callback(opaque, log, 'callback')")
            lines.append("    stack.enter_context(managed(log, True))")
        return [*lines, *self.inner(depth, loop), f"    {self.call()}"]

    def define(self, depth: int, loop: bool) -> list[str]:
        """A function inside, which changes variables of the frames around it and may return from the middle."""
        self.names += 1
        name = f"made{self.names}"
        lines = [f"def {name}(x, *rest, k=1):", "    nonlocal a, b, m, n, p, q, s, d, t, point, pair, g"]
        lines += self.inner(depth, False)
        if self.random.random() < 0.5:
            lines += [f"    if {self.condition()}:", "        return x", *self.inner(depth, False)]
        lines.append("    return x + k + len(rest)")
        return [
            *lines,
            f"m = {self.random.choice([f'{name}(m)', f'{name}(*p, k=m)', f'sum(map({name}, p[:3]))'])} % 17",
        ]

    def make_class(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        self.names += 1
        name = f"Made{self.names}"
        head = r.choice(
            [f"class {name}(Base):", f"class {name}(Derived, extra=1):", f"class {name}(Base, list_like=2):"]
        )
        lines = [head, f"    size = {self.number()}", "    level = Checked()"]
        lines += [
            "    def step(self, by=1):",
            f"        opaque(log, {name!r})",
            "        return super().step(by) + self.size",
        ]
        if r.random() < 0.5:
            lines += ["    @functools.cached_property", "    def cached(self):", "        return bump(self.size)"]
            lines += [f"held = {name}(log)", "m = (held.cached + held.cached) % 17"]
        return [*lines, f"thing = {name}(log, {self.number()} % 30)", f"m = (m + {name}.size + len({name})) % 17"]

    def coroutine(self, depth: int, loop: bool) -> list[str]:
        self.names += 1
        name = f"routine{self.names}"
        return [
            f"async def {name}(x):",
            "    nonlocal m",
            "    async with contextlib.AsyncExitStack() as stack:",
            "        stack.callback(log.append, 'async')",
            f"        m = (m + opaque(log, x) + {self.call()}) % 17",
            "    return m",
            "try:",
            f"    {name}({self.number()}).send(None)",
            "except StopIteration as stop:",
            "    log.append(stop.value)",
        ]


def generate_language(seed: int) -> str:
    """Source of a module with a function `program(a, log)`."""
    return Language(seed).source()
