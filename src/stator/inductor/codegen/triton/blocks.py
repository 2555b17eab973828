"""Divides a kernel's iterations into Triton programs and blocks, by fixed rules. Prints nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.sizes import ceil_div, product
from stator.shapes.expr import ExprLike

from .access_patterns import crossing_loops, inner_loads, inner_reads, narrowest, neighbours_are_outer
from .joint_reductions import joint_phases, next_phase_at_once, reductions

_WAVE = 264  # programs that occupy a large GPU: two for each multiprocessor
_BYTES = 32  # of one buffer for a thread: two loads of 16 bytes are in flight
_THREADS = 128
_SMALLEST = 256  # elements of a block: two for each thread
_PER_THREAD = 16  # elements of a row in the registers of a thread
_ROW = 512  # the shortest row that is no part of a longer block, if each has values of its own
_TILE = 64  # elements along each side of a tile: whole lines of the cache on both sides
_LANES, _FEWEST_LANES = 64, 16  # rows that a program reduces together if neighbours lie in other rows
_LINE = 128  # bytes of neighbours in steps along columns
_KEPT_COLUMNS = 8192  # elements of a block in registers if neighbours lie in other rows
_LONG_OPERATIONS = frozenset(("erf", "tanh", "exp", "sigmoid"))
_KEPT_PER_THREAD = 64  # of them; exchanges between many warps took most of the time
_FEW_SUMS, _SUM_REGISTERS = 4, 24  # with more sums than these, steps whose sums take about so many of a thread
_WINDOW = 8  # loads for each element: of the elements around it, so that threads have few elements
_OF_WINDOWS_PER_THREAD = 4  # of a step along columns; of a whole column as many as of a row
_SUM_ELEMENTS = 1024  # of a block whose columns are summed, too
_LONG_SUM_ROW = 4096  # elements of a row that is summed with the next one
_AHEAD, _AHEAD_BYTES = 3, 1 << 16  # stages of loads ahead of their rows, in so much shared memory
_STEP = 4096  # elements of a step along rows that do not fit in registers
_JOINT_STEP = 2048  # where accumulators of joint reductions or scans take registers, too
_PIECE = 1  # steps of a program along a row without a reduction
_LONG_STEP = 512  # elements of a step along columns, where programs are few
_LONG_COLUMN = 1024  # elements of a column that has longer steps
_SHORTEST_STEP = 128  # of loops whose rows may be longer than those of the example
# Elements of a block in registers, by how many buffers it loads at most
_PERSISTENT = ((3, 16384), (6, 8192), (1 << 30, 4096))
_COLUMNS = 32768  # of a block in registers that has long rows of one buffer: sectors of 32 bytes in each
_WARP_ROW = 1024  # elements of a row for which one warp needs no exchange with others, if there are many rows
_FEW_ROWS = 16  # whose programs leave most of the device idle: they have as many threads as they can
_MANY_ROWS = 6 * _WAVE
_MOST_WARPS = 16  # of a persistent row
_MOST_ELEMENTS = 1 << 16  # of a block
ALIGNED = 16  # elements: 16 bytes of the narrowest


@dataclass(frozen=True, slots=True)
class Blocks:
    """x: shared loops, flattened; r: the inner loops, flattened, or, in a tile, one more shared loop.

    programs: shared loops of which each program runs one iteration. x_loops, r_loops: positions of loops.
    persistent: a whole row is one block, so that every inner value is computed once. masked: the last block may be
    partly outside. steps: blocks of x that a program runs one after the other; stages: how far ahead their elements are
    loaded. row_steps: the steps along a row that a program runs; 0: all of them.
    """

    programs: tuple[int, ...]
    x_loops: tuple[int, ...]
    r_loops: tuple[int, ...]
    x_size: ExprLike
    r_size: ExprLike
    x_block: int
    r_block: int
    x_masked: bool
    r_masked: bool
    persistent: bool
    warps: int
    steps: int = 1
    stages: int = 1
    row_steps: int = 0

    @property
    def pieces(self) -> ExprLike:
        """The programs that share a row."""
        return ceil_div(self.r_size, self.r_block * self.row_steps) if self.row_steps else 1


@dataclass(frozen=True, slots=True)
class Variation:
    """How blocks differ from those of the rule: powers of two by which each number is multiplied."""

    x: int = 0
    r: int = 0
    warps: int = 0


BY_RULE = Variation()
# What max-autotune tries; those that are impossible for a kernel are other variations again
VARIATIONS = (
    *(Variation(x=1), Variation(x=-1), Variation(x=1, warps=1), Variation(x=-1, warps=-1), Variation(x=2, warps=1)),
    *(Variation(r=1), Variation(r=-1), Variation(r=1, warps=1), Variation(r=-1, warps=-1)),
    *(Variation(warps=1), Variation(warps=-1), Variation(warps=2)),
)


def varied(kernel: Kernel, blocks: Blocks, variation: Variation) -> Blocks:
    """Other blocks for the same division into programs. A row in registers stays one block."""
    if variation == BY_RULE:
        return blocks
    most_x, most_r = (kernel.knowledge.bounded(size)[1] for size in (blocks.x_size, blocks.r_size))
    x_block = _block(most_x, max(_times(blocks.x_block, variation.x), 1))
    r_block = blocks.r_block
    if blocks.r_loops and not blocks.persistent:
        least = ALIGNED if kernel.outer == len(kernel.loops) else _SHORTEST_STEP
        r_block = _block(most_r, max(_times(r_block, variation.r), min(r_block, least)))
    if x_block * r_block > _MOST_ELEMENTS:
        return blocks
    warps = min(max(_times(blocks.warps, variation.warps), 1), 32)
    if kernel.rows_each:
        return _with_row_sums(kernel, replace(blocks, warps=warps))
    found = _blocks(kernel, blocks.programs, blocks.x_loops, blocks.r_loops, x_block, r_block, blocks.persistent, warps)
    return replace(found, row_steps=blocks.row_steps)


def _times(number: int, power: int) -> int:
    return number << power if power >= 0 else number >> -power


def choose_blocks(kernel: Kernel) -> Blocks:
    """Blocks for all sizes in their ranges: a row is persistent only if no row can be longer than a block."""
    shared, inner = tuple(range(kernel.outer)), tuple(range(kernel.outer, len(kernel.loops)))
    if kernel.rows_each:
        return _row_sum_blocks(kernel, shared, inner)
    if inner:
        return (_column_blocks if neighbours_are_outer(kernel) else _row_blocks)(kernel, shared, inner)
    crossing = crossing_loops(kernel)
    if crossing is not None:
        return _tile(kernel, *crossing)
    return _flat_blocks(kernel, shared)


def _flat_blocks(kernel: Kernel, shared: tuple[int, ...]) -> Blocks:
    most = kernel.knowledge.bounded(product(kernel.sizes))[1]
    every = (1 << kernel.outer) - 1
    buffers = len({value.args[0] for value in kernel.values if value.name == "load" and value.loops == every})
    each = max(min(_BYTES // narrowest(kernel), 16 if buffers <= 6 else 8), 4)
    waits = 1 + any(value.name == "total" for value in kernel.values)  # for loads, step after step
    block = _shrunk(_THREADS * each, math.prod(kernel.typical) // waits, _SMALLEST // waits)
    if _loads_by_row(kernel):
        row = kernel.typical[-1]
        while block > 512 and -row % block > row // 6:  # lanes behind the end of a row are idle
            block //= 2
        most = kernel.knowledge.bounded(kernel.sizes[-1])[1]
        return _blocks(kernel, shared[:-1], shared[-1:], (), _block(most, block), 1, False, 4)
    return _blocks(kernel, (), shared, (), _block(most, block), 1, False, 4)


def _loads_by_row(kernel: Kernel) -> bool:
    """True if some loads are equal in all of a long row: programs of one row have them as scalars. Rows start at whole
    16 bytes."""
    if kernel.outer < 2 or kernel.typical[-1] < _ROW or not kernel.knowledge.divides(ALIGNED, kernel.sizes[-1]):
        return False
    last = 1 << (kernel.outer - 1)
    return any(value.name == "load" and value.loops and not value.loops & last for value in kernel.values)


def _tile(kernel: Kernel, rows: int, columns: int) -> Blocks:
    """Both sides of a tile are contiguous in some buffers; the compiler exchanges elements in shared memory."""
    programs = tuple([at for at in range(kernel.outer) if at not in (rows, columns)])
    sides = [_block(kernel.knowledge.bounded(kernel.sizes[at])[1], _TILE) for at in (rows, columns)]
    return _blocks(kernel, programs, (rows,), (columns,), sides[0], sides[1], False, 8)


def _row_blocks(kernel: Kernel, shared: tuple[int, ...], inner: tuple[int, ...]) -> Blocks:
    knowledge, typical = kernel.knowledge, kernel.typical
    most_x, most_r = (knowledge.bounded(product([kernel.sizes[at] for at in loops]))[1] for loops in (shared, inner))
    rows, row = (math.prod([typical[at] for at in loops]) for loops in (shared, inner))
    persistent = most_r <= _room(kernel) and (kernel.phases > 1 or most_r <= _STEP)
    if persistent:
        r_block = _power_of_two(int(most_r))
        if r_block == _WARP_ROW and rows >= _MANY_ROWS:
            return _blocks(kernel, (), shared, inner, 1, r_block, True, 1)
    else:
        separate = kernel.phases == 1 and not reductions(kernel, 0) and not kernel.scans
        if separate and all(store.loops & kernel.inner_bits for store in kernel.stores):
            return _piece_blocks(kernel, shared, inner, rows, row)
        r_block = min(max(_power_of_two(row), _SHORTEST_STEP), _longest_step(kernel, rows))
    x_block = max(2048 // r_block, 1)
    x_block = _block(most_x, _shrunk(x_block, rows, min(max(1, _SMALLEST // r_block), x_block)))
    elements = x_block * r_block
    warps = min(max(elements // (32 * _PER_THREAD), 4), _MOST_WARPS if persistent else 32)
    if not persistent and rows <= _FEW_ROWS:
        warps = min(max(elements // 256, warps), 32)
    elif not persistent and kernel.phases > 1 and elements >= _JOINT_STEP:
        warps = min(2 * warps, 32)  # fewer rows at a time: a later phase finds its row in the second-level cache
    return _blocks(kernel, (), shared, inner, x_block, r_block, persistent, warps)


def _longest_step(kernel: Kernel, rows: int) -> int:
    if rows <= _FEW_ROWS:
        return 2 * _STEP
    if _runs_once(kernel):
        joint = next_phase_at_once(kernel, 0)
        return _STEP if joint and joint.exponentials else _JOINT_STEP
    if kernel.scans:
        return _JOINT_STEP
    return 2 * _STEP if kernel.phases > 1 else _STEP


def _piece_blocks(kernel: Kernel, shared: tuple[int, ...], inner: tuple[int, ...], rows: int, row: int) -> Blocks:
    """Rows without a reduction: several programs share each, so that all walk through memory side by side. Nothing is
    stored once for a row, which each program would do again."""
    r_block = min(max(_power_of_two(row), _SHORTEST_STEP), _STEP)
    r_block = _shrunk(r_block, rows * row, min(r_block, 2 * _SMALLEST))
    warps = max(r_block // (32 * _PER_THREAD), 4)
    return replace(_blocks(kernel, (), shared, inner, 1, r_block, False, warps), row_steps=_PIECE)


def _row_sum_blocks(kernel: Kernel, shared: tuple[int, ...], inner: tuple[int, ...]) -> Blocks:
    """Rows one after the other, with accumulators for columns in registers."""
    r_block = _power_of_two(product([kernel.sizes[at] for at in inner]))
    wanted = 2 if r_block >= _LONG_SUM_ROW else _SUM_ELEMENTS // r_block
    x_block = max(min(wanted, kernel.rows_each & -kernel.rows_each), 1)
    warps = min(max(x_block * r_block // (32 * _PER_THREAD), 2), _MOST_WARPS)
    return _with_row_sums(kernel, _blocks(kernel, (), shared, inner, x_block, r_block, True, warps))


def _with_row_sums(kernel: Kernel, blocks: Blocks) -> Blocks:
    masked = not kernel.knowledge.divides(kernel.rows_each, blocks.x_size)
    every = (1 << len(kernel.loops)) - 1
    loaded = {v.args[0]: v.dtype.itemsize for v in kernel.values if v.name == "load" and v.loops == every}
    ahead = (_AHEAD - 1) * blocks.x_block * blocks.r_block * sum(loaded.values())
    stages = _AHEAD if ahead <= _AHEAD_BYTES else 1
    return replace(blocks, steps=kernel.rows_each // blocks.x_block, stages=stages, x_masked=masked)


def _column_blocks(kernel: Kernel, shared: tuple[int, ...], inner: tuple[int, ...]) -> Blocks:
    """Neighbours in memory lie in other rows, which a program reduces together."""
    knowledge, typical = kernel.knowledge, kernel.typical
    rows, row = (math.prod([typical[at] for at in loops]) for loops in (shared, inner))
    programs: tuple[int, ...] = ()
    if len(shared) > 1 and typical[shared[-1]] >= _FEWEST_LANES:
        programs, shared = shared[:-1], shared[-1:]
    most_x, most_r = (knowledge.bounded(product([kernel.sizes[at] for at in loops]))[1] for loops in (shared, inner))
    width, loads = narrowest(kernel), inner_loads(kernel)
    sums = len(reductions(kernel, 0))
    if sums > _FEW_SUMS and kernel.phases == 1:  # each has an accumulator for every element of a step
        lanes = [size for size in (_LANES, _LANES // 2, _FEWEST_LANES) if -typical[shared[-1]] % size <= size // 4]
        x_block = _block(most_x, next(iter(lanes), _FEWEST_LANES))
        each = 1 << (max(_SUM_REGISTERS // sums, 1).bit_length() - 1)
        r_block = _block(most_r, max(each * _THREADS // x_block, 1))
        return _blocks(kernel, programs, shared, inner, x_block, r_block, most_r <= r_block, 4)
    in_registers = most_r * _FEWEST_LANES <= _room(kernel)
    if kernel.phases > 1 and loads == 1 and width == 4 and not _runs_once(kernel):
        in_registers |= most_r * _FEWEST_LANES // 2 <= _COLUMNS
    line = min(max(_LINE // width, _FEWEST_LANES), _LANES)
    windows = kernel.phases == 1 and inner_reads(kernel) >= _WINDOW
    # a sum needs no registers but its own; where programs are few, waiting for each step would take most of the time
    persistent = in_registers and (kernel.phases > 1 or rows < _WAVE * line)
    if persistent:
        r_block = _power_of_two(int(most_r))
        x_block = min(max(_KEPT_COLUMNS // r_block, _FEWEST_LANES // 2), _LANES) if not windows else _FEWEST_LANES
    else:
        step = 32 if row < _LONG_COLUMN else 64 if loads > 1 or width > 2 else 128
        if windows:
            step = max(step, 64) if most_r <= 64 else step
            line = _lanes_without_waste(typical[shared[-1]], line)
        x_block, r_block = line, _power_of_two(int(min(most_r, step)))
    x_block = _block(most_x, _shrunk(x_block, rows, min(max(_FEWEST_LANES, _SMALLEST // r_block), x_block)))
    if not persistent and rows < _WAVE * x_block:  # few programs wait less if they load much at a time
        r_block = max(_power_of_two(int(min(most_r, _LONG_STEP))), r_block)
        warps = min(max(x_block * r_block // (32 * _PER_THREAD), 4), _MOST_WARPS)
        return _blocks(kernel, programs, shared, inner, x_block, r_block, most_r <= r_block, warps)
    each = _KEPT_PER_THREAD if loads == 1 else _KEPT_PER_THREAD // 2
    if windows:
        each = _PER_THREAD if most_r <= r_block else _OF_WINDOWS_PER_THREAD
    warps = min(max(x_block * r_block // (32 * each), 4), _MOST_WARPS)
    stores = any(store.loops & kernel.inner_bits for store in kernel.stores)
    if not persistent and not windows and stores and any(value.name in _LONG_OPERATIONS for value in kernel.values):
        warps = min(2 * warps, _MOST_WARPS)  # they take longer than exchanges between warps
    return _blocks(kernel, programs, shared, inner, x_block, r_block, persistent or most_r <= r_block, warps)


def _lanes_without_waste(columns: int, most: int) -> int:
    """The most lanes of which few lie behind the last column."""
    sizes = [most >> power for power in range(3) if most >> power >= _FEWEST_LANES]
    return next((size for size in sizes if -columns % size <= columns // 16), _FEWEST_LANES)


def _room(kernel: Kernel) -> int:
    """The most elements of a block in registers."""
    loads = inner_loads(kernel)
    return next(elements for most, elements in _PERSISTENT if loads <= most)


def _runs_once(kernel: Kernel) -> bool:
    """Whether several phases are one run over a row that is looped over."""
    return kernel.phases - joint_phases(kernel) == 1 < kernel.phases


def _blocks(
    kernel: Kernel,
    programs: tuple[int, ...],
    x_loops: tuple[int, ...],
    r_loops: tuple[int, ...],
    x_block: int,
    r_block: int,
    persistent: bool,
    warps: int,
) -> Blocks:
    x_size, r_size = (product([kernel.sizes[at] for at in loops]) for loops in (x_loops, r_loops))
    masked = [not kernel.knowledge.divides(block, size) for block, size in ((x_block, x_size), (r_block, r_size))]
    return Blocks(programs, x_loops, r_loops, x_size, r_size, x_block, r_block, masked[0], masked[1], persistent, warps)


def _block(most: float, limit: int) -> int:
    """The block for at most so many iterations."""
    return limit if most >= limit else _power_of_two(int(most))


def _shrunk(block: int, iterations: int, least: int) -> int:
    """A smaller block if the example has too few iterations for a wave of programs."""
    while block > least and iterations < _WAVE * block:
        block //= 2
    return block


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def neighbours_of_thread(kernel: Kernel, blocks: Blocks) -> int:
    """The elements of a row that a thread loads at once, in steps along rows: 16 bytes. 1 along columns."""
    if neighbours_are_outer(kernel):
        return 1
    inner = [v.dtype.itemsize for v in kernel.values if v.name == "load" and v.loops & kernel.inner_bits]
    return max(min(16 // max(inner, default=16), blocks.r_block // (32 * blocks.warps)), 1)
