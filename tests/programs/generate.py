"""Random small Python programs over tensors, numbers, containers, closures, loops, exceptions and context managers."""

from __future__ import annotations

import random

TENSORS, NUMBERS, LISTS = ("a", "b", "c"), ("m", "n"), ("p", "q")

PRELUDE = """
import torch
import stator

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

class Manager:
    def __init__(self, log, swallow):
        self.log, self.swallow = log, swallow
    def __enter__(self):
        self.log.append("enter")
        return self
    def __exit__(self, kind, value, trace):
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow and kind is not None and issubclass(kind, Exception)

class Box:
    def __init__(self, value):
        self.value, self.count = value, 0
    def bump(self, by=1):
        self.count += by
        return self.count
"""

BEGIN = """
def program(a, log):
    b, c = a + 1, a * 0.5
    m, n = 1, 2
    p, q = [1, 2], []
    d = {"k": 1}
    box = Box(a)
    def inner(x, k=2):
        nonlocal m
        m = (m + k) % 5
        return x * m
"""


class Generator:
    """Writes one program. `budget` bounds the number of statements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.budget = 22
        self.names = 0

    def source(self) -> str:
        lines = self.block(1, loop=False)
        result = "    return a, b, c, m, n, p, q, d, box.count, box.value"
        return PRELUDE + BEGIN + "\n".join(lines) + "\n" + result + "\n"

    # ---- expressions ----

    def number(self) -> str:
        r = self.random
        return r.choice(
            [
                r.choice(NUMBERS),
                str(r.randint(0, 4)),
                f"len({r.choice(LISTS)})",
                f"({r.choice(NUMBERS)} * {r.randint(1, 3)} + 1) % 7",
                'd.get("k", 3)',
                "box.count",
                f"max({r.choice(NUMBERS)}, {r.randint(0, 3)})",
            ]
        )

    def tensor(self) -> str:
        r = self.random
        x, y = r.choice(TENSORS), r.choice(TENSORS)
        return r.choice(
            [
                f"{x} + {y}",
                f"{x} * {self.number()}",
                f"({x} - {y}).tanh()",
                f"torch.maximum({x}, {y})",
                f"inner({x})",
                f"inner({x}, k={self.number()})",
                f"torch.where({x} > {y}, {x}, {y} * 0.5)",
                f"{x}.clone()",
                "box.value * 0.5",
                f"sum([{x} * i for i in range(3)], {y})",
            ]
        )

    def condition(self) -> str:
        r = self.random
        return r.choice(
            [
                f"{self.number()} > {r.randint(0, 3)}",
                f"{self.number()} == {self.number()}",
                f"{r.choice(TENSORS)}.sum() > {r.randint(-2, 2)}",
                f"not {r.choice(LISTS)}",
                f"{self.number()} in {r.choice(LISTS)}",
                f"{self.number()} > 1 and {r.choice(TENSORS)}.mean() < 1",
            ]
        )

    # ---- statements ----

    def block(self, depth: int, loop: bool) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 4) if depth > 1 else 9):
            if self.budget <= 0:
                break
            self.budget -= 1
            lines += self.statement(depth, loop)
        return lines or ["    " * depth + "pass"]

    def statement(self, depth: int, loop: bool) -> list[str]:
        simple = [self.assign, self.assign, self.call_out, self.mutate, self.mutate, self.in_place]
        nested = [self.branch, self.for_loop, self.while_loop, self.attempt, self.manage, self.define]
        choices = simple + (nested if depth < 4 else [])
        if loop:
            choices.append(self.leave_loop)
        made = self.random.choice(choices)(depth, loop)
        return [
            "    " * depth + line if index == 0 or not line.startswith("@@") else line[2:]
            for index, line in enumerate(made)
        ]

    def assign(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        return [
            r.choice(
                [
                    f"{r.choice(TENSORS)} = {self.tensor()}",
                    f"{r.choice(TENSORS)} = {self.tensor()}",
                    f"{r.choice(NUMBERS)} = {self.number()}",
                    f"{r.choice(NUMBERS)} += {self.number()}",
                    "a, b = b, a",
                    f"m, *q = [{self.number()}, {self.number()}, 3]",
                    f"c = (lambda v, w={self.number()}: v + w)({r.choice(TENSORS)})",
                ]
            )
        ]

    def call_out(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        return [
            r.choice(
                [
                    f"opaque(log, {r.choice(TENSORS)}, {self.number()})",
                    f"n = opaque(log, {self.number()})",
                    f"b = {self.tensor()} + opaque(log, {self.number()}) * {r.choice(TENSORS)}",
                    f"q.append(opaque(log, *p[:2], {self.number()}))",
                    "log.append(m)",
                    f"print({self.number()}, end='')",
                ]
            )
        ]

    def mutate(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        return [
            r.choice(
                [
                    f"{r.choice(LISTS)}.append({self.number()})",
                    f"{r.choice(LISTS)}.insert(0, {self.number()})",
                    f'd["{r.choice("kjh")}"] = {self.number()}',
                    "d.pop('j', None)",
                    f"box.bump({self.number()})",
                    f"box.value = {self.tensor()}",
                    f"p = [v + {self.number()} for v in p][:5]",
                    "q = q[-3:]",
                    f"q.extend(p[:{r.randint(0, 2)}])",
                    "p.reverse()",
                    "p, q = q, p",
                    "q = [opaque(log, v) % 3 for v in p[:2]]",
                    "d = {k: opaque(log, k, v) + m for k, v in d.items()}",
                    f"c = sum([f() for f in [(lambda: v * {r.choice(TENSORS)}) for v in range(2)]], b)",
                    "n = sum([[(lambda: v + w)() for w in range(2)][n % 2] + opaque(log, v) for v in p[:2]]) % 5",
                    "n = len([v for v in p if (lambda: v + opaque(log))() > 2])",
                ]
            )
        ]

    def in_place(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        x = r.choice(TENSORS)
        return [
            r.choice([f"{x} = {x}.clone(); {x} += 1", f"{x} = {x} * 1; {x}[0] = 2", f"{x} = {x} + 0; {x}.mul_(0.5)"])
        ]

    def branch(self, depth: int, loop: bool) -> list[str]:
        lines = [f"if {self.condition()}:", *self._nested(depth, loop)]
        if self.random.random() < 0.6:
            lines += [f"@@{'    ' * depth}else:", *self._nested(depth, loop)]
        return lines

    def for_loop(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        name = self._name()
        over = r.choice([f"range({r.randint(1, 3)})", "list(p)[:2]", "enumerate([a, b])", "sorted(d)[:2]"])
        target = f"{name}, _" if over.startswith("enumerate") else name
        lines = [f"for {target} in {over}:", *self._nested(depth, True)]
        if r.random() < 0.3:
            lines += [f"@@{'    ' * depth}else:", *self._nested(depth, loop)]
        return lines

    def while_loop(self, depth: int, loop: bool) -> list[str]:
        name = self._name()
        inside = "    " * (depth + 1)
        return [
            f"{name} = 0",
            f"@@{'    ' * depth}while {name} < {self.random.randint(1, 3)} and m < 9:",
            f"@@{inside}{name} += 1",
            *self._nested(depth, True),
        ]

    def attempt(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        here, inside = "    " * depth, "    " * (depth + 1)
        risk = r.choice(
            [
                f"fail_if({self.condition()}, log)",
                f"p[{self.number()} + 1]",
                f"m // ({self.number()})",
                'd["j"]',
                "int('z')",
            ]
        )
        lines = ["try:", *self._nested(depth, loop), f"@@{inside}{risk}", *self._nested(depth, loop)]
        kind = r.choice(["KeyError", "LookupError", "(ValueError, KeyError)", "Exception", "ZeroDivisionError"])
        lines += [f"@@{here}except {kind} as error:", f"@@{inside}log.append(type(error).__name__)"]
        lines += self._nested(depth, loop)
        if r.random() < 0.3:
            lines += [f"@@{here}else:", *self._nested(depth, loop)]
        if r.random() < 0.4:
            lines += [f"@@{here}finally:", *self._nested(depth, False)]
        return lines

    def manage(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        manager = r.choice([f"Manager(log, {r.choice([True, False])})", "torch.no_grad()", "torch.enable_grad()"])
        lines = [f"with {manager}:", *self._nested(depth, loop)]
        if r.random() < 0.3:
            lines += [f"@@{'    ' * (depth + 1)}fail_if({self.condition()}, log)", *self._nested(depth, loop)]
        return lines

    def define(self, depth: int, loop: bool) -> list[str]:
        r = self.random
        name, inside = self._name(), "    " * (depth + 1)
        return [
            f"def {name}(v, *rest, scale={self.number()}):",
            f"@@{inside}nonlocal n",
            f"@@{inside}n = (n + scale) % 4",
            *([f"@@{inside}opaque(log, v)"] if r.random() < 0.4 else []),
            f"@@{inside}return v * n + len(rest) + {r.choice(TENSORS)}.sum()",
            f"@@{'    ' * depth}c = {name}({r.choice(TENSORS)}, {self.number()})",
        ]

    def leave_loop(self, depth: int, loop: bool) -> list[str]:
        return [f"if {self.condition()}: {self.random.choice(['break', 'continue'])}"]

    def _nested(self, depth: int, loop: bool) -> list[str]:
        return ["@@" + line for line in self.block(depth + 1, loop)]

    def _name(self) -> str:
        self.names += 1
        return f"t{self.names}"


def generate(seed: int) -> str:
    """The source of a module with `program(a, log)`."""
    return Generator(seed).source()
