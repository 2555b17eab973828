"""Graphs of loop nodes that use each part of the vocabulary once, for the Triton printer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_harness import Graph

from stator.inductor.loops.float8 import BYTES
from stator.inductor.loops.vocabulary import ELEMENTWISE, ITERATIVE, REDUCTIONS, SCANS, VOCABULARY

F32, F64, I32, I64, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool
GRAPHS: dict[str, Callable[[], Graph]] = {}


def graph(name: str) -> Callable[[Callable[[Graph], None]], Callable[[Graph], None]]:
    def register(fill: Callable[[Graph], None]) -> Callable[[Graph], None]:
        def make() -> Graph:
            torch.manual_seed(0)
            made = Graph()
            fill(made)
            return made

        GRAPHS[name] = make
        return fill

    return register


# Where a function is defined, if not everywhere
_DOMAINS = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "pow", "reciprocal"), (0.1, 4.0)),
    **dict.fromkeys(("asin", "acos", "atanh"), (-0.9, 0.9)),
    "acosh": (1.1, 4.0),
    "log1p": (-0.9, 4.0),
}


def values(name: str, dtype: torch.dtype, count: int, operand: int) -> torch.Tensor:
    if dtype is BOOL:
        return torch.rand(count) < 0.5
    if not dtype.is_floating_point:
        drawn = torch.randint(0, 5, (count,)) if "shift" in name else torch.randint(-9, 10, (count,))
        if operand == 1 and name == "pow":
            drawn = drawn.abs()
        if operand == 1 and name in ("floor_div", "trunc_div", "mod", "fmod"):
            drawn[drawn == 0] = 3
        return drawn.to(dtype)
    low, high = _DOMAINS.get(name, (-3.0, 3.0))
    drawn = torch.rand(count, dtype=torch.float64) * (high - low) + low
    if name in ("maximum", "minimum", "fmax", "fmin", "isnan", "isinf", "eq", "lt", "ne", "ge"):
        drawn[operand::7] = float("nan")
        drawn[3 + operand :: 11] = float("inf")
    return drawn.to(dtype)


def elementwise(name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    info = VOCABULARY[name]

    @graph(f"{name} of {', '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}")
    def fill(made: Graph) -> None:
        inputs = [made.input(values(name, dtype, 100, at)) for at, dtype in enumerate(dtypes)]
        out = made.buffer([100], BOOL if info.result == "bool" else dtypes[-1])

        def body(ops: Any, index: Any, _: Any) -> None:
            ops.store(out, index[0] + 0, ops.elementwise(name, *[ops.load(each, index[0] + 0) for each in inputs]))

        made.node([out], body, [100])
        made.outputs = [out]


_DTYPES = {"float": (F32, F64), "int": (I32, I64, BOOL), "number": (F32, I64), "any": (F32, I64, BOOL)}
_NOT_YET = {("lshift", BOOL), ("rshift", BOOL), ("floor_div", BOOL), ("trunc_div", BOOL)}
for _name in sorted(ELEMENTWISE - ITERATIVE - {"where"}):
    for _dtype in _DTYPES[VOCABULARY[_name].domain]:
        if (_name, _dtype) not in _NOT_YET:
            elementwise(_name, (_dtype,) * VOCABULARY[_name].arity)
elementwise("where", (BOOL, F32, F32))


def reduction(kind: str, dtype: torch.dtype, rows: int, columns: int, strided: bool) -> None:
    @graph(f"{kind} of {dtype}, {rows} x {columns}{', strided' if strided else ''}")
    def fill(made: Graph) -> None:
        drawn = values(kind, dtype, rows * columns, 0)
        if kind in ("max", "min", "argmax", "argmin") and dtype.is_floating_point:
            drawn[5::101] = float("nan")
            drawn[: rows * columns // 2] = -float("inf")
        elif kind == "prod":
            drawn = drawn.clamp(-1, 1)
        given = made.input(drawn)
        out = made.buffer([rows], I64 if "arg" in kind else BOOL if kind in ("any", "all") else dtype)

        def body(ops: Any, index: Any, inner: Any) -> None:
            at = inner[0] * rows + index[0] if strided else index[0] * columns + inner[0]
            ops.store(out, index[0] + 0, ops.reduce(kind, ops.load(given, at)))

        made.node([out], body, [rows], [columns])
        made.outputs = [out]


for _kind in REDUCTIONS:
    if _kind == "xor_sum":
        continue  # the reference evaluator does not have it
    # a row of its own block, a block of rows, a looped row, and looped rows side by side
    for _number, _shape in enumerate(((3, 37, False), (5, 64, True), (2, 5000, False), (70, 2100, True))):
        _float = (F32, I64)[_number == 1]
        reduction(_kind, BOOL if _kind in ("any", "all") else _float, *_shape)


def scan(kind: str, dtype: torch.dtype, rows: int, columns: int, strided: bool) -> None:
    @graph(f"scan {kind} of {dtype}, {rows} x {columns}{' strided' if strided else ''}, and what follows")
    def fill(made: Graph) -> None:
        drawn = torch.randn(rows * columns) * 5 if kind == "logsumexp" else 1 + torch.randn(rows * columns) / 99
        given = made.input(torch.randint(-3, 4, (rows * columns,)) if dtype is I64 else drawn.to(dtype))
        out, largest, rest = (made.buffer(shape, dtype) for shape in ([rows, columns], [rows], [rows, columns]))
        at = lambda one, other: other * rows + one if strided else one * columns + other  # noqa: E731

        def body(ops: Any, index: Any, inner: Any) -> None:
            found = ops.scan(kind, ops.load(given, at(index[0], inner[0])))
            ops.store(out, at(index[0], inner[0]), found)
            ops.store(largest, index[0] + 0, ops.reduce("max", found))

        def behind(ops: Any, index: Any, _: Any) -> None:
            # a difference would show how the order of additions rounds
            found = ops.add(ops.load(out, at(*index)), ops.load(largest, index[0] + 0))
            ops.store(rest, at(*index), found)

        made.node([out, largest], body, [rows], [columns])
        made.node([rest], behind, [rows, columns])
        made.outputs = [out, largest, rest]


for _kind in SCANS:
    for _number, _shape in enumerate(((3, 37, False), (5, 64, True), (2, 5000, False), (70, 2100, True))):
        scan(_kind, I64 if _number == 1 and _kind == "sum" else F32, *_shape)


@graph("a row is normalised after its mean and variance are known")
def _(made: Graph) -> None:
    for rows, columns in ((4, 48), (3, 3000), (2, 17000)):
        given = made.input(torch.randn(rows, columns))
        mean, variance, out = made.buffer([rows], F32), made.buffer([rows], F32), made.buffer([rows, columns], F32)

        def statistics(ops: Any, index: Any, inner: Any, c=columns, g=given, m=mean, v=variance) -> None:
            average, squares, count = ops.welford(ops.load(g, index[0] * c + inner[0]))
            ops.store(m, index[0] + 0, average)
            ops.store(v, index[0] + 0, ops.div(squares, count))

        def normalised(ops: Any, index: Any, _: Any, c=columns, g=given, m=mean, v=variance, o=out) -> None:
            at = index[0] * c + index[1]
            centred = ops.sub(ops.load(g, at), ops.load(m, index[0] + 0))
            scale = ops.rsqrt(ops.add(ops.load(v, index[0] + 0), ops.constant(1e-5, F32)))
            ops.store(o, at, ops.mul(centred, scale))

        made.node([mean, variance], statistics, [rows], [columns])
        made.node([out], normalised, [rows, columns])
        made.outputs.append(out)


def pointwise(name: str, sizes: tuple[int, ...], operands: list[tuple[int, ...]], out_strides: tuple[int, ...]) -> None:
    """The sum of operands given by their strides, 0 where they are equal along a loop."""

    @graph(name)
    def fill(made: Graph) -> None:
        counts = [1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) for strides in operands]
        given = [made.input(torch.randn(count)) for count in counts]
        out = made.buffer(sizes, F32, out_strides)

        def body(ops: Any, index: Any, _: Any) -> None:
            def at(strides: tuple[int, ...]) -> Any:
                return sum((loop * step for loop, step in zip(index, strides, strict=True)), 0 * index[0])

            loaded = [ops.load(buffer, at(strides)) for buffer, strides in zip(given, operands, strict=True)]
            total = loaded[0]
            for one in loaded[1:]:
                total = ops.add(total, one)
            ops.store(out, at(out_strides), total)

        made.node([out], body, sizes)
        made.outputs = [out]


pointwise("a tile: operands contiguous along two loops", (70, 45), [(45, 1), (1, 70)], (45, 1))
pointwise(
    "tiles in groups, with values of rows and of columns",
    (3, 40, 64),
    [(2560, 64, 1), (2560, 1, 40), (0, 1, 0), (0, 0, 1), (1, 0, 0)],
    (2560, 64, 1),
)
pointwise("programs of rows with a value each", (2, 3, 1040), [(3120, 1040, 1), (0, 1, 0)], (3120, 1040, 1))
pointwise("a last block with a mask", (3077,), [(1,), (1,)], (1,))
pointwise("odd rows that are one long loop in memory", (5, 411), [(411, 1), (0, 1)], (411, 1))


@graph("sums of columns in groups")
def _(made: Graph) -> None:
    given, out = made.input(torch.randn(3 * 50 * 24)), made.buffer([3, 24], F32)

    def body(ops: Any, index: Any, inner: Any) -> None:
        ops.store(
            out,
            24 * index[0] + index[1],
            ops.reduce("sum", ops.load(given, 1200 * index[0] + 24 * inner[0] + index[1])),
        )

    made.node([out], body, [3, 24], [50])
    made.outputs = [out]


@graph("embedding rows by indices of which some are negative")
def _(made: Graph) -> None:
    table = made.input(torch.randn(11, 6))
    rows = made.input(torch.tensor([0, 10, -1, 5, -11, 3, 3]))
    out = made.buffer([7, 6], F32)

    def body(ops: Any, index: Any, _: Any) -> None:
        row = ops.indirect(ops.load(rows, index[0] + 0), 11, True)
        ops.store(out, index[0] * 6 + index[1], ops.load(table, row * 6 + index[1]))

    made.node([out], body, [7, 6])
    made.outputs = [out]


@graph("padding by a mask: lanes outside read nothing")
def _(made: Graph) -> None:
    given = made.input(torch.randn(10))
    out = made.buffer([14], F32)

    def body(ops: Any, index: Any, _: Any) -> None:
        at = ops.index_value(index[0] - 2, I64)
        inside = ops.bitwise_and(ops.ge(at, ops.constant(0, I64)), ops.lt(at, ops.constant(10, I64)))
        ops.store(out, index[0] + 0, ops.masked(inside, lambda: ops.load(given, index[0] - 2), 7.0, F32))

    made.node([out], body, [14])
    made.outputs = [out]


@graph("totals of loops inside of iterations, alone and inside of rows")
def _(made: Graph) -> None:
    for rows, columns in ((5, 40), (2, 9000)):
        given, weight = made.input(torch.randn(rows, columns)), made.input(torch.randn(3, rows))
        windows, most = made.buffer([rows, columns], F32), made.buffer([rows], F32)

        def window(ops: Any, at: Any, column: Any, c: int, r: int, g: str, w: str) -> Any:
            """The sum of weighted neighbours, of which there are fewer at the ends, and of the weights."""
            step = ops.step(3)
            near = column - 1 + ops.indirect(step, 3, check=False, wraps=False)
            place = ops.index_value(near, I64)
            inside = ops.bitwise_and(ops.ge(place, ops.constant(0, I64)), ops.lt(place, ops.constant(c, I64)))
            value = ops.masked(inside, lambda: ops.load(g, at * c + near), 0.0, F32)
            factor = ops.load(w, (near - column + 1) * r + at)
            return ops.add(ops.total(step, ops.mul(value, factor)), ops.total(step, factor))

        def alone(ops: Any, index: Any, _: Any, c=columns, r=rows, g=given, w=weight, o=windows) -> None:
            ops.store(o, index[0] * c + index[1], window(ops, index[0], index[1], c, r, g, w))

        def in_rows(ops: Any, index: Any, inner: Any, c=columns, r=rows, g=given, w=weight, o=most) -> None:
            ops.store(o, index[0] + 0, ops.reduce("max", window(ops, index[0], inner[0], c, r, g, w)))

        made.node([windows], alone, [rows, columns])
        made.node([most], in_rows, [rows], [columns])
        made.outputs += [windows, most]


@graph("half precision is computed in float32 and rounded once")
def _(made: Graph) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        a, b = made.input(torch.randn(40).to(dtype)), made.input(torch.randn(40).to(dtype))
        out = made.buffer([40], dtype)

        def body(ops: Any, index: Any, _: Any, a=a, b=b, out=out, dtype=dtype) -> None:
            x, y = (ops.to_dtype(ops.load(each, index[0] + 0), F32) for each in (a, b))
            ops.store(out, index[0] + 0, ops.to_dtype(ops.mul(ops.add(x, y), x), dtype))

        made.node([out], body, [40])
        made.outputs.append(out)


@graph("conversions between dtypes")
def _(made: Graph) -> None:
    given = made.input(torch.linspace(-5, 5, 33))
    for dtype in (I64, I32, torch.int8, BOOL, F64):
        out = made.buffer([33], dtype)

        def body(ops: Any, index: Any, _: Any, out=out, dtype=dtype) -> None:
            ops.store(out, index[0] + 0, ops.to_dtype(ops.load(given, index[0] + 0), dtype))

        made.node([out], body, [33])
        made.outputs.append(out)


@graph("a store that adds where indices meet")
def _(made: Graph) -> None:
    given, rows = made.input(torch.ones(20)), made.input(torch.randint(0, 4, (20,)))
    out = made.buffer([4], F32)

    def zero(ops: Any, index: Any, _: Any) -> None:
        ops.store(out, index[0] + 0, ops.constant(0.0, F32))

    def add(ops: Any, index: Any, _: Any) -> None:
        row = ops.indirect(ops.load(rows, index[0] + 0), 4, False)
        ops.store(out, row, ops.load(given, index[0] + 0), "add")

    made.node([out], zero, [4])
    made.node([out], add, [20])
    made.outputs = [out]


@graph("division and remainder in an index")
def _(made: Graph) -> None:
    given = made.input(torch.randn(3, 4, 5))
    out = made.buffer([60], F32)

    def body(ops: Any, index: Any, _: Any) -> None:
        i = index[0]
        ops.store(out, i + 0, ops.load(given, (i % 3) * 20 + (i // 3) % 4 * 5 + i // 12))

    made.node([out], body, [60])
    made.outputs = [out]


@graph("random bits and normal numbers, to the last bit")
def _(made: Graph) -> None:
    seed, stream = made.input(torch.tensor(-987654321987)), made.input(torch.tensor(3))
    size = (5, 300)
    outs = [made.buffer(size, dtype) for dtype in (I32, I32, I64, I32)]

    def body(ops: Any, index: Any, _: Any) -> None:
        at = index[0] * 300 + index[1]
        key = ops.load(seed, 0), ops.load(stream, 0)
        word, other = (ops.random(*key, draw, at) for draw in (0, 1))
        long = ops.bitwise_xor(ops.to_dtype(word, I64), ops.mul(ops.to_dtype(other, I64), ops.constant(1 << 32, I64)))
        ops.store(outs[0], at, word)
        ops.store(outs[1], at, ops.bitcast(ops.normal(word), I32))
        ops.store(outs[2], at, ops.bitcast(ops.normal(long), I64))
        ops.store(outs[3], at, ops.random(*key, 0, index[1] * 5 + index[0]))

    made.node(outs, body, size)
    made.outputs = outs


@graph("8-bit floats, to the last bit")
def _(made: Graph) -> None:
    """Stored, and read again by another node; numbers of all sizes, at and beside the halves between two."""
    high = torch.arange(0, 2**16, 37).mul(2**16)
    patterns = torch.cat([high, high + 1, high + 2**15, high + 2**15 - 1])
    given = made.input(patterns.to(I32).view(F32))
    size = (len(patterns),)
    for dtype in BYTES:
        stored, read = made.buffer(size, dtype), made.buffer(size, I32)

        def narrow(ops: Any, index: Any, _: Any, stored: str = stored, dtype: torch.dtype = dtype) -> None:
            ops.store(stored, index[0], ops.to_dtype(ops.load(given, index[0]), dtype))

        def widen(ops: Any, index: Any, _: Any, stored: str = stored, read: str = read) -> None:
            number = ops.to_dtype(ops.load(stored, index[0]), F32)
            bits = ops.where(ops.isnan(number), ops.constant(-1, I32), ops.bitcast(number, I32))
            ops.store(read, index[0], bits)

        made.node([stored], narrow, size)
        made.node([read], widen, size)
        made.outputs += [read]
