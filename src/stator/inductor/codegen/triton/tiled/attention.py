"""Prints attention as one Triton kernel: the softmax of scores over keys, times values, in steps along the keys
(T. Dao et al., FlashAttention, 2022).

A program computes rows of one batch. It keeps the largest score, the sum of powers and the weighted values of each row
so far, and scales both sums where a larger score comes. What loops make of the products of queries and keys is printed
as the epilogue of a product is. Nothing here decides which attention is worth a kernel, or on tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stator.inductor.buffers import Buffer, Loops
from stator.inductor.codegen.kernel import Kernel
from stator.inductor.codegen.triton.divisions import merge_members
from stator.inductor.codegen.triton.launch import block_count, index_type, typed_sizes
from stator.inductor.codegen.triton.modules import PrintedPart, pointer_names
from stator.inductor.codegen.triton.statements import Statements
from stator.inductor.codegen.triton.types import type_name
from stator.inductor.schedule.attention_candidates import LOOPS_OF
from stator.inductor.schedule.groups import (
    KEYS,
    OF_KEYS,
    OF_QUERIES,
    OF_SCORES,
    OF_VALUES,
    PRODUCTS,
    QUERIES,
    SCORES,
    TANGENT,
    VALUES,
    WEIGHTED,
    AttentionGroup,
    Group,
)
from stator.inductor.sizes import SizeKnowledge

from .tile_values import Lanes, TileValues

LOG2_E = "1.4426950408889634"
_KEY = 4  # the bit of the loop over keys in the kernel of scores


def print_attention(group: AttentionGroup, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge) -> PrintedPart:
    """The statements of a group. Raises CompileError for operations that Triton kernels cannot compute."""
    printer = _Printer(group, buffers, knowledge)
    printer.print()
    return printer.part()


def _block(size: int) -> int:
    """A width that tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())


class AttentionPrinter(Statements):
    """Prints what launches of attention and of its gradients have in common: loops of a program, sides, scores.

    members: loops by their kind.
    """

    def __init__(
        self,
        group: AttentionGroup,
        buffers: Mapping[str, Buffer],
        knowledge: SizeKnowledge,
        members: Mapping[str, Sequence[Loops]],
    ) -> None:
        super().__init__()
        self.attention = attention = group.attention
        self.group, self.buffers, self.knowledge = group, buffers, knowledge
        assert attention.tile is not None
        self.tile = attention.tile
        self.kernels: dict[str, Kernel] = {}
        arguments: Any = None
        for kind, loops in members.items():
            alone = Group(group.name, tuple(loops), loops[0].body.ranges, group.internal, group.reads, group.writes)
            kernel = merge_members(alone, buffers, knowledge)
            arguments = arguments or kernel.indices.arguments
            kernel.indices.arguments = arguments
            self.kernels[kind] = kernel
        self.pointers = pointer_names(group)
        self.row_tiles = block_count(self.kernels[SCORES], attention.rows, self.tile.rows)
        divides = knowledge.divides
        # masks by loop
        self.masks = {
            "x1": "" if divides(self.tile.rows, attention.rows) else "in_rows",
            "x2": "" if divides(self.tile.keys, attention.count) else "in_keys",
            "x3": "" if _block(attention.depth) == attention.depth else "in_depth",
            "x6": "" if _block(attention.width) == attention.width else "in_width",
        }
        self.masks["x4"] = "of_depth" if self.masks["x3"] else ""
        self.masks["x5"] = "of_keys" if self.masks["x2"] else ""

    def part(self) -> PrintedPart:
        """The printed statements, with what a module needs to know of them."""
        attention, tile, scores = self.attention, self.tile, self.kernels[SCORES]
        blocks = {
            "ROWS": tile.rows,
            "KEYS": tile.keys,
            "DEPTH": _block(attention.depth),
            "WIDTH": _block(attention.width),
        }
        batch = scores.text(attention.batch // attention.shared)
        grid = " * ".join([self.row_tiles, batch, *([str(tile.parts)] if tile.parts > 1 else [])])
        index = index_type(list(self.kernels.values()), ())
        text = "\n".join([*typed_sizes(scores), *self.lines])
        return PrintedPart(text, blocks, tile.warps, grid, None, index, scores.indices.arguments.names, tile.stages)

    def loop(self, name: str, lanes: str, size: Any) -> None:
        along_rows = name in ("x1", "x4", "x5")
        self.line(f"{name} = ({lanes}).to(INDEX){'[:, None]' if along_rows else '[None, :]'}")
        if self.masks[name]:
            self.line(f"{self.masks[name]} = {name} < {self.kernels[SCORES].text(size)}")

    def values(self, kind: str, sums: Mapping[str, str]) -> TileValues:
        """Of loops in which a value named in `sums` is known."""
        kernel = self.kernels[kind]
        lanes = [Lanes(loop.name, self.masks[loop.name]) for loop in LOOPS_OF[kind][1:]]
        dtypes = self.attention.dtypes
        dtype = dtypes[1] if kind == WEIGHTED else dtypes[0]
        return TileValues(self, kernel, self.pointers, sums, lanes, dtype, prefix=_PREFIXES[kind])

    def side(self, kind: str) -> str:
        """The elements of a side, with zeros behind the ends of the loop that its product adds up along."""
        values = self.values(kind, {})
        values.define(values.live)
        found = self.stored(values, kind)
        summed = self.masks[{QUERIES: "x3", KEYS: "x4", VALUES: "x5", TANGENT: "x6"}[kind]]
        if summed and not _is_load(values, kind):  # whose masked lanes are zero
            name = f"{_PREFIXES[kind]}_in_range"
            self.line(f"{name} = tl.where({summed}, {found}, 0.0)")
            return name
        return found

    def stored(self, values: TileValues, name: str) -> str:
        (store,) = [store for store in values.kernel.stores if store.buffer == name]
        found = values.operand(store.value)
        if name != SCORES:
            return found
        return f"tl.broadcast_to({found}.to(tl.float32), [ROWS, KEYS])"


class _Printer(AttentionPrinter):
    def __init__(self, group: AttentionGroup, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge) -> None:
        attention = group.attention
        members: dict[str, Sequence[Loops]] = {
            QUERIES: (attention.queries,),
            KEYS: (attention.keys,),
            VALUES: (attention.values,),
            SCORES: attention.scores,
            WEIGHTED: attention.epilogue,
        }
        super().__init__(group, buffers, knowledge, members)

    def print(self) -> None:
        attention = self.attention
        self.line("program = tl.program_id(0).to(INDEX)")
        place = f"program % {self.row_tiles}"
        if attention.causal:  # rows with most keys first
            place = f"{self.row_tiles} - 1 - {place}"
        self.line(f"row = {place}")
        if self.tile.parts > 1:
            self.line(f"part = program // {self.row_tiles} % {self.tile.parts}")
            self.line(f"x0 = program // {self.row_tiles} // {self.tile.parts}")
        else:
            self.line(f"x0 = program // {self.row_tiles}")
        self.loop("x1", "row * ROWS + tl.arange(0, ROWS)", attention.rows)
        self.loop("x3", "tl.arange(0, DEPTH)", attention.depth)
        self.loop("x4", "tl.arange(0, DEPTH)", attention.depth)
        self.loop("x6", "tl.arange(0, WIDTH)", attention.width)
        queries = self.side(QUERIES)
        scores = self.values(SCORES, {PRODUCTS: "products"})
        per_row = [at for at in scores.live if not scores.kernel.values[at].loops & _KEY]
        scores.define(per_row)
        self.line('largest = tl.full([ROWS, 1], float("-inf"), tl.float32)')
        self.line("total = tl.zeros([ROWS, 1], tl.float32)")
        self.line("weighted = tl.zeros([ROWS, WIDTH], tl.float32)")
        self.line(f"for start in range({self._keys()}, KEYS):")
        with self.indented():
            self.loop("x2", "start + tl.arange(0, KEYS)", attention.count)
            self.loop("x5", "start + tl.arange(0, KEYS)", attention.count)
            self.line(f"products = tl.dot({queries}, {self.side(KEYS)}{precision(attention.dtypes[0])})")
            scores.define([at for at in scores.live if scores.kernel.values[at].loops & _KEY])
            self._step(self.stored(scores, SCORES))
        if attention.statistics:
            self._store_statistics()
        else:
            if attention.hidden_rows_are_zero:
                self.line("total = tl.where(total == 0.0, 1.0, total)")
            self.line("weighted = weighted / total")
        self.values(WEIGHTED, {WEIGHTED: "weighted"}).print()

    def _keys(self) -> str:
        """The first key that a row of the program sees, and the one behind the last."""
        count = self.kernels[SCORES].text(self.attention.count)
        if self.tile.parts > 1:
            self.line(f"keys_of_part = ({count} + {self.tile.parts} * KEYS - 1) // ({self.tile.parts} * KEYS) * KEYS")
            return f"part * keys_of_part, tl.minimum(part * keys_of_part + keys_of_part, {count})"
        return f"0, tl.minimum(row * ROWS + ROWS, {count})" if self.attention.causal else f"0, {count}"

    def _store_statistics(self) -> None:
        self.line(f"x0 = program // {self.row_tiles}")
        mask = f", {self.masks['x1']}" if self.masks["x1"] else ""
        for buffer, value in zip(self.attention.statistics, ("largest", "total"), strict=True):
            place = f"{self.pointers[buffer]} + x0 * {self.kernels[SCORES].text(self.attention.rows)} + x1"
            self.line(f"tl.store({place}, {value}{mask})")

    def _step(self, score: str) -> None:
        """Rows without a score above minus infinity so far keep sums of zero; an infinite score makes its row NaN.
        Distances come before the change of base: a mask of the smallest number would overflow in it."""
        self.line(f"score = {score}")
        if self.masks["x2"]:
            self.line('score = tl.where(in_keys, score, float("-inf"))')
        self.line("before = largest")
        self.line("largest = tl.maximum(before, tl.max(score, 1)[:, None])")
        self.line('shift = tl.where(largest == float("-inf"), 0.0, largest)')
        self.line(f"power = tl.exp2((score - shift) * {LOG2_E})")
        self.line(f"factor = tl.exp2((before - shift) * {LOG2_E})")
        self.line("total = total * factor + tl.sum(power, 1)[:, None]")
        self.line("weighted = weighted * factor")
        values = self.side(VALUES)
        dtype = self.attention.dtypes[1]
        self.line(f"weighted = tl.dot(power.to({type_name(dtype)}), {values}, weighted{precision(dtype)})")


_PREFIXES = {
    **{QUERIES: "q", KEYS: "k", VALUES: "v", SCORES: "t", WEIGHTED: "e", TANGENT: "g"},
    **{OF_QUERIES: "eq", OF_KEYS: "ek", OF_VALUES: "ev", OF_SCORES: "es"},
}


def precision(dtype: torch.dtype) -> str:
    """Products of float32 as sums of three products of its halves in TF32, which tensor cores compute: as exact as
    float32, whether TF32 is allowed or not, because no guard tells when that changes."""
    return ', input_precision="tf32x3"' if dtype is torch.float32 else ""


def _is_load(values: TileValues, kind: str) -> bool:
    (store,) = [store for store in values.kernel.stores if store.buffer == kind]
    return values.kernel.values[store.value].name == "load"
