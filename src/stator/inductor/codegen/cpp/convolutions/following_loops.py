"""Prints the loops that read the sums of a convolution, over the positions and channels of a tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stator.inductor.buffers import Buffer
from stator.inductor.codegen.cpp.emit import Emitter
from stator.inductor.codegen.cpp.vectorize import LoopOrder
from stator.inductor.codegen.kernel import Kernel, KernelValue
from stator.inductor.loops.vocabulary import HEAVY
from stator.inductor.schedule.groups import SUMS
from stator.shapes.expr import Expr

LINE = 16  # float32 that come into a cache at once
_MOST_STATEMENTS = 320  # of loops that read sums in registers


class FollowingLoops(Emitter):
    """The loops behind the sums, over the positions and channels of a tile."""

    def _parallel_loop(self) -> None:
        return None

    def loop(self, loop: int, body: Callable[[], None], shared: bool = False) -> None:
        name = self.kernel.loops[loop].name
        if loop == 0:
            body()
            return
        head = f"{name} = row; {name} < row + count; ++{name}"
        if loop == self.order.vector:
            head = self.head_of_vectors(name)
        with self.block(f"for (int64_t {head})"):
            body()

    def head_of_vectors(self, name: str) -> str:
        return f"{name} = column; {name} < column + width; {name} += LANES"

    def prefetches(self) -> Iterator[str]:
        """Text that asks for what these loops read and write, before they run: in the second-level cache where much
        is asked for before its use, since images and the kernel fill the nearest one."""
        _, row, column = (symbol.name for symbol in self.kernel.loops)
        reads = [value.args[:2] for value in self.kernel.values if value.name == "load" and value.args[0] != SUMS]
        writes = [(store.buffer, store.index) for store in self.kernel.stores]
        hints = dict.fromkeys(reads, 0) | dict.fromkeys(writes, 1)
        varying = {place: hint for place, hint in hints.items() if self._varies_by_element(place[1])}
        for much in (True, False) if varying else ():
            yield "if (much) {" if much else "} else {"
            for (buffer, index), hint in varying.items():
                yield f"    for (int64_t {row} = row + further; {row} < row + further + count; ++{row})"
                yield f"        for (int64_t {column} = column; {column} < column + width; {column} += {LINE})"
                yield f"            __builtin_prefetch({self.at(buffer, index)}, {'0, 2' if much else hint});"
        if varying:
            yield "}"

    def _varies_by_element(self, index: Expr) -> bool:
        return set(self.kernel.loops[1:]) <= index.symbols and not index.symbols & self.kernel.indirect.keys()

    def load(self, value: KernelValue, vector: bool) -> str:
        if value.args[0] != SUMS:
            return super().load(value, vector)
        _, row, column = (symbol.name for symbol in self.kernel.loops)
        if self.kernel.sizes[1] == 1:  # has no loop
            return f"load(tile + {column} - column)"
        return f"load(tile + ({row} - row) * width + {column} - column)"


class LoopsOfPaddedTile(FollowingLoops):
    """The same where channels end within the tile: their last vector may begin within the one before it."""

    def head_of_vectors(self, name: str) -> str:
        step = f"{name} + LANES < end && {name} + 2 * LANES > end ? end - LANES : {name} + LANES"
        return f"{name} = column, end = column + out_channels; {name} < end; {name} = {step}"


class LoopsOfNarrowTile(FollowingLoops):
    """The same where there are fewer channels than lanes."""

    def loop(self, loop: int, body: Callable[[], None], shared: bool = False) -> None:
        if loop != self.order.vector:
            super().loop(loop, body, shared)
            return
        name = self.kernel.loops[loop].name
        with self.block(f"for (int64_t {name} = column, end = column + out_channels; {name} < end; {name} += LANES)"):
            self.line(f"const int n = end - {name} < LANES ? end - {name} : LANES;")
            self._with_lanes("n", body)


class LoopsInRegisters(FollowingLoops):
    """The same for sums that are in registers yet: a statement for each. Positions behind the last are this one."""

    def __init__(
        self,
        kernel: Kernel,
        order: LoopOrder,
        pointers: Mapping[str, str],
        buffers: Mapping[str, Buffer],
        tile: tuple[range, range],
    ) -> None:
        super().__init__(kernel, order, pointers, buffers)
        self.tile, self.position, self.part = tile, 0, 0

    def loop(self, loop: int, body: Callable[[], None], shared: bool = False) -> None:
        name, (positions, vectors) = self.kernel.loops[loop].name, self.tile
        if loop == 0:
            body()
        elif loop == self.order.vector:
            for self.part in vectors:
                with self.block("", f"const int64_t {name} = column + at + {self.part} * LANES;"):
                    body()
        else:
            for self.position in positions:
                at = self.position
                with self.block("", f"const int64_t {name} = row + ({at} < count ? {at} : count - 1);"):
                    body()

    def load(self, value: KernelValue, vector: bool) -> str:
        return f"a{self.position}_{self.part}" if value.args[0] == SUMS else super().load(value, vector)


def is_short(kernel: Kernel, sums: int) -> bool:
    """True where statements for each sum are no long text, and need no address of each position."""
    loads = [value for value in kernel.values if value.name == "load" and value.args[0] != SUMS]
    operations = [value for value in kernel.values if value.name not in ("load", "constant")]
    if any(value.name in HEAVY for value in operations) or any(value.loops & 2 for value in loads):
        return False
    return len(operations) * sums <= _MOST_STATEMENTS
