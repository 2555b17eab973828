"""The memory that is asked for ahead of its use, where nothing else foretells the next row: gathers read a row in no
order, reversed loads from its end."""

from __future__ import annotations

from collections.abc import Iterator

from stator.inductor.codegen.kernel import Kernel
from stator.shapes.expr import Expr, ExprLike

from .types import LANES
from .vectorize import LoopOrder

_LINE = 64  # bytes of a line of the cache
_MOST_LINES = 4  # of a vector: with more, most of a row is not read


def lines_ahead(kernel: Kernel, order: LoopOrder, index: Expr, step: ExprLike | None, itemsize: int) -> Iterator[Expr]:
    """The elements to ask for in an iteration of the innermost loop, whose lanes read at `index`: some lines of the row
    that the next iteration of the loop around reads. step: between lanes, None if they gather."""
    loops = (*order.outer, *order.inner)
    if len(loops) < 2 or loops[-1] != order.vector:
        return
    if step == -1:
        yield from _behind(kernel, index, loops, itemsize)
    elif step is None:
        yield from _gathered(kernel, index, loops, itemsize)


def _behind(kernel: Kernel, index: Expr, loops: tuple[int, ...], itemsize: int) -> Iterator[Expr]:
    """What the same iteration reads backwards in the next row. Processors fetch ahead inside of a page alone: of rows
    of 4 KB they foretell nothing."""
    next_row = index.coefficient(kernel.loops[loops[-2]])
    if next_row is not None and next_row != 0 and kernel.typical[loops[-1]] * itemsize > _LINE:
        lines = -(-LANES * itemsize // _LINE)
        yield from (index + next_row - line * (_LINE // itemsize) for line in range(lines))


def _gathered(kernel: Kernel, index: Expr, loops: tuple[int, ...], itemsize: int) -> Iterator[Expr]:
    places = [symbol for symbol in index.symbols if symbol in kernel.indirect]
    if len(places) != 1 or index.coefficient(places[0]) != 1:
        return
    last, around = (kernel.loops[loop] for loop in (loops[-1], loops[-2]))
    place = kernel.values[kernel.indirect[places[0]]]
    row, reads = kernel.knowledge.hint(place.args[1]), kernel.typical[loops[-1]]
    step = index.coefficient(around)
    if last in index.symbols or not place.loops & (1 << loops[-1]) or step is None or kernel.knowledge.hint(step) < row:
        return
    times = -(-row // max(reads, 1))
    count = LANES * itemsize * times // _LINE
    if row * itemsize <= _LINE or count > _MOST_LINES:
        return
    first = index.substitute({places[0]: times * last}) + step
    yield from (first + line * (_LINE // itemsize) for line in range(max(count, 1)))
