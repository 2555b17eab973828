"""Prints matrix products with the loops that follow them as one Triton kernel.

A program computes a tile of the result of one part: the sums of products in float32, in steps along the depth, then the
values of the epilogue for each element of the tile. Tiles are divided between the parts by columns. A program may
compute several tiles, one after the other: the compiler makes one loop of theirs, which loads the sides of the next
tile while the epilogue of the last one runs. Where data divides rows or the depth into groups, each program finds its
own group. Nothing here decides which products are worth a kernel, or on tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from stator.inductor.buffers import Buffer
from stator.inductor.codegen.kernel import Kernel
from stator.inductor.codegen.triton.divisions import merge_members
from stator.inductor.codegen.triton.launch import block_count, index_type, typed_sizes
from stator.inductor.codegen.triton.modules import PrintedPart, pointer_names
from stator.inductor.codegen.triton.statements import Statements
from stator.inductor.schedule.groups import Ends, Group, Matrices, ProductGroup, ProductPart
from stator.inductor.sizes import SizeKnowledge
from stator.shapes.expr import Expr, ExprLike, as_expr

from .tile_values import Lanes, TileValues
from .windows import WindowSums

_MOST = 2**31 - 1  # of int32
_NEIGHBOURS = 8  # rows of tiles whose programs run one after the other: together they read a side from the second cache


def print_products(group: ProductGroup, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge) -> PrintedPart:
    """The statements of a group. Raises CompileError for operations that Triton kernels cannot compute."""
    products = group.products
    assert products.tile is not None
    kernels: list[Kernel] = []
    for part in products.parts:
        ranges = (products.batch, products.rows, part.columns)
        alone = Group(group.name, part.epilogue, ranges, group.internal, group.reads, group.writes)
        kernel = merge_members(alone, buffers, knowledge)
        if kernels:
            kernel.indices.arguments = kernels[0].indices.arguments
        kernels.append(kernel)
    printer = _Printer(group, kernels, buffers)
    body = printer.print()
    tile = products.tile
    blocks = {"ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth}
    grid = f"min({printer.tiles}, {tile.programs})" if tile.programs else printer.tiles
    index, sizes = index_type(kernels, printer.lanes()), kernels[0].indices.arguments.names
    text = "\n".join([*typed_sizes(kernels[0]), *body])
    return PrintedPart(text, blocks, tile.warps, grid, None, index, sizes, tile.stages)


class _Printer(Statements):
    def __init__(self, group: ProductGroup, kernels: list[Kernel], buffers: Mapping[str, Buffer]) -> None:
        self.products = products = group.products
        self.kernels, self.buffers = kernels, buffers
        assert products.tile is not None
        self.tile = products.tile
        self.pointers = pointer_names(group)
        self.first, self.knowledge = kernels[0], kernels[0].knowledge
        self.text = self.first.text
        super().__init__()
        divides = self.knowledge.divides
        self.ends = products.ends
        in_groups = self.ends is not None and not self.ends.along_depth
        self.masks_rows = in_groups or not divides(self.tile.rows, products.rows)
        self.masks_columns = any(not divides(self.tile.columns, part.columns) for part in products.parts)
        self.masks_depth = (self.ends is not None and not in_groups) or not divides(self.tile.depth, products.depth)
        self.windows: WindowSums | None = None
        if products.windows is not None:
            channels = products.depth // math.prod(products.windows.taps)
            self.windows = WindowSums(products.windows, self.text, self.tile.depth, channels)
        self.end = "depth" if self.ends is not None else self.text(products.depth)
        self.row_tiles = self._tiles([products.rows], self.tile.rows)
        if self.ends is not None and in_groups:
            # each group has at most one tile more than its rows fill, also the group of the rows behind all others
            rows, most = self.text(products.rows), f"{self.row_tiles} + {self.ends.count}"
            self.row_tiles = f"min({rows}, {most})"
        columns = [part.columns for part in products.parts]
        # by part: the tiles of all parts before it; then the tiles of all parts
        self.starts = [self._tiles(columns[:at], self.tile.columns) for at in range(len(columns) + 1)]
        self.tiles = " * ".join([self.row_tiles, self.starts[-1], self.text(products.batch)])

    def _tiles(self, sizes: Sequence[ExprLike], block: int) -> str:
        """How many blocks cover these sizes."""
        known = sum(-(-size // block) for size in sizes if isinstance(size, int))
        counts = [block_count(self.first, size, block) for size in sizes if not isinstance(size, int)]
        return f"({' + '.join([*counts, str(known)])})" if counts else str(known)

    def print(self) -> list[str]:
        if not self.tile.programs:
            self.line("program = tl.program_id(0).to(INDEX)")
            self._tile()
            return self.lines
        assert len(self.products.parts) == 1 and self.ends is None, (
            "Triton 3.6 makes one loop only of loops without branches"
        )
        first, step = "tl.program_id(0).to(INDEX)", self.tile.programs
        self.line(f"for tile in tl.range({first}, {self.tiles}, {step}, flatten=True):")
        with self.indented():
            self.line("program = tile")
            self._tile()
        return self.lines

    def _tile(self) -> None:
        self._place()
        self._choose_part()
        self._loops()
        self._sums()
        for at in range(len(self.products.parts)):
            with self._only_in(at):
                self._epilogue(at)

    def lanes(self) -> Iterator[Expr]:
        """Bounds on the places of the sides' elements."""
        products, tile = self.products, self.tile
        rows, depth = as_expr(products.rows) + tile.rows, as_expr(products.depth) + tile.depth
        yield from (rows, depth, as_expr(products.batch))
        if self.windows is None:
            yield _end(products.left, products.batch, rows, depth)
        else:
            groups = as_expr(products.batch) * products.left.strides[0]
            yield as_expr(products.left.offset) + groups + self.windows.last_place(products.rows)
        rights = products.batch if self.ends is None else self.ends.count
        for part in products.parts:
            columns = as_expr(part.columns) + tile.columns
            yield columns
            for right in part.rights:
                yield _end(right, rights, depth, columns)

    def _place(self) -> None:
        """The place of a tile. Neighbours share columns of the right side, in few rows of tiles."""
        if self.windows is not None and self.products.batch != 1:  # groups of channels lie in the same lines of memory
            self.line(f"x0 = program % {self.text(self.products.batch)}")
            self.line(f"program = program // {self.text(self.products.batch)}")
        elif self.products.batch != 1:
            self.line(f"tiles = {self.row_tiles} * {self.starts[-1]}")
            self.line("x0 = program // tiles")
            self.line("program = program % tiles")
        if self.ends is not None:
            if not self.ends.along_depth:
                return self._place_in_group(self.ends)
            self._depth_of_group(self.ends, "0" if self.products.batch == 1 else "x0")
        rows = -(-self.knowledge.hint(self.products.rows) // self.tile.rows)
        if rows <= _NEIGHBOURS:
            self.line(f"row = program % {self.row_tiles}")
            self.line(f"column = program // {self.row_tiles}")
            return
        self.line(f"band = {_NEIGHBOURS} * {self.starts[-1]}")
        self.line(f"top = program // band * {_NEIGHBOURS}")
        self.line(f"height = tl.minimum({self.row_tiles} - top, {_NEIGHBOURS})")
        self.line("row = top + program % band % height")
        self.line("column = program % band // height")

    def _place_in_group(self, ends: Ends) -> None:
        """The row tile of a program is one of its group's, or none. Neighbours have the same rows of the left side."""
        self.line(f"tile = program // {self.starts[-1]}")
        self.line(f"column = program % {self.starts[-1]}")
        rows, step, start = self.text(self.products.rows), self.text(ends.place.strides[2]), self._start(ends.place)
        self.line(f"groups = tl.arange(0, {1 << ends.count.bit_length()})")
        self.line(f"to = tl.load({start} + groups * {step}, mask=groups < {ends.count}, other={_MOST}).to(INDEX)")
        self.line(f"to = tl.minimum(to, {rows})")
        self.line(f"before = (groups > 0) & (groups <= {ends.count})")
        self.line(f"first = tl.load({start} + (groups - 1) * {step}, mask=before, other=0).to(INDEX)")
        self.line("count = (tl.maximum(to - tl.maximum(first, 0), 0) + ROWS - 1) // ROWS")
        self.line(f"behind = tl.cumsum(tl.where(groups <= {ends.count}, count, 0), 0)")
        self.line("number = tile - (behind - count)")
        self.line(f"own = (number >= 0) & (tile < behind) & (groups <= {ends.count})")
        self.line("first_row = tl.sum(tl.where(own, tl.maximum(first, 0) + number * ROWS, 0))")
        self.line("rows = tl.sum(tl.where(own, to, 0))")
        self.line(f"own = own & (groups < {ends.count})")
        self.line("group = tl.sum(tl.where(own, groups, 0)).to(INDEX)")
        self.line(f"depth = tl.sum(tl.where(own, {self.text(self.products.depth)}, 0))")

    def _depth_of_group(self, ends: Ends, group: str) -> None:
        start, step = self._start(ends.place), self.text(ends.place.strides[2])
        self.line("first = tl.full([], 0, INDEX)")
        if group != "0":
            self.line(f"first = tl.load({start} + ({group} - 1) * {step}, mask={group} > 0, other=0).to(INDEX)")
        self.line("first = tl.maximum(first, 0)")
        self.line(f"to = tl.load({start} + {group} * {step}).to(INDEX)")
        self.line(f"depth = tl.minimum(to, {self.text(self.products.depth)}) - first")

    def _choose_part(self) -> None:
        """The right sides of the part that a program works for, and the place of its first column in that."""
        parts = self.products.parts
        self.line("part_column = column")
        self._rights(parts[0])
        if self.masks_columns:
            self.line(f"columns = tl.full([], {self.text(parts[0].columns)}, INDEX)")
        for at in range(len(parts) - 1, 0, -1):
            self.line(f"{'if' if at == len(parts) - 1 else 'elif'} column >= {self.starts[at]}:")
            with self.indented():
                self.line(f"part_column = column - {self.starts[at]}")
                self._rights(parts[at])
                if self.masks_columns:
                    self.line(f"columns = tl.full([], {self.text(parts[at].columns)}, INDEX)")

    def _rights(self, part: ProductPart) -> None:
        for at, right in enumerate(part.rights):
            self.line(f"right{at} = {self._start(right)}")

    def _start(self, side: Matrices) -> str:
        pointer = self.pointers[side.buffer]
        return pointer if side.offset == 0 else f"{pointer} + {self.text(side.offset)}"

    @contextmanager
    def _only_in(self, at: int) -> Iterator[None]:
        """The statements of one part, of those that a kernel has."""
        parts = len(self.products.parts)
        if parts == 1:
            yield
            return
        above = [] if at == 0 else [f"(column >= {self.starts[at]})"]
        below = [] if at == parts - 1 else [f"(column < {self.starts[at + 1]})"]
        self.line(f"if {' & '.join([*above, *below])}:")
        with self.indented():
            yield

    def _epilogue(self, part: int) -> None:
        """The values and stores of one part."""
        sums = {name: f"sum{at}" for at, name in enumerate(self.products.parts[part].sums)}
        masks = (["in_rows"] if self.masks_rows else [], ["in_columns"] if self.masks_columns else [])
        lanes = [Lanes(loop, "".join(mask)) for loop, mask in zip(("x1", "x2"), masks, strict=True)]
        TileValues(self, self.kernels[part], self.pointers, sums, lanes, self.products.dtype).print()

    # --- the sums ---

    def _loops(self) -> None:
        in_groups = self.ends is not None and not self.ends.along_depth
        self.line(f"x1 = ({'first_row' if in_groups else 'row * ROWS'} + tl.arange(0, ROWS))[:, None]")
        self.line("x2 = (part_column * COLUMNS + tl.arange(0, COLUMNS))[None, :]")
        if self.masks_rows:
            self.line(f"in_rows = x1 < {'rows' if in_groups else self.text(self.products.rows)}")
        if self.masks_columns:
            self.line("in_columns = x2 < columns")

    def _sums(self) -> None:
        """A lane behind the last row or column reads the first one, so that no mask makes accesses narrow; where
        neighbours in memory lie along rows or columns, a mask is better."""
        products, text = self.products, self.text
        part = products.parts[0]
        left, right = products.left.strides, part.rights[0].strides
        masks_left = self.masks_rows and left[1] == 1
        masks_right = self.masks_columns and right[2] == 1
        rows = "tl.where(in_rows, x1, 0)" if self.masks_rows and not masks_left else "x1"
        columns = "tl.where(in_columns, x2, 0)" if self.masks_columns and not masks_right else "x2"
        self.line("k = tl.arange(0, DEPTH).to(INDEX)")
        place = f"{rows} * {text(left[1])}" if self.windows is None else self.windows.place(self, rows)
        place += f" + k[None, :] * {text(left[2])}"
        self.line(f"left = {self._start(products.left)} + {self._batch(left)}{place}")
        group = ""
        if self.ends is not None and self.ends.along_depth:
            self.line(f"left += first * {text(left[2])}")
            group = f"first * {text(right[1])} + "
        elif self.ends is not None:
            group = f"group * {text(right[0])} + "
        self.line(
            f"offsets = {group or self._batch(right)}k[:, None] * {text(right[1])} + {columns} * {text(right[2])}"
        )
        for at in range(len(part.rights)):
            self.line(f"right{at} += offsets")
            self.line(f"sum{at} = tl.zeros([ROWS, COLUMNS], tl.float32)")
        if self.windows is not None:
            self.windows.loop(self, len(part.rights))
        else:
            self._steps(left, right, len(part.rights), masks_left, masks_right)

    def _steps(
        self, left: tuple[Any, Any, Any], right: tuple[Any, Any, Any], rights: int, masks_left: bool, masks_right: bool
    ) -> None:
        """Along the depth. masks_left, masks_right: whether loads skip lanes behind the last row and column."""
        text = self.text
        self.line(f"for start in range(0, {self.end}, DEPTH):")
        with self.indented():
            rest = f"< {self.end} - start" if self.masks_depth else ""
            masks = [f"k[None, :] {rest}" if rest else "", "in_rows" if masks_left else ""]
            self.line(f"a = {_load('left', *masks)}")
            masks = [f"k[:, None] {rest}" if rest else "", "in_columns" if masks_right else ""]
            for at in range(rights):
                self.line(f"b{at} = {_load(f'right{at}', *masks)}")
            for at in range(rights):
                self.line(f"sum{at} = tl.dot(a, b{at}, sum{at})")
            self.line(f"left += DEPTH * {text(left[2])}")
            for at in range(rights):
                self.line(f"right{at} += DEPTH * {text(right[1])}")

    def _batch(self, strides: tuple[Any, Any, Any]) -> str:
        return "" if self.products.batch == 1 or strides[0] == 0 else f"x0 * {self.text(strides[0])} + "


def _load(pointers: str, *masks: str) -> str:
    mask = " & ".join(f"({mask})" for mask in masks if mask)
    return f"tl.load({pointers}, mask={mask}, other=0.0)" if mask else f"tl.load({pointers})"


def _end(side: Matrices, batch: ExprLike, rows: ExprLike, columns: ExprLike) -> Expr:
    """A bound on the places of elements."""
    total = as_expr(side.offset)
    for size, stride in zip((batch, rows, columns), side.strides, strict=True):
        total = total + size * stride
    return total
