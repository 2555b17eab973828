"""The launch of a kernel: a Python function of its sizes, to the grid and the type of indices; and what the kernel does
with the sizes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stator.inductor.codegen.index_printer import is_size, magnitudes
from stator.inductor.codegen.kernel import Kernel
from stator.inductor.sizes import ceil_div, product
from stator.shapes.expr import Expr, ExprLike, as_expr

from .blocks import Blocks

_INDEX_LIMIT = 2**31


def block_count(kernel: Kernel, size: ExprLike, block: int | str) -> str:
    return f"(({kernel.text(size)} + {block} - 1) // {block})"


def typed_sizes(kernel: Kernel) -> Iterator[str]:
    """Statements that give size arguments the type of indices, and tell the compiler what is known about them."""
    for size, name in kernel.indices.arguments.names.items():
        text = f"{name}.to(INDEX)"
        yield f"    {name} = {f'tl.multiple_of({text}, 16)' if kernel.knowledge.divides(16, size) else text}"


def programs_of(kernel: Kernel, blocks: Blocks) -> int | None:
    """The number of programs; None if it depends on arguments."""
    counts = [ceil_div(blocks.x_size, blocks.x_block * blocks.steps), blocks.pieces]
    counts += [kernel.sizes[at] for at in blocks.programs]
    if blocks.r_loops and kernel.outer == len(kernel.loops):
        counts.append(ceil_div(blocks.r_size, blocks.r_block))
    number = product(counts)
    return number if isinstance(number, int) else None


def print_grid(kernel: Kernel, blocks: Blocks) -> str:
    grid = block_count(kernel, blocks.x_size, blocks.x_block * blocks.steps)
    if blocks.r_loops and kernel.outer == len(kernel.loops):
        grid = f"{grid} * {block_count(kernel, blocks.r_size, blocks.r_block)}"
    pieces = [kernel.text(blocks.pieces)] if blocks.row_steps else []
    return " * ".join([grid, *pieces, *(kernel.size(at) for at in blocks.programs)])


def lanes_of(blocks: Blocks) -> tuple[Expr, Expr]:
    """Bounds on the loops, with lanes behind the end."""
    return as_expr(blocks.x_size) + blocks.x_block, as_expr(blocks.r_size) + blocks.r_block


def index_type(kernels: Sequence[Kernel], lanes: Iterable[Expr]) -> str:
    """int32 where no number can be too large. What ranges and facts do not prove, the launch finds out.

    kernels: parts of one kernel, with size arguments in common. lanes: bounds on the indices that these do not tell.
    """
    text, ranges = kernels[0].text, kernels[0].ranges
    doubtful: dict[Expr, None] = {}
    for bound in (*lanes, *(bound for kernel in kernels for bound in _bounds(kernel))):
        if bound.bounds(ranges)[1] >= _INDEX_LIMIT:
            if not is_size(bound, ranges):
                return "tl.int64"
            doubtful[bound] = None
    largest = [
        one
        for one in doubtful
        if not any((other - one).bounds(ranges)[0] >= 0 for other in doubtful if other is not one)
    ]
    if not largest:
        return "tl.int32"
    return f"tl.int64 if {' or '.join(f'{text(bound)} >= {_INDEX_LIMIT}' for bound in largest)} else tl.int32"


def _bounds(kernel: Kernel) -> Iterator[Expr]:
    """Bounds on all numbers that values and stores need as indices."""
    indices = [argument for value in kernel.values for argument in value.args if isinstance(argument, Expr)]
    for index in (*indices, *(store.index for store in kernel.stores), *kernel.indices.arguments.names):
        yield from magnitudes(index, kernel.ranges)
