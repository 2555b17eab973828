"""Random Python programs for tests of capture: what a generated function may say, as strategies of hypothesis.

A program is the text of `def program(i0, i1, t0, t1, xs, d, o)`. It may call what `namespace` offers, changes its
arguments, a global number `g` and the list `log`, breaks the graph by `opaque`, and may raise. Loops end.
"""

from __future__ import annotations

import contextlib
import operator
from collections import Counter, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache, partial, reduce
from itertools import accumulate, chain, groupby, islice, product
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

import stator

Draw = Callable[[st.SearchStrategy[Any]], Any]
INDENT = "    "


class Thing:
    """An object of the user's with attributes, a property and methods."""

    scale = 2

    def __init__(self, p: int, q: torch.Tensor) -> None:
        self.p, self.q = p, q

    @property
    def double(self) -> int:
        return self.p * self.scale

    def bump(self, by: int = 1) -> int:
        self.p += by
        return self.p

    def __add__(self, other: int) -> int:
        return self.p + other

    def __len__(self) -> int:
        return abs(self.p) % 3

    def __iter__(self) -> Iterator[int]:
        yield self.p
        yield from range(2)


class Failure(Exception):
    pass


Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = 0
    BLUE = 1


@dataclass
class Record:
    number: int
    name: str = "record"
    parts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts.append(self.number)


@lru_cache
def cached(value: int) -> int:
    return value * 2


def namespace(log: list[Any]) -> dict[str, Any]:
    """The globals of a program; what happens in it is written into `log`."""

    @stator.disable
    def opaque(value: int) -> int:
        log.append(("opaque", value))
        return value + 1

    @contextlib.contextmanager
    def logged(name: str, swallows: bool = False) -> Iterator[str]:
        log.append(("enter", name))
        try:
            yield name
        except Failure:
            log.append(("failed", name))
            if not swallows:
                raise
        finally:
            log.append(("exit", name))

    class Managed:
        def __init__(self, swallows: bool) -> None:
            self.swallows = swallows

        def __enter__(self) -> int:
            log.append("in")
            return 3

        def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
            log.append(("out", None if kind is None else kind.__name__))
            return self.swallows and kind is not None and issubclass(kind, Failure)

    return {
        **{"torch": torch, "log": log, "opaque": opaque, "logged": logged, "Managed": Managed, "Failure": Failure},
        **{"Thing": Thing, "partial": partial, "reduce": reduce, "operator": operator, "chain": chain},
        **{"accumulate": accumulate, "groupby": groupby, "product": product, "Counter": Counter, "deque": deque},
        **{"defaultdict": defaultdict, "Point": Point, "Record": Record, "Colour": Colour, "cached": cached},
        **{
            "copy": copy,
            "deepcopy": deepcopy,
            "replace": replace,
            "islice": islice,
            "g": 1,
            "__name__": "random_program",
        },
    }


def arguments() -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(5)
    t0, t1, q = (torch.randn(3, generator=generator) for _ in range(3))
    return 2, -1, t0, t1, [1, 2, 3], {"a": 1, "b": 2}, Thing(4, q)


# ---- expressions ----

INTS = ("i0", "i1", "o.p", "g", "len(xs)", "len(d)", "d.get('a', 7)", "o.double", "o + 1", "len(o)", "int(bool(xs))")
TENSORS = ("t0", "t1", "o.q")


def integer(draw: Draw, depth: int = 2) -> str:
    kind = draw(st.integers(0, 11)) if depth else draw(st.integers(0, 1))
    if kind == 0:
        return str(draw(st.integers(-3, 5)))
    if kind in (1, 2, 3):
        return draw(st.sampled_from(INTS))
    a, b = integer(draw, depth - 1), integer(draw, depth - 1)
    if kind == 4:
        return f"({a} {draw(st.sampled_from(['+', '-', '*', '//', '%', '&', '|', '^']))} {b})"
    if kind == 5:
        return f"({a} if {condition(draw, depth - 1)} else {b})"
    if kind == 6:
        return draw(st.sampled_from([f"sum(xs, {a})", f"max({a}, {b})", f"abs({a})", f"xs[{a}]", f"d[{key(draw)}]"]))
    if kind == 7:
        condition_ = condition(draw, depth - 1, "v")
        return draw(
            st.sampled_from(
                [
                    f"sum(v * {a} for v in xs if {condition_})",
                    f"len([v for v in range({a} % 4) if {condition_}])",
                    f"reduce(operator.add, [{a}, {b}])",
                    f"(lambda v, w=i1: v - w)({a})",
                    f"partial(max, {a})({b})",
                    f"next(islice(chain([{a}], xs), {b} % 3, None))",
                    f"len({{v % 2 for v in xs}} | {{{a}}})",
                ]
            )
        )
    if kind == 8:
        return f"o.bump({a})"
    if kind == 9:
        return f"(i1 := {a})"
    if kind == 10:
        return f"int({tensor(draw, depth - 1)}.sum() > 0)" if draw(st.integers(0, 3)) == 0 else f"t0.shape[0] + {a}"
    return f"sorted([{a}, {b}, i0])[1]"


def tensor(draw: Draw, depth: int = 2) -> str:
    kind = draw(st.integers(0, 5)) if depth else 0
    if kind == 0:
        return draw(st.sampled_from(TENSORS))
    a = tensor(draw, depth - 1)
    if kind == 1:
        return f"({a} {draw(st.sampled_from(['+', '-', '*']))} {tensor(draw, depth - 1)})"
    if kind == 2:
        return f"({a} {draw(st.sampled_from(['+', '*']))} {integer(draw, depth - 1)})"
    if kind == 3:
        return f"torch.{draw(st.sampled_from(['sin', 'relu', 'tanh', 'neg']))}({a})"
    if kind == 4:
        return f"torch.stack([{a}, t1])[{integer(draw, depth - 1)} % 2]"
    return f"sum([{a}, t0])"


def condition(draw: Draw, depth: int = 1, name: str = "i0") -> str:
    kind = draw(st.integers(0, 7))
    if kind == 0 and depth:
        return f"not ({condition(draw, depth - 1, name)})"
    if kind == 1 and depth:
        joined = draw(st.sampled_from(["and", "or"]))
        return f"({condition(draw, depth - 1, name)} {joined} {condition(draw, depth - 1, name)})"
    if kind == 2:
        return draw(st.sampled_from(["xs", "'a' in d", "isinstance(o, Thing)", "o", "3 in xs", "t0 is t1"]))
    if kind == 3:
        return f"-2 < {name} <= {integer(draw, 0)}"
    return f"{name} {draw(st.sampled_from(['<', '>', '==', '!=', '>=']))} {integer(draw, max(depth - 1, 0))}"


def key(draw: Draw) -> str:
    return repr(draw(st.sampled_from(["a", "b", "c"])))


VARIOUS = (
    "xs.index({a})",
    "xs.count({a})",
    "xs.insert({a}, i0)",
    "xs.remove({a})",
    "xs.pop({a})",
    "xs.sort(key=lambda v: -v)",
    "xs.sort(reverse=i0 > 0)",
    "xs[{a}:]",
    "xs[::-1]",
    "xs * 2 == [*xs, *xs]",
    "xs < [1, {a}]",
    "sorted(d, key=d.get)",
    "list(d.items())[{a} % 2]",
    "d.popitem()",
    "d | {{'c': {a}}}",
    "d.update(((k, {a} + len(d)) for k in 'de'))",
    "d.update(z={a}) or len(d)",
    "dict(zip('xy', xs))",
    "{{k: v for k, v in d.items() if v != {a}}}",
    "dict.fromkeys(xs, {a})",
    "{{*xs, {a}}} - {{i0}}",
    "frozenset(xs) & {{{a}}} or 'empty'",
    "set(xs).issuperset([{a}])",
    "'-'.join(map(str, xs))",
    "str({a}).zfill(3).split('0')",
    "f'{{o.double=}} {{t0.shape}} {{{a}!r:>4}}'",
    "'%d %s' % ({a}, xs)",
    "'{{0}} {{k}}'.format({a}, k=i1)",
    "divmod({a}, i0)",
    "round({a} / 3, 1)",
    "float({a}) ** 2",
    "bin({a})",
    "int('7') + {a}",
    "isinstance({a}, (int, str))",
    "getattr(o, 'extra', {a})",
    "hasattr(o, 'extra')",
    "o.missing",
    "type(o).__name__ + type({a}).__name__",
    "callable(o.bump) and o.bump.__name__",
    "all(v > {a} for v in xs)",
    "any(v > {a} for v in xs)",
    "min(xs, key=lambda v: abs(v - {a}))",
    "max(xs, default={a})",
    "list(filter(None, xs + [{a}]))",
    "list(accumulate(xs, initial={a}))",
    "[list(group) for _, group in groupby(xs, lambda v: v % 2)]",
    "list(zip(xs, 'abc', strict=False))",
    "list(product(xs[:2], [{a}]))",
    "list(chain.from_iterable([xs, [{a}]]))",
    "Counter(xs + [{a}]).most_common(1)",
    "sorted(defaultdict(list, {{1: [{a}]}})[i0])",
    "list(deque(xs + [{a}], maxlen=9))[-1]",
    "Point({a}, i1)._replace(x=5)",
    "Point(*xs[:2]).y",
    "replace(Record({a}), name='n')",
    "Record({a}) == Record(i0)",
    "Colour(abs({a}) % 2).name",
    "[c.value for c in Colour if c is not Colour.RED]",
    "cached({a})",
    "operator.itemgetter({a})(xs)",
    "operator.attrgetter('p')(o) + {a}",
    "copy(xs) is xs",
    "deepcopy([xs, {a}])",
    "(lambda *p, **k: (p, sorted(k)))(*xs[:2], **d)",
    "[w for w in (v * {a} for v in xs) if w]",
    "[*o, *map(lambda v: v + {a}, xs[:1])]",
    "slice({a}, None).indices(4)",
    "range({a}, 9, 2)[1:]",
    "range(-2, 9).index({a})",
    "range(-2, 9).count({a})",
    "'abcabc'.find('c', {a})",
    "(1, 2, {a}).index(2)",
    "(0.5).is_integer() + {a}",
    "b'ab'.hex() * ({a} % 3)",
    "list(reversed(range({a} % 5)))",
    "tuple(xs) + ({a},)",
    "hash(({a}, 'a')) == hash((i0, 'a'))",
    "id(xs) == id(xs)",
    "torch.tensor({a}).item() + int(torch.ones(2).sum())",
    "t0.tolist() == t1.tolist()",
    "t0.dtype is torch.float32 and t0.dim()",
    "len(t0) + t0.numel() + {a}",
    "[v.shape for v in t0.unsqueeze(0)]",
    "isinstance(t0, torch.Tensor) and t0.requires_grad",
)


def various(draw: Draw) -> str:
    """What the standard types and library offer; some of it raises."""
    return draw(st.sampled_from(VARIOUS)).format(a=integer(draw, 1))


# ---- statements: each gives lines ----


def simple(draw: Draw) -> list[str]:
    kind = draw(st.integers(0, 19))
    a = integer(draw)
    if kind <= 1:
        return [f"{draw(st.sampled_from(['i0', 'i1', 'o.p', 'g']))} {draw(st.sampled_from(['=', '+=', '-=']))} {a}"]
    if kind <= 4:
        return [f"{draw(st.sampled_from(TENSORS))} = {tensor(draw)}"]
    if kind == 5:
        return [f"xs.append({a})"]
    if kind == 6:
        return [draw(st.sampled_from(["xs.pop()", "xs.reverse()", f"xs[0] = {a}", "xs += [i0]", "del xs[-1:]"]))]
    if kind == 7:
        return [draw(st.sampled_from([f"d[{key(draw)}] = {a}", f"d.pop({key(draw)})", f"d.setdefault('c', {a})"]))]
    if kind == 8:
        return [f"log.append(f'{{i0}} {{{a}:>3}} {{xs!r}}')"]
    if kind <= 10:
        return [f"i0 = opaque({a})"]
    if kind == 11:
        return [f"i0, *rest = {a}, i1, 3", "log.append(rest)"]
    if kind == 12:
        return [f"t0.add_({integer(draw, 1)})"]
    if kind == 13:
        return [f"assert {condition(draw)}, 'broken'"]
    if kind == 14:
        return [f"setattr(o, 'extra', {a})", "log.append(sorted(vars(o)))"]
    if kind == 15:
        return [
            f"xs {draw(st.sampled_from(['.extend', '+=']))}(v + {a} for v in o)".replace("s .", "s."),
            "xs = xs[-5:]",
        ]
    if kind == 16:
        return [f"log.append({various(draw)})"]
    return [draw(st.sampled_from(["raise Failure(i0)", "raise ValueError(f'{i1}')", "raise KeyError"]))]


def block(draw: Draw, depth: int, loop: bool) -> list[str]:
    lines = [line for _ in range(draw(st.integers(1, 3))) for line in statement(draw, depth, loop)]
    return [INDENT + line for line in lines]


def branch(draw: Draw, depth: int, loop: bool) -> list[str]:
    lines = [f"if {condition(draw)}:", *block(draw, depth, loop)]
    if draw(st.booleans()):
        lines += [f"elif {condition(draw)}:", *block(draw, depth, loop)]
    return [*lines, "else:", *block(draw, depth, loop)] if draw(st.booleans()) else lines


def for_loop(draw: Draw, depth: int, loop: bool) -> list[str]:
    over = draw(
        st.sampled_from(
            [
                "i0 in range(3)",
                "i0 in list(xs[:4])",
                "k, i0 in sorted(d.items())",
                "k, i0 in enumerate([5, i1])",
                "i0, k in zip(xs[:3], range(9))",
                "i0 in o",
                "i0 in counted(3)",
                "i0 in reversed([1, 2])",
                "i0 in map(abs, xs[:3])",
            ]
        )
    )
    lines = [f"for {over}:", *block(draw, depth, True)]
    return [*lines, "else:", *block(draw, depth, loop)] if draw(st.integers(0, 3)) == 0 else lines


def while_loop(draw: Draw, depth: int, loop: bool) -> list[str]:
    name = f"n{depth}"
    body = block(draw, depth, True)
    return [f"{name} = 0", f"while {name} < {draw(st.integers(1, 3))}:", f"{INDENT}{name} += 1", *body]


def attempt(draw: Draw, depth: int, loop: bool) -> list[str]:
    lines = ["try:", *block(draw, depth, loop)]
    handled = draw(st.integers(0, 3))
    if handled:
        caught = draw(st.sampled_from(["Failure", "(ValueError, KeyError)", "Exception", "IndexError"]))
        lines += [
            f"except {caught} as e:",
            f"{INDENT}log.append((type(e).__name__, str(e)))",
            *block(draw, depth, loop),
        ]
        if draw(st.integers(0, 3)) == 0:
            again = draw(st.sampled_from(["raise", "raise Failure('again')", "raise Failure('again') from e"]))
            lines.append(INDENT + again)
        if draw(st.integers(0, 2)) == 0:
            lines += ["else:", *block(draw, depth, loop)]
    if not handled or draw(st.integers(0, 2)) == 0:
        lines += ["finally:", *[line for line in block(draw, depth, False) if "return" not in line]]
    return lines


def with_block(draw: Draw, depth: int, loop: bool) -> list[str]:
    manager = draw(
        st.sampled_from(
            ["logged('a')", "logged('b', True) as k", "Managed(False) as i0", "Managed(True)", "torch.no_grad()"]
        )
    )
    return [f"with {manager}:", *block(draw, depth, loop)]


def nested_function(draw: Draw, depth: int, loop: bool) -> list[str]:
    body = [line.replace("t0.add_", "t1.mul").replace("xs = ", "ys = ") for line in block(draw, depth, False)]
    declared = [f"{INDENT}nonlocal i0, i1, t0, t1", f"{INDENT}global g"]
    lines = [f"def inner(k=i0, *more, w={integer(draw, 1)}):", *declared, *body, f"{INDENT}return k + w + len(more)"]
    call = draw(st.sampled_from(["inner()", "inner(1, w=2)", "inner(*xs[:2])", "inner(**{'k': 3})"]))
    return [*lines, f"log.append({call})"]


def generator(draw: Draw, depth: int, loop: bool) -> list[str]:
    lines = ["def made(k):", f"{INDENT}sent = yield k", f"{INDENT}log.append(sent)"]
    lines += [f"{INDENT}yield from counted({integer(draw, 1)} % 3)", f"{INDENT}return {integer(draw, 1)}"]
    use = draw(
        st.sampled_from(
            [
                ["log.append(list(made(i0)))"],
                ["m = made(i1)", "log.append(next(m))", "log.append(next(m, None))", "m.close()"],
                ["m = made(i1)", "log.append([next(m), m.send(5)])"],
                ["for i0 in made(2):", f"{INDENT}if i0 > 1:", f"{INDENT * 2}break"],
            ]
        )
    )
    return [*lines, *use]


def matching(draw: Draw, depth: int, loop: bool) -> list[str]:
    subject = draw(st.sampled_from(["i0", "xs", "d", "(i0, i1)", "o"]))
    lines = [f"match {subject}:"]
    for pattern in ["1 | 2", "[a, *_] if a > 1", "{'a': i1}", "Thing(p=i1)", "(i0, -1)"]:
        if draw(st.booleans()):
            lines += [f"{INDENT}case {pattern}:", *[INDENT + line for line in block(draw, depth, loop)]]
    return [*lines, f"{INDENT}case _:", f"{INDENT * 2}log.append('none')"]


COMPOUND = (
    branch,
    branch,
    for_loop,
    for_loop,
    while_loop,
    attempt,
    attempt,
    with_block,
    nested_function,
    generator,
    matching,
)


def statement(draw: Draw, depth: int, loop: bool) -> list[str]:
    kind = draw(st.integers(0, 9))
    if kind >= 6 and depth:
        return draw(st.sampled_from(COMPOUND))(draw, depth - 1, loop)
    if kind == 5 and loop:
        return [f"if {condition(draw)}:", f"{INDENT}{draw(st.sampled_from(['break', 'continue']))}"]
    if kind == 4 and draw(st.integers(0, 5)) == 0:
        return [f"if {condition(draw)}:", f"{INDENT}return {integer(draw)}, {tensor(draw)}"]
    return simple(draw)


@st.composite
def programs(draw: Draw) -> str:
    """The text of a program."""
    body = [line for _ in range(draw(st.integers(2, 6))) for line in statement(draw, 3, False)]
    head = ["def counted(n):", f"{INDENT}for v in range(n):", f"{INDENT * 2}log.append(v)", f"{INDENT * 2}yield v", ""]
    end = "return i0, i1, t0, t1, xs, d, o.q"
    lines = [*head, "def program(i0, i1, t0, t1, xs, d, o):", f"{INDENT}global g", *[INDENT + line for line in body]]
    source = "\n".join([*lines, INDENT + end, ""])
    try:
        compile(source, "<program>", "exec")
    except SyntaxError:  # e.g. := in what a comprehension runs over
        assume(False)
    return source
