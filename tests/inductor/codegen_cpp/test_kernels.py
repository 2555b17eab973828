"""Kernels as a whole: tails and tiles, masks, indirect indices and their errors, atomics, halves, mutation, naming."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stator

sys.path.insert(0, str(Path(__file__).parent.parent))

from kernel_harness import Compiled, Graph, assert_close, fresh_memory, run_reference

from stator.base.config import Options
from stator.base.errors import CompileError
from stator.inductor.codegen.cpp.types import LANES
from stator.runtime import toolchain

F32 = torch.float32


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)


def check(*graphs: Graph, options: Options | None = None) -> Compiled:
    compiled = Compiled()
    jobs = [compiled.add(graph, options or Options(verify=True)) for graph in graphs]
    compiled.build()
    for number, (graph, job) in enumerate(zip(graphs, jobs, strict=True)):
        assert_close(compiled.run(job), run_reference(graph), f"graph {number}\n{compiled.text(job)}")
    return compiled


def transposed(rows: int, columns: int, dtype: torch.dtype = F32) -> Graph:
    graph = Graph()
    values = torch.randn(rows, columns)
    x = graph.input(values > 0 if dtype is torch.bool else (values * 50).to(dtype))
    out = graph.buffer((columns, rows), dtype)
    graph.node(
        [out], lambda ops, i, _: ops.store(out, i[0] * rows + i[1], ops.load(x, i[1] * columns + i[0])), (columns, rows)
    )
    graph.outputs = [out]
    return graph


def test_transposes_of_every_remainder_and_dtype() -> None:
    shapes = [(16, 16), (33, 47), (5, 64), (64, 5), (17, 100), (3, 3), (300, 33), (33, 300), (2100, 20), (20, 2100)]
    graphs = [transposed(*shape) for shape in shapes]
    narrow = (torch.bfloat16, torch.float16, torch.int16, torch.int8, torch.uint8, torch.bool)
    for dtype in (torch.int32, torch.int64, torch.float64, *narrow):
        graphs += [transposed(*shape, dtype) for shape in ((33, 47), (32, 48))]
    check(*graphs)


def added_to_transposed(rows: int, columns: int, dtype: torch.dtype, batch: int = 1) -> Graph:
    """out = x^T + y + columns' and rows' own values: most memory goes on along the vectors."""
    graph = Graph()
    x, y = (graph.input((torch.randn(batch * rows * columns) * 50).to(dtype)) for _ in range(2))
    by_row, by_column = graph.input(torch.randn(rows).to(dtype)), graph.input(torch.randn(columns).to(dtype))
    out = graph.buffer((batch, columns, rows), dtype)

    def body(ops, i, _):
        image, column, row = i
        start = image * (rows * columns)
        total = ops.add(ops.load(x, start + row * columns + column), ops.load(y, start + column * rows + row))
        total = ops.add(ops.add(total, ops.load(by_row, row)), ops.load(by_column, column))
        ops.store(out, start + column * rows + row, total)

    graph.node([out], body, (batch, columns, rows))
    graph.outputs = [out]
    return graph


def test_blocks_of_tiles_around_vectors() -> None:
    shapes = [(16, 16), (33, 47), (5, 64), (64, 5), (17, 100), (32, 2100), (2100, 40), (700, 701)]
    graphs = [added_to_transposed(*shape, dtype) for shape in shapes for dtype in (F32, torch.int32, torch.int64)]
    graphs += [added_to_transposed(33, 50, dtype, batch) for dtype in (F32, torch.int16) for batch in (1, 3, 80)]
    check(*graphs)


def test_narrow_numbers_are_transposed_in_registers() -> None:
    compiled = Compiled()
    for dtype in (torch.bfloat16, torch.float16, torch.int16, torch.int8, torch.uint8, torch.bool):
        text = compiled.text(compiled.add(transposed(64, 80, dtype), Options(verify=True)))
        assert "load_tile" in text and "load_strided" not in text


def test_loops_of_every_length() -> None:
    graphs = []
    for size in [*range(20), 31, 32, 33, 63, 64, 65]:
        graph = Graph()
        x = graph.input(torch.randn(3, size))
        out, total = graph.buffer((3, size), F32), graph.buffer((3,), F32)

        def double(ops, i, _, x=x, out=out, size=size):
            value = ops.load(x, i[0] * size + i[1])
            ops.store(out, i[0] * size + i[1], ops.add(value, value))

        graph.node([out], double, (3, size))
        if size:
            body = lambda ops, i, j, x=x, total=total, size=size: ops.store(  # noqa: E731
                total, i[0], ops.reduce("sum", ops.load(x, i[0] * size + j[0]))
            )
            graph.node([total], body, (3,), (size,))
            graph.outputs = [out, total]
        else:
            graph.outputs = [out]
        graphs.append(graph)
    check(*graphs)


def test_masked_loads_pad() -> None:
    graph = Graph()
    x = graph.input(torch.randn(6, 40))
    out = graph.buffer((8, 44), F32)

    def body(ops, i, _):
        row, column = ops.index_value(i[0] - 1, torch.int64), ops.index_value(i[1] - 2, torch.int64)
        zero, rows, columns = (ops.constant(n, torch.int64) for n in (0, 6, 40))
        inside = ops.bitwise_and(
            ops.bitwise_and(ops.ge(row, zero), ops.lt(row, rows)),
            ops.bitwise_and(ops.ge(column, zero), ops.lt(column, columns)),
        )
        value = ops.masked(inside, lambda: ops.load(x, (i[0] - 1) * 40 + i[1] - 2), -1.5, F32)
        ops.store(out, i[0] * 44 + i[1], value)

    graph.node([out], body, (8, 44))
    graph.outputs = [out]
    check(graph)
    check(graph, options=Options(vectorize=False))


def lookup(indices: torch.Tensor, size: int, width: int, by_column: bool) -> Graph:
    """Rows (indices vary with the outer loop) or columns (with the lanes) of a table."""
    graph = Graph()
    table = graph.input(torch.randn(size, width))
    index = graph.input(indices)
    count = len(indices)
    if by_column:
        out = graph.buffer((width, count), F32)
        body = lambda ops, i, _: ops.store(  # noqa: E731
            out, i[0] * count + i[1], ops.load(table, ops.indirect(ops.load(index, i[1]), size) * width + i[0])
        )
        graph.node([out], body, (width, count))
    else:
        out = graph.buffer((count, width), F32)
        body = lambda ops, i, _: ops.store(  # noqa: E731
            out, i[0] * width + i[1], ops.load(table, ops.indirect(ops.load(index, i[0]), size) * width + i[1])
        )
        graph.node([out], body, (count, width))
    graph.outputs = [out]
    return graph


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("vectorize", [False, True])
def test_indirect_indices_wrap_and_are_checked(by_column: bool, vectorize: bool) -> None:
    good = lookup(torch.randint(-9, 9, (37,)), 9, 21, by_column)
    narrow = lookup(torch.randint(-9, 9, (37,), dtype=torch.int32), 9, 21, by_column)
    options = Options(vectorize=vectorize)
    compiled = check(good, narrow, options=options)
    for bad in (9, -10, 2**40):
        indices = torch.randint(-9, 9, (37,))
        indices[36 if bad > 0 else 2] = bad
        graph = lookup(indices, 9, 21, by_column)
        job = compiled.add(graph, options)
        compiled.build()
        with pytest.raises(IndexError, match=f"{bad} is out of range for size 9"):
            compiled.run(job)


def test_columns_that_indices_choose_are_stored_next_to_each_other() -> None:
    """Lanes along the rows would read and write each element apart."""
    rows, columns = 128, 65
    graph = Graph()
    table, index = graph.input(torch.randn(rows, 32)), graph.input(torch.randint(0, 32, (columns,)))
    out = graph.buffer((rows, columns), F32)

    def body(ops: Any, i: Any, _: Any) -> None:
        places = [ops.indirect(ops.add(ops.load(index, i[1]), ops.constant(k, torch.int64)), 32) for k in (0, -1)]
        found = [ops.load(table, i[0] * 32 + place) for place in places]
        ops.store(out, i[0] * columns + i[1], ops.add(*found))

    graph.node([out], body, (rows, columns))
    graph.outputs = [out]
    compiled = Compiled()
    job = compiled.add(graph, Options(verify=True))
    compiled.build()
    assert_close(compiled.run(job), run_reference(graph), compiled.text(job))
    assert "store_strided" not in compiled.text(job)


def of_each_row(rows: int, width: int, count: int, dtype: torch.dtype = F32, scatter: bool = False) -> Graph:
    """Elements of each row at places of its own, gathered or added."""
    graph = Graph()
    index = graph.input(torch.randint(0, width, (rows, count)))
    source = graph.input((torch.randn(rows, count if scatter else width) * 50).to(dtype))
    if scatter:
        target = graph.input(torch.zeros(rows, width, dtype=dtype))
        out = graph.buffer((rows, width), dtype, value=target)
    else:
        out = graph.buffer((rows, count), dtype)

    def body(ops: Any, i: Any, _: Any) -> None:
        at = i[0] * count + i[1]
        place = i[0] * width + ops.indirect(ops.load(index, at), width)
        if scatter:
            ops.store(out, place, ops.load(source, at), mode="add")
        else:
            ops.store(out, at, ops.load(source, place))

    graph.node([out], body, (rows, count))
    graph.outputs = [out]
    return graph


def test_a_gather_asks_for_the_next_row() -> None:
    dtypes = (F32, torch.bfloat16, torch.float64, torch.int64, torch.uint8)
    sizes = [(40, 256, 256), (70, 40, 33), (3, 300, 100), (1, 64, 64)]
    check(*(of_each_row(*size, dtype) for dtype in dtypes for size in sizes))
    for rows, width, count, lines in ((40, 256, 256, 1), (40, 256, 100, 3), (40, 256, 16, 0), (40, 16, 64, 0)):
        compiled = Compiled()
        text = compiled.text(compiled.add(of_each_row(rows, width, count), Options()))
        assert text.count("__builtin_prefetch") == lines * (2 if count == 100 else 1)  # also behind whole vectors


def reversed_rows(rows: int, width: int, dtype: torch.dtype = F32) -> Graph:
    graph = Graph()
    x = graph.input((torch.randn(rows, width) * 50).to(dtype))
    out = graph.buffer((rows, width), dtype)

    def body(ops: Any, i: Any, _: Any) -> None:
        ops.store(out, i[0] * width + i[1], ops.load(x, i[0] * width + width - 1 - i[1]))

    graph.node([out], body, (rows, width))
    graph.outputs = [out]
    return graph


def test_a_row_that_is_read_backwards_asks_for_the_next_row() -> None:
    dtypes = (F32, torch.bfloat16, torch.float64, torch.int64, torch.uint8)
    check(*(reversed_rows(rows, width, dtype) for dtype in dtypes for rows, width in ((5, 1024), (3, 77), (1, 64))))
    wide = 2 if LANES == 16 else 1
    for width, dtype, lines in ((1024, F32, 1), (1024, torch.float64, wide), (16, F32, 0)):
        compiled = Compiled()
        text = compiled.text(compiled.add(reversed_rows(5, width, dtype), Options()))
        assert text.count("__builtin_prefetch") == lines


def interleaved(count: int, pixels: int, planes: int) -> Graph:
    """Images of planes, with the planes of each pixel side by side."""
    graph = Graph()
    x = graph.input(torch.randn(count, planes, pixels))
    out = graph.buffer((count, pixels, planes), F32)

    def body(ops: Any, i: Any, _: Any) -> None:
        image = i[0] * pixels * planes
        ops.store(out, image + i[1] * planes + i[2], ops.load(x, image + i[2] * pixels + i[1]))

    graph.node([out], body, (count, pixels, planes))
    graph.outputs = [out]
    return graph


@pytest.mark.parametrize("planes", [2, 3])
def test_stores_between_lanes_follow_each_other(planes: int) -> None:
    graph = interleaved(3, 400, planes)
    compiled = Compiled()
    job = compiled.add(graph, Options())
    compiled.build()
    assert_close(compiled.run(job), run_reference(graph), compiled.text(job))
    loops = re.findall(r"for \(int64_t (\w+) = 0; \w+ < \w+; (\+\+|\w+ \+= LANES)", compiled.text(job))
    assert [step != "++" for _, step in loops] == [False, True, False]  # images, vectors of pixels, planes


def test_gathers_along_rows_of_any_length() -> None:
    gathered = stator.compile(lambda x, at: x.gather(1, at), dynamic=True)
    for rows, width in ((40, 300), (64, 1024), (9, 5)):
        x, at = torch.randn(rows, width), torch.randint(width, (rows, width))
        assert torch.equal(gathered(x, at), x.gather(1, at))


def test_rows_of_threads_need_no_atomic_sums() -> None:
    graphs = [of_each_row(300, 200, count, dtype, True) for count in (200, 333) for dtype in (F32, torch.int64)]
    compiled = Compiled()
    jobs = [compiled.add(graph, Options(verify=True)) for graph in graphs]
    compiled.build()
    for graph, job in zip(graphs, jobs, strict=True):
        assert_close(compiled.run(job), run_reference(graph))
        assert ", true);" in compiled.text(job)


@pytest.mark.parametrize("mode", ["add", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_scattered_values_meet_in_one_element(dtype: torch.dtype, mode: str) -> None:
    graph = Graph()
    count, size = 50000, 7
    index = graph.input(torch.randint(0, size, (count,)))
    values = graph.input(torch.randint(-9, 10, (count,)).to(dtype))
    target = graph.input(torch.zeros(size, dtype=dtype))
    out = graph.buffer((size,), dtype, value=target)
    graph.node(
        [out],
        lambda ops, i, _: ops.store(out, ops.indirect(ops.load(index, i[0]), size), ops.load(values, i[0]), mode=mode),
        (count,),
    )
    graph.outputs = [out]
    check(graph)


@pytest.mark.parametrize("width", [16, 37, 64])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_added_in_the_order_of_their_places(width: int, threads: int) -> None:
    """Whatever the number of threads: each adds to rows of its own."""

    def program(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        start = torch.ones(2, 50, width)
        return start.index_add(1, rows, x), start.scatter_add(1, rows[None, :, None].expand_as(x), x.exp())

    x, rows = torch.randn(2, 3000, width), torch.randint(0, 50, (3000,))
    expected = torch.ones(2, 2, 50, width)
    for place, row in enumerate(rows):
        expected[0, :, row] += x[:, place]
        expected[1, :, row] += x.exp()[:, place]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sums, exponentials = stator.compile(program, fullgraph=True)(x, rows)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(sums, expected[0])
    torch.testing.assert_close(exponentials, expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_once_where_they_are_stored(dtype: torch.dtype) -> None:
    graph = Graph()
    x, y = (graph.input(torch.randn(5, 37).to(dtype)) for _ in range(2))
    total, out = graph.buffer((5, 37), dtype), graph.buffer((5, 37), dtype)

    def add(ops, i, _):
        at = i[0] * 37 + i[1]
        value = ops.add(ops.to_dtype(ops.load(x, at), F32), ops.to_dtype(ops.load(y, at), F32))
        ops.store(total, at, ops.to_dtype(value, dtype))

    def square(ops, i, _):
        at = i[0] * 37 + i[1]
        value = ops.to_dtype(ops.load(total, at), F32)
        ops.store(out, at, ops.to_dtype(ops.mul(value, value), dtype))

    graph.node([total], add, (5, 37))
    graph.node([out], square, (5, 37))
    graph.outputs = [out]
    compiled = check(graph)
    assert len(compiled.jobs[0][1].steps) == 1
    expected = graph.inputs["arg0"] + graph.inputs["arg1"]
    torch.testing.assert_close(compiled.run(0)[out], expected * expected, rtol=0, atol=0)


def test_mutation_in_place_reads_before_it_writes() -> None:
    graph = Graph()
    x = graph.input(torch.randn(1000))
    out = graph.buffer((1000,), F32, value=x)
    total = graph.buffer((1,), F32)
    graph.node(
        [out], lambda ops, i, _: ops.store(out, i[0], ops.add(ops.load(x, i[0]), ops.constant(1.0, F32))), (1000,)
    )
    graph.node([total], lambda ops, i, j: ops.store(total, 0, ops.reduce("sum", ops.load(out, j[0]))), (), (1000,))
    graph.outputs = [out, total]
    check(graph)


@pytest.mark.parametrize("shape", [(300, 1000), (77, 1003), (100003,), (3, 5, 7001)])
def test_one_long_row_is_split_between_threads(shape: tuple[int, ...]) -> None:
    """Sum, largest, and a chain of two passes over the whole tensor."""
    graph = Graph()
    x = graph.input(torch.randn(shape) + 1)
    strides = torch.empty(shape).stride()
    total, top, scaled = graph.buffer((), F32), graph.buffer((), F32), graph.buffer(shape, F32)

    def at(index):
        return sum((i * s for i, s in zip(index, strides, strict=True)), start=0)

    graph.node(
        [total], lambda ops, i, j: ops.store(total, 0, ops.reduce("sum", ops.exp(ops.load(x, at(j))))), (), shape
    )
    graph.node([top], lambda ops, i, j: ops.store(top, 0, ops.reduce("max", ops.load(x, at(j)))), (), shape)
    graph.node(
        [scaled],
        lambda ops, i, j: ops.store(scaled, at(i), ops.div(ops.exp(ops.load(x, at(i))), ops.load(total, 0))),
        shape,
    )
    graph.outputs = [total, top, scaled]
    check(graph)


def affine(names: tuple[str, str], factor: float) -> Graph:
    graph = Graph()
    x = graph.input(torch.randn(64, 48), names[0])
    b = graph.input(torch.randn(48), names[1])
    out = graph.buffer((64, 48), F32)

    def body(ops, i, _):
        value = ops.mul(ops.load(x, i[0] * 48 + i[1]), ops.constant(factor, F32))
        ops.store(out, i[0] * 48 + i[1], ops.add(value, ops.load(b, i[1])))

    graph.node([out], body, (64, 48))
    graph.outputs = [out]
    return graph


def test_text_depends_on_content_only() -> None:
    compiled = Compiled()
    for graph in (affine(("p", "q"), 2.0), affine(("weights", "a"), 2.0), affine(("p", "q"), 3.0)):
        compiled.add(graph)
    one, same, other = (sources[0] for _, _, sources in compiled.jobs)
    assert (one.symbol, one.source) == (same.symbol, same.source)
    assert one.symbol != other.symbol


def test_sizes_of_layers_are_arguments() -> None:
    def scaled(rows: int, columns: int) -> Graph:
        graph = Graph()
        x, b = graph.input(torch.randn(rows, columns)), graph.input(torch.randn(rows))
        out = graph.buffer((rows, columns), F32)

        def body(ops, i, _):
            index = i[0] * columns + i[1]
            ops.store(out, index, ops.mul(ops.load(x, index), ops.load(b, i[0])))

        graph.node([out], body, (rows, columns))
        graph.outputs = [out]
        return graph

    compiled = Compiled()
    graphs = [scaled(32, 64), scaled(48, 32)]
    for graph in graphs:
        compiled.add(graph)
    one, other = (sources[0] for _, _, sources in compiled.jobs)
    assert one.source == other.source
    assert one.sizes != other.sizes
    compiled.build()
    for job, graph in enumerate(graphs):
        assert_close(compiled.run(job), run_reference(graph))


def test_what_cannot_be_printed_is_refused() -> None:
    graph = Graph()
    x = graph.input(torch.randn(4, dtype=torch.complex64))
    out = graph.buffer((4,), torch.complex64)
    graph.node([out], lambda ops, i, _: ops.store(out, i[0], ops.load(x, i[0])), (4,))
    graph.outputs = [out]
    with pytest.raises(CompileError, match="complex64"):
        Compiled().add(graph)


GUARDED = """
extern "C" void *mmap(void *, unsigned long, int, int, int, long);
extern "C" int mprotect(void *, unsigned long, int);
// memory that ends where an inaccessible page begins: masked loads are not seen by the sanitizer, but by the processor
static void *guarded(unsigned long size) {
    unsigned long whole = (size + 4095) / 4096 * 4096;
    char *p = (char *)mmap(0, whole + 4096, 3, 0x22, -1, 0);
    mprotect(p + whole, 4096, 0);
    return p + whole - size;
}
"""


@pytest.mark.slow
def test_no_access_outside_of_memory(tmp_path: Path) -> None:
    """Random graphs under the address and undefined-behaviour sanitizers, in a process of their own."""
    from random_graphs import Generator

    compiled = Compiled()
    graphs = [Generator(seed).build() for seed in range(1000, 1060)]
    graphs += [transposed(33, 47), transposed(5, 64, torch.int32), lookup(torch.randint(-9, 9, (37,)), 9, 21, True)]
    for graph in graphs:
        compiled.add(graph)
    lines = ['#include "vec.h"', GUARDED]
    calls = []
    seen: set[str] = set()
    for graph, plan, sources in compiled.jobs:
        memory = fresh_memory(graph)
        for group, source in zip(plan.steps, sources, strict=True):
            if source.symbol not in seen:
                lines.append(source.source)
            seen.add(source.symbol)
            sizes = [memory[name].numel() * memory[name].element_size() for name in (*group.reads, *group.writes)]
            allocations = ", ".join(f"guarded({size})" for size in sizes)
            numbers = f"int64_t n[] = {{{', '.join(map(str, source.sizes))}}};" if source.sizes else ""
            call = f"{source.symbol}(p{', n' if source.sizes else ''})"
            calls.append(f"{{ int64_t error[3] = {{}}; void *p[] = {{{allocations}, error}}; {numbers} {call}; }}")
    lines.append("int main() {" + "\n".join(calls) + "return 0; }")
    (tmp_path / "all.cpp").write_text("\n".join(lines))
    flags = [flag for flag in toolchain.LANGUAGE if flag != "-fPIC"]
    command = [
        "g++",
        "-O1",
        "-march=native",
        "-fopenmp",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        *flags,
    ]
    built = subprocess.run(
        [*command, "-I", str(toolchain.CSRC), str(tmp_path / "all.cpp"), "-o", str(tmp_path / "all")],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr[:2000]
    result = subprocess.run([str(tmp_path / "all")], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[:3000]


def test_the_sum_of_a_row_that_has_one_element_is_that_element() -> None:
    """Also where no iteration is the wanted one, and through a rounding."""

    def one_of_each_row(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.where(torch.arange(x.shape[1]) == places[:, None], x[:, :1], 0).bfloat16().float()
        return chosen - x * chosen.sum(-1, keepdim=True), chosen.sum(-1)

    given = torch.randn(5, 901), torch.tensor([0, 900, -1, 901, 77])
    for dynamic in (False, True):
        found = stator.compile(one_of_each_row, dynamic=dynamic)(*given)
        torch.testing.assert_close(found, one_of_each_row(*given))
