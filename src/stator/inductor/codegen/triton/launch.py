"""Prints how a kernel is launched, as a Python function of its sizes: the grid, and the type of its indices."""

from __future__ import annotations

from collections.abc import Iterator

from stator.inductor.codegen.index_printer import is_size, magnitudes
from stator.inductor.codegen.kernel import Kernel
from stator.shapes.expr import Expr, as_expr

from .blocks import Blocks

_LIMIT = 2**31


def print_launch(kernel: Kernel, blocks: Blocks) -> list[str]:
    grid = f"-(-{kernel.text(blocks.x_size)} // {blocks.x_block})"
    index = _index_type(kernel, blocks)
    return [f"def launch({', '.join(kernel.indices.arguments.names.values())}):", f"    return ({grid},), {index}"]


def _index_type(kernel: Kernel, blocks: Blocks) -> str:
    """int32 where no number can be too large. What ranges and facts do not prove, the launch finds out."""
    doubtful: dict[Expr, None] = {}
    for bound in _bounds(kernel, blocks):
        if bound.bounds(kernel.ranges)[1] >= _LIMIT:
            if not is_size(bound, kernel.ranges):
                return "tl.int64"
            doubtful[bound] = None
    largest = [
        one
        for one in doubtful
        if not any((other - one).bounds(kernel.ranges)[0] >= 0 for other in doubtful if other is not one)
    ]
    if not largest:
        return "tl.int32"
    return f"tl.int64 if {' or '.join(f'{kernel.text(bound)} >= {_LIMIT}' for bound in largest)} else tl.int32"


def _bounds(kernel: Kernel, blocks: Blocks) -> Iterator[Expr]:
    """Bounds on all numbers that the kernel computes as indices."""
    yield as_expr(blocks.x_size) + blocks.x_block  # lanes behind the end count, too
    yield as_expr(blocks.r_size) + blocks.r_block
    indices = [argument for value in kernel.values for argument in value.args if isinstance(argument, Expr)]
    for index in (*indices, *(store.index for store in kernel.stores), *kernel.indices.arguments.names):
        yield from magnitudes(index, kernel.ranges)
