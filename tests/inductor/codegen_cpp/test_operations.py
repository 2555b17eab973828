"""Every operation of the loop vocabulary, on every dtype it takes, compiled to C++ (vector lanes and scalars)
against the reference evaluator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from kernel_harness import Compiled, Graph, assert_close, run_reference

from stator.base.config import Options
from stator.inductor.loops.vocabulary import ELEMENTWISE, VOCABULARY

SIZE = 37  # two whole vectors of 16 lanes and a tail
FLOATS = [torch.float32, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
NOT_ON_BOOL = {(name, torch.bool) for name in ("floor_div", "trunc_div", "lshift", "rshift", "gcd")}
SKIPPED = NOT_ON_BOOL | {("lgamma", torch.float32)}  # the C library's and torch's differ near the zeros of log gamma
DOMAINS = {
    "float": FLOATS,
    "int": [*INTEGERS, torch.bool],
    "number": [*FLOATS, *INTEGERS],
    "any": [*FLOATS, *INTEGERS, torch.bool],
}


def values(dtype: torch.dtype, seed: int, name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(SIZE, generator=generator) > 0.5
    if dtype.is_floating_point:
        x = torch.randn(SIZE, generator=generator, dtype=torch.float64) * 3
        x[:8] = torch.tensor([0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan"), 0.5, -2.5])
        return (x.roll(seed * 3)).to(dtype)
    low, high = (0, 200) if dtype is torch.uint8 else (-100, 100)
    x = torch.randint(low, high, (SIZE,), generator=generator)
    if name in ("lshift", "rshift"):
        x = x if seed == 0 else x.abs() % 8
    if seed and name in ("floor_div", "trunc_div", "mod", "fmod"):
        x[x == 0] = 3
    if seed and name == "pow":
        x = x.abs() % 5
    return x.to(dtype)


def cases() -> list[tuple[str, torch.dtype]]:
    return [
        (name, dtype)
        for name in sorted(ELEMENTWISE)
        for dtype in DOMAINS[VOCABULARY[name].domain]
        if (name, dtype) not in SKIPPED
    ]


def graph_of(name: str, dtype: torch.dtype) -> Graph:
    graph = Graph()
    arity = VOCABULARY[name].arity
    result = torch.bool if VOCABULARY[name].result == "bool" else dtype
    inputs = [graph.input(values(dtype, seed, name)) for seed in range(arity)]
    if name == "where":
        inputs[0] = graph.input(values(torch.bool, 5, name))
    out = graph.buffer((SIZE,), result)
    graph.node(
        [out],
        lambda ops, i, _: ops.store(out, i[0], ops.elementwise(name, *[ops.load(x, i[0]) for x in inputs])),
        (SIZE,),
    )
    graph.outputs = [out]
    return graph


@pytest.mark.parametrize("vectorize", [True, False])
def test_elementwise(vectorize: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    compiled = Compiled()
    graphs = [(case, graph_of(*case)) for case in cases()]
    jobs = [compiled.add(graph, Options(vectorize=vectorize)) for _, graph in graphs]
    compiled.build()
    wrong = []
    for (case, graph), job in zip(graphs, jobs, strict=True):
        try:
            assert_close(compiled.run(job), run_reference(graph), str(case))
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


CONVERTED = [*FLOATS, torch.float16, torch.bfloat16, *INTEGERS, torch.bool]


def conversion(source: torch.dtype, target: torch.dtype) -> Graph:
    graph = Graph()
    x = torch.linspace(-20, 100, SIZE, dtype=torch.float64)
    if not source.is_floating_point:
        x = x.round()
    if target is torch.uint8 or source is torch.uint8:
        x = x.abs()
    name = graph.input(x.to(source))
    out = graph.buffer((SIZE,), target)
    graph.node([out], lambda ops, i, _: ops.store(out, i[0], ops.to_dtype(ops.load(name, i[0]), target)), (SIZE,))
    graph.outputs = [out]
    return graph


@pytest.mark.parametrize("vectorize", [True, False])
def test_conversions(vectorize: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    compiled = Compiled()
    pairs = [(a, b) for a in CONVERTED for b in CONVERTED]
    graphs = [conversion(*pair) for pair in pairs]
    jobs = [compiled.add(graph, Options(vectorize=vectorize)) for graph in graphs]
    compiled.build()
    for pair, graph, job in zip(pairs, graphs, jobs, strict=True):
        actual, expected = compiled.run(job), run_reference(graph)
        for name in graph.outputs:
            torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=0, msg=lambda t, p=pair: f"{p}: {t}")


REDUCTIONS = [
    *[
        (kind, dtype)
        for kind in ("sum", "prod", "max", "min", "argmax", "argmin")
        for dtype in (*FLOATS, torch.int64, torch.int32)
    ],
    ("any", torch.bool),
    ("all", torch.bool),
    ("max", torch.uint8),
    ("min", torch.bool),
]


def reduction(kind: str, dtype: torch.dtype, along: str) -> Graph:
    """along: "rows" reduces the contiguous loop, "columns" the other one, "all" both."""
    graph = Graph()
    rows, columns = 19, 35
    generator = torch.Generator().manual_seed(3)
    if dtype is torch.bool:
        x = torch.rand(rows, columns, generator=generator) > (0.02 if kind == "all" else 0.98)
    elif dtype.is_floating_point:
        x = torch.randn(rows, columns, generator=generator, dtype=dtype)
        if kind != "sum":
            x[4, 7] = float("nan")
        x[8] = x[9]  # ties
    else:
        x = torch.randint(0 if dtype is torch.uint8 else -3, 4, (rows, columns), generator=generator).to(dtype)
    name = graph.input(x)
    result = torch.int64 if kind.startswith("arg") else dtype
    if along == "rows":
        out = graph.buffer((rows,), result)
        body = lambda ops, i, j: ops.store(out, i[0], ops.reduce(kind, ops.load(name, i[0] * columns + j[0])))  # noqa: E731
        graph.node([out], body, (rows,), (columns,))
    elif along == "columns":
        out = graph.buffer((columns,), result)
        body = lambda ops, i, j: ops.store(out, i[0], ops.reduce(kind, ops.load(name, j[0] * columns + i[0])))  # noqa: E731
        graph.node([out], body, (columns,), (rows,))
    else:
        out = graph.buffer((), result)
        body = lambda ops, i, j: ops.store(out, 0, ops.reduce(kind, ops.load(name, j[0] * columns + j[1])))  # noqa: E731
        graph.node([out], body, (), (rows, columns))
    graph.outputs = [out]
    return graph


@pytest.mark.parametrize("vectorize", [True, False])
def test_reductions(vectorize: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    compiled = Compiled()
    described = [(kind, dtype, along) for kind, dtype in REDUCTIONS for along in ("rows", "columns", "all")]
    graphs = [reduction(*case) for case in described]
    jobs = [compiled.add(graph, Options(vectorize=vectorize)) for graph in graphs]
    compiled.build()
    wrong = []
    for case, graph, job in zip(described, graphs, jobs, strict=True):
        try:
            assert_close(compiled.run(job), run_reference(graph), str(case))
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
