"""Prints the values and stores of loops for the elements of a tile of a product: of a batch, of the rows and of the
columns at hand. Nothing here knows what the tile's elements are sums of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from stator.inductor.codegen.kernel import Kernel, KernelValue, Store
from stator.inductor.codegen.triton.expressions import print_value
from stator.inductor.codegen.triton.statements import Statements
from stator.inductor.codegen.triton.types import literal, number
from stator.shapes.expr import Expr, ExprLike


@dataclass(frozen=True, slots=True)
class Lanes:
    """The elements of a tile along rows or columns: the names of the loop, and of the mask of its lanes, if any."""

    loop: str
    mask: str = ""


class TileValues:
    """Prints operands for the handlers of operations. The kernel's loops are (batch, rows, columns).

    sums: by the name that loops load, the text of the tile's elements, sums of products in float32. lanes: of rows and
    columns. dtype: of products, rounded. prefix: of the names of values.
    """

    def __init__(
        self,
        statements: Statements,
        kernel: Kernel,
        pointers: Mapping[str, str],
        sums: Mapping[str, str],
        lanes: Sequence[Lanes],
        dtype: torch.dtype,
        prefix: str = "t",
    ) -> None:
        self.line, self.kernel, self.pointers = statements.line, kernel, pointers
        self.sums, self.dtype_of_products, self.prefix = sums, dtype, prefix
        self.lanes = {2: lanes[0], 4: lanes[1]}  # by the bit of the loop
        self.live = kernel.live_values()

    def print(self) -> None:
        """All values and stores."""
        pending = sorted(self.kernel.stores, key=lambda store: store.at)
        for position in self.live:
            while pending and pending[0].at <= position:
                self._store(pending.pop(0))
            self._define(position)
        for store in pending:
            self._store(store)

    def define(self, positions: Iterable[int]) -> None:
        """These of the live values, in order."""
        for position in positions:
            self._define(position)

    def _define(self, position: int) -> None:
        value = self.kernel.values[position]
        if value.name == "indirect":
            self._define_indirect(position, value)
        elif value.name != "constant":
            self.line(f"{self.operand(position)} = {self._value(position)}")

    def _define_indirect(self, position: int, value: KernelValue) -> None:
        name, size = f"indirect{position}", self.size(value.args[1])
        self.line(f"{name} = {print_value(self, value)}")
        if value.args[2]:
            valid, mask = f"(0 <= {name}) & ({name} < {size})", self._mask(value.loops)
            valid = f"({valid}) | ~({mask})" if mask else valid
            self.line(f'tl.device_assert({valid}, "index out of bounds for dimension with size {size}")')

    def _value(self, position: int) -> str:
        unrounded = self._unrounded(position)
        return print_value(self, self.kernel.values[position]) if unrounded is None else self.operand(unrounded)

    def _unrounded(self, position: int) -> int | None:
        """The sums in float32, with a bias, where a value is what a product was rounded to, in float32 again."""
        values = self.kernel.values
        value = values[position]
        if value.name != "to_dtype" or value.dtype is not torch.float32:
            return None
        rounded = values[value.args[0].position]
        if rounded.name != "to_dtype" or rounded.dtype is not self.dtype_of_products:
            return None
        source = rounded.args[0].position
        parts = [source, *self.kernel.operands(values[source].args)] if values[source].name == "add" else [source]
        sums = any(values[at].name == "load" and values[at].args[0] in self.sums for at in parts)
        return source if sums and values[source].dtype is torch.float32 else None

    # --- what handlers of operations ask ---

    def operand(self, position: int) -> str:
        value = self.kernel.values[position]
        return literal(value.args[0], value.dtype) if value.name == "constant" else f"{self.prefix}{position}"

    def dtype(self, position: int) -> torch.dtype:
        return self.kernel.values[position].dtype

    def index(self, index: Expr) -> str:
        return self.kernel.indices.index(index)

    def size(self, size: ExprLike) -> str:
        return self.kernel.text(size)

    def load(self, value: KernelValue) -> str:
        buffer, index, condition, other = value.args
        if buffer in self.sums:
            return self.sums[buffer]
        mask, address = self._mask(value.loops), f"{self.pointers[buffer]} + {self.index(index)}"
        if condition is None:
            return f"tl.load({address}, {mask}, other=0)" if mask else f"tl.load({address})"
        mask = " & ".join([self.operand(condition.position), *([mask] if mask else [])])
        address += self._zeros(value.loops & ~self.kernel.loops_of(index))
        return f"tl.load({address}, {mask}, other={number(other, value.dtype)})"

    def _mask(self, loops: int) -> str:
        return " & ".join([lanes.mask for bit, lanes in self.lanes.items() if lanes.mask and loops & bit])

    def _zeros(self, loops: int) -> str:
        """Text that gives an address the lanes of these loops without moving it."""
        return "".join([f" + {lanes.loop} * 0" for bit, lanes in self.lanes.items() if loops & bit])

    def _store(self, store: Store) -> None:
        """A store has a lane for each element of the tile, also along loops of one iteration."""
        every = sum(self.lanes)
        lanes = self._zeros(every & ~self.kernel.loops_of(store.index))
        address = f"{self.pointers[store.buffer]} + {self.index(store.index)}{lanes}"
        mask = self._mask(every)
        self.line(f"tl.store({address}, {self.operand(store.value)}{', ' + mask if mask else ''})")
