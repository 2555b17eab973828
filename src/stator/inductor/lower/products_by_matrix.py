"""Products of a matrix that may be another in each call, by kernels of ours: where they are quicker than libraries, and
enough of a graph to be worth compiling."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from stator.inductor.buffers import View
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.devices import traits_of
from stator.runtime import choices
from stator.runtime.matrix_products import (
    BLAS,
    CACHE,
    ONEDNN,
    is_tuned_blas,
    onednn_takes,
    product_by,
    typical_sizes,
)
from stator.runtime.toolchain import float_lanes

from .builder import CompiledConvolutions, LoweringBuilder
from .direct_convolution import SOME_ROWS, matrix_tile
from .tensor import Tensor

aten = torch.ops.aten

# For fewer multiplications a call takes longer than they do.
_WORK = 1 << 14
# With AVX-512 libraries and kernels of ours multiply at the speed of the processor, so that only a call and the loops
# behind it can be saved: at most 7 % of the time of more multiplications, which do not repay compiling a kernel. Few
# rows wait for memory instead. With AVX2, libraries multiply more slowly.
_PACKED_LANES, _WIDE_LANES, _WIDE_WORK = 8, 16, 1 << 24
# The part of a graph's multiplications, from which on kernels for them are compiled: a kernel takes as long as some
# hundred calls save of so many.
_LEAST_SHARE = 1 / 8

# Of fewer multiplications a library's call and the loops behind it take the larger part on any processor.
_TIMED_FROM = 1 << 20
# Multiplications of a timed run, of each thread
_TIMED_WORK = 1 << 24
# These are timed as they are.
_FEW_COLUMNS = 128
_KIND, _TILES = "product by any matrix", "tiles"
# The share of the library's time in which kernels must win, which take time to compile
_MARGIN = 0.9


def product_by_matrix(
    builder: LoweringBuilder, a: Tensor, b: str | View, columns: Any, bias: Tensor | None, meta: Any
) -> Tensor | None:
    """`a @ b + bias` by a kernel of ours, which packs parts of `b` in each call where rows are many; None for a library
    (also if the example has little work)."""
    rows, inner = a.shape
    layout = builder.as_view(b).layout
    by_rows = layout.stride[0] != 1
    step, apart = layout.stride[::-1] if by_rows else layout.stride
    if step != 1 or not all(isinstance(size, int) for size in (inner, columns, apart)):
        return None
    plain = bias is None or (bias.shape == (columns,) and bias.dtype is a.dtype)
    if not plain or {a.dtype, layout.dtype} != {torch.float32} or not traits_of(a.device).tiles:
        return None
    # other calls may have more rows than the example
    some = rows if isinstance(rows, int) else max(builder.sizes.hint(rows), SOME_ROWS)
    tile = matrix_tile(some, inner, columns)
    if tile is None or not _is_worthwhile(builder, some, inner, columns, by_rows):
        return None
    planned, pixel = a.planned(), inner
    if planned is not None and planned[0][1] == 1 and isinstance(planned[0][0], int) and planned[0][0] >= inner:
        pixel = planned[0][0]  # rows with gaps
    found = _of_matrix(rows, inner, columns, pixel, tile, apart, by_rows)
    given = [builder.argument(a, (pixel, 1)), b, None if bias is None else builder.argument(bias, (1,))]
    return builder.extern(found, given, {}, [meta], style="out")[0]


def _of_matrix(
    rows: Any, inner: int, columns: int, pixel: int, tile: Any, apart: int, by_rows: bool
) -> DirectConvolution:
    size, one, none = (1, rows), (1, 1), (0, 0)
    return DirectConvolution(1, size, size, inner, columns, 1, pixel, False, one, one, none, one, tile, apart, by_rows)


def _is_worthwhile(builder: LoweringBuilder, rows: int, inner: int, columns: int, by_rows: bool) -> bool:
    if not is_candidate(rows, inner, columns, builder.trains) or not _is_share_of_graph(builder):
        return False
    return is_kernel_quicker(builder.compiled_convolutions, rows, inner, columns, by_rows, builder.tunes)


def is_candidate(rows: int, inner: int, columns: int, trains: bool) -> bool:
    """Whether a kernel of ours may be quicker than libraries by more than it costs to compile. With AVX-512 a training
    step gains less."""
    work, lanes = rows * inner * columns, float_lanes()
    wide = lanes == _WIDE_LANES and not trains and (work < _WIDE_WORK or rows <= SOME_ROWS)
    return work >= _WORK and (lanes == _PACKED_LANES or wide)


# ---- the share of a graph


def _is_share_of_graph(builder: LoweringBuilder) -> bool:
    """Whether candidates are a share of the graph's multiplications that repays compiling kernels for them."""
    if builder.repays_product_kernels is None:
        found = [_multiplications(builder, node) for node in builder.node.graph.nodes if node.op == "call_function"]
        total, ours = sum(count for count, _ in found), sum(count for count, candidate in found if candidate)
        builder.repays_product_kernels = ours >= _LEAST_SHARE * total
    return builder.repays_product_kernels


def _multiplications(builder: LoweringBuilder, node: fx.Node) -> tuple[int, bool]:
    """Of a product or a convolution, and whether it is a candidate. Few rows count as some, which read a matrix in
    about that time."""
    if node.target not in _MEASURES:
        return 0, False
    operands = [arg.meta["val"] for arg in node.args[:3] if isinstance(arg, fx.Node)]
    shapes = [builder.sizes.hints(one.shape) for one in operands]
    rows, inner, columns, times = _MEASURES[node.target](node, shapes)
    single = node.target in _SINGLE and times == 1 and operands[0].dtype is torch.float32
    if not single:
        return times * rows * inner * columns, False
    return max(rows, SOME_ROWS) * inner * columns, is_candidate(rows, inner, columns, builder.trains)


_Measure = tuple[int, int, int, int]  # rows, inner, columns, and how many such products there are


def _of_product(node: fx.Node, shapes: Any) -> _Measure:
    (*batch, rows, inner), (*_, columns) = shapes[-2:]
    return rows, inner, columns, math.prod(batch)


def _of_convolution(node: fx.Node, shapes: Any) -> _Measure:
    (images, channels, *size), (out, each, *kernel) = shapes[:2]
    stride, transposed, groups = node.args[3], node.args[6], node.args[8]
    positions = images * math.prod(size) // (1 if transposed else math.prod(stride))  # type: ignore[arg-type]
    return positions, channels, (each if transposed else out // groups), math.prod(kernel)


def _of_attention(node: fx.Node, shapes: Any) -> _Measure:
    (*batch, rows, width), (*_, keys, _) = shapes[:2]
    return rows, width, keys, 2 * math.prod(batch)


_SINGLE = (aten.mm.default, aten.addmm.default, aten.convolution.default)
_MEASURES: dict[Any, Callable[[fx.Node, Any], _Measure]] = {
    **dict.fromkeys((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default), _of_product),
    aten.convolution.default: _of_convolution,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _of_attention,
}

# ---- timing


@choices.answered_by_timing
def is_kernel_quicker(
    compiled: CompiledConvolutions | None, rows: int, inner: int, columns: int, by_rows: bool, tunes: bool = False
) -> tuple[bool, bool]:
    """Compare a kernel of ours with libraries and a loop behind them; this may time both. Compiling a kernel takes
    longer than a first call should wait: only a second process that asks does so.

    compiled: makes the kernel; without it the rule decides. tunes: time now, however long all timings take.
    """
    rule = BLAS if is_tuned_blas() else _TILES
    sizes = _typical_sizes(rows, inner, columns, _TIMED_WORK * torch.get_num_threads())
    if compiled is None or rows * inner * columns < _TIMED_FROM or matrix_tile(*sizes) is None:
        return rule == _TILES, False
    facts, runs = (*sizes, by_rows), functools.partial(_runs, compiled, *sizes, by_rows)
    choose = choices.choose_on_cpu if tunes else choices.choose_in_next_process
    chosen, is_provisional = choose(_KIND, facts, runs, rule, _MARGIN)
    return chosen == _TILES, is_provisional


def _typical_sizes(rows: int, inner: int, columns: int, work: int) -> tuple[int, int, int]:
    """As those for libraries, but for what kernels depend on: how much of a tile few columns fill, and lines that are
    no whole number of vectors, which take longer."""
    rows, depth, across = typical_sizes(rows, inner, columns, work)
    depth -= depth > 1 and inner % float_lanes() > 0
    return rows, depth, columns if columns <= _FEW_COLUMNS and rows * depth * columns <= 2 * work else across


def _runs(compiled: CompiledConvolutions, rows: int, inner: int, columns: int, by_rows: bool) -> choices.Alternatives:
    """Each run has a matrix that no core's cache holds, as in a network of many."""
    tile = matrix_tile(rows, inner, columns)
    found = _of_matrix(rows, inner, columns, inner, tile, columns if by_rows else inner, by_rows)
    (kernel,) = compiled([found])
    count = inner * columns
    memory = torch.full((count + CACHE,), 0.5, dtype=torch.float32, device="cpu")
    strides = (columns, 1) if by_rows else (1, inner)
    places = range(0, CACHE + 1, count)
    matrices = itertools.cycle([memory.as_strided((inner, columns), strides, place) for place in places])
    x = torch.full((rows, inner), 0.5, dtype=torch.float32, device="cpu")
    out = x.new_empty(rows, columns)

    def by_library(product: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return product(next(matrices)).relu_()

    def by_kernel() -> torch.Tensor:
        kernel(x, next(matrices), out)
        return out

    libraries = [BLAS, ONEDNN] if onednn_takes(torch.float32) else [BLAS]
    runs = {name: functools.partial(by_library, product_by(name, x, columns)) for name in libraries}
    return choices.warmed_up({**runs, _TILES: by_kernel})
