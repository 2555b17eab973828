"""Values, masks, loads and stores of one kernel as statements; printer.py orders them in loops and phases."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer
from stator.inductor.codegen.kernel import Kernel, KernelValue, Store
from stator.inductor.loops.vocabulary import ATOMIC_STORES
from stator.shapes.expr import Expr, ExprLike

from .blocks import ALIGNED, Blocks
from .flat_loops import R, X, along_flat, start_of_row, unaligned_start
from .statements import Statements
from .types import literal, number


class KernelStatements(Statements):
    """The statements of one kernel. Values that vary with the loops of x are [XBLOCK] or [XBLOCK, 1] blocks; values
    that vary with the loops of r are [1, RBLOCK] or [XBLOCK, RBLOCK] blocks. Triton broadcasts between them. Values
    that vary with neither are scalars.
    """

    def __init__(
        self, kernel: Kernel, blocks: Blocks, pointers: Mapping[str, str], buffers: Mapping[str, Buffer]
    ) -> None:
        super().__init__()
        self.kernel, self.blocks, self.pointers, self.buffers = kernel, blocks, pointers, buffers
        self.has_inner = kernel.outer < len(kernel.loops)
        self.x_bits, self.r_bits = (sum(1 << at for at in loops) for loops in (blocks.x_loops, blocks.r_loops))
        self.row_sums = [store for store in kernel.stores if store.mode == "row_sum"]
        self.masks_x, self.masks_r = blocks.x_masked, blocks.r_masked
        self.row_start = unaligned_start(kernel, blocks)
        self.aligned = False  # r begins at an address that the widest accesses take
        self.eviction = ""  # of the elements of rows that are looped over more than once

    def dtype(self, position: int) -> torch.dtype:
        return self.kernel.values[position].dtype

    def operand(self, position: int) -> str:
        value = self.kernel.values[position]
        return literal(value.args[0], value.dtype) if value.name == "constant" else f"t{position}"

    def index(self, index: Expr) -> str:
        blocks = self.blocks
        flat = along_flat(self.kernel, index, X, blocks.x_loops, blocks.x_size)
        flat = along_flat(self.kernel, flat, R, blocks.r_loops, blocks.r_size)
        text = self.kernel.indices.index(flat)
        if self.aligned and start_of_row(self.kernel, blocks, index) is self.row_start:
            return f"tl.multiple_of({text}, (1, {ALIGNED}))"
        return text

    def size(self, size: ExprLike) -> str:
        return self.kernel.text(size)

    # --- masks ---

    def mask(self, loops: int, extra: str | None = None) -> str:
        """The mask of valid lanes for a value that varies with these loops; empty when all lanes are valid."""
        parts = [extra] if extra else []
        if loops & self.x_bits and self.masks_x:
            parts.append("xmask")
        if loops & self.r_bits and self.masks_r:
            parts.append("rmask")
        return " & ".join(parts)

    # --- memory ---

    def load(self, value: KernelValue) -> str:
        buffer, index, mask, other = value.args
        kept = None if mask is None else self.operand(mask.position)
        lanes = self.mask(value.loops, kept)
        address = f"{self.pointers[buffer]} + {self.index(index)}"
        policy = f", eviction_policy='{self.eviction}'" if self.eviction and value.loops & self.r_bits else ""
        if not lanes:
            return f"tl.load({address}{policy})"
        neutral = number(other if mask is not None else 0, value.dtype)
        if mask is not None:
            # the mask may vary with loops that the index does not
            bits = value.loops & ~self.kernel.loops_of(index)
            address = f"{address}{self._zeros(bits)}"
        return f"tl.load({address}, {lanes}, other={neutral}{policy})"

    def _zeros(self, bits: int) -> str:
        """Text that makes an address vary with these loops without moving it."""
        return (" + x * 0" if bits & self.x_bits else "") + (" + r * 0" if bits & self.r_bits else "")

    def _store(self, store: Store) -> None:
        if store.mode == "row_sum":
            value = f"tl.broadcast_to({self.operand(store.value)}, [XBLOCK, RBLOCK])"
            value = f"tl.where(xmask, {value}, 0.0)" if self.masks_x else value
            self.line(f"sum{self.row_sums.index(store)} += {value}")
            return
        address = f"{self.pointers[store.buffer]} + {self.index(store.index)}{self._all_lanes(store)}"
        extra = None if store.mask is None else self.operand(store.mask)
        lanes = self._store_mask(store, extra)
        value = self.operand(store.value)
        dtype = self.buffers[store.buffer].layout.dtype
        plain = store.mode in (None, "last")  # of values for one element, eager's kernels store any, too
        if not plain and (store.mode, dtype) not in ATOMIC_STORES:
            raise CompileError("inductor", f"Triton kernels have no atomic stores of mode {store.mode!r} to {dtype}")
        if plain:
            last = self.eviction == "evict_first" and store.loops & self.r_bits
            policy = ", eviction_policy='evict_first'" if last else ""  # results leave the cache to other rows
            self.line(f"tl.store({address}, {value}{', ' + lanes if lanes else ''}{policy})")
            return
        along_r = "RBLOCK" if self._runs_along_r(store) else "1"
        shape = f"[XBLOCK, {along_r}]" if self.blocks.r_loops else "[XBLOCK]"
        value = f"tl.broadcast_to({value}, {shape})"
        # By default, an atomic operation of Triton orders all accesses of the device around it, for which each program
        # would wait. A kernel reads nothing that it adds to.
        self.line(f"tl.atomic_{store.mode}({address}, {value}{', ' + lanes if lanes else ''}, sem='relaxed')")

    def _all_lanes(self, store: Store) -> str:
        """Give a store's address all lanes, because a store runs once per lane, also along loops it does not vary
        with."""
        loops = self.kernel.loops_of(store.index)
        text = "" if loops & self.x_bits else " + x * 0"
        return text + (" + r * 0" if self._runs_along_r(store) and not loops & self.r_bits else "")

    def _runs_along_r(self, store: Store) -> bool:
        """True if a store runs for each lane of r: in a tile, all stores do."""
        return bool(self.r_bits) and (not self.has_inner or bool(store.loops & self.r_bits))

    def _store_mask(self, store: Store, extra: str | None) -> str:
        parts = [extra] if extra else []
        if self.masks_x:
            parts.append("xmask")
        if self._runs_along_r(store) and self.masks_r:
            parts.append("rmask")
        return " & ".join(parts)
