"""Prints the gradients of attention as one Triton kernel, where all rows and keys of a head fit into a tile. A program
computes the scores and weights of its head anew. Nothing here decides which attention is worth it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stator.inductor.buffers import Buffer, Loops
from stator.inductor.codegen.triton.modules import PrintedPart
from stator.inductor.codegen.triton.types import type_name
from stator.inductor.schedule.accesses import summarize
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
    AttentionGroup,
)
from stator.inductor.sizes import SizeKnowledge

from .attention import LOG2_E, AttentionPrinter, precision


def print_attention_gradients(
    group: AttentionGroup, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge
) -> PrintedPart:
    """The statements of a group. Raises CompileError for operations that Triton kernels cannot compute."""
    printer = _Printer(group, buffers, knowledge)
    printer.print()
    return printer.part()


class _Printer(AttentionPrinter):
    def __init__(self, group: AttentionGroup, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge) -> None:
        attention = group.attention
        assert attention.tangent is not None
        members: dict[str, Sequence[Loops]] = {
            QUERIES: (attention.queries,),
            KEYS: (attention.keys,),
            VALUES: (attention.values,),
            TANGENT: (attention.tangent,),
            SCORES: attention.scores,
        }
        for loops in attention.epilogue:
            (kind,) = summarize(loops).reads
            members[kind] = (loops,)
        super().__init__(group, buffers, knowledge, members)

    def print(self) -> None:
        """Heads that share keys are computed one after the other; their gradients of keys and values are added up."""
        attention = self.attention
        for name, block, size in (
            ("x1", "ROWS", attention.rows),
            ("x2", "KEYS", attention.count),
            ("x3", "DEPTH", attention.depth),
            ("x4", "DEPTH", attention.depth),
            ("x5", "KEYS", attention.count),
            ("x6", "WIDTH", attention.width),
        ):
            self.loop(name, f"tl.arange(0, {block})", size)
        if attention.shared == 1:
            self.line("x0 = tl.program_id(0).to(INDEX)")
            self._head()
        else:
            self.line("value_sums = tl.zeros([KEYS, WIDTH], tl.float32)")
            self.line("key_sums = tl.zeros([DEPTH, KEYS], tl.float32)")
            self.line(f"for member in range({attention.shared}):")
            with self.indented():
                self.line(f"x0 = tl.program_id(0).to(INDEX) * {attention.shared} + member")
                self._head()
            self.line(f"x0 = tl.program_id(0).to(INDEX) * {attention.shared}")
        for kind, name in ((OF_VALUES, "value_sums"), (OF_KEYS, "key_sums")):
            if kind in self.kernels:
                self.values(kind, {kind: name}).print()

    def _head(self) -> None:
        """Adds up gradients of keys and values; stores the others."""
        attention = self.attention
        queries, keys, values, tangent = [self.side(kind) for kind in (QUERIES, KEYS, VALUES, TANGENT)]
        self._weights(queries, keys)
        dtype = type_name(attention.dtypes[0])
        self._product("of_weights", tangent, f"tl.trans({values})")
        self.line("of_scores = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None])")
        self.line(f"rounded_weights = weights.to({dtype})")
        self.line(f"rounded_of_scores = of_scores.to({dtype})")
        added = attention.shared > 1
        if OF_VALUES in self.kernels:
            self._product("value_sums", "tl.trans(rounded_weights)", tangent, added)
        if OF_KEYS in self.kernels:
            self._product("key_sums", f"tl.trans({queries})", "rounded_of_scores", added)
        if OF_QUERIES in self.kernels:
            self._product("query_sums", "rounded_of_scores", f"tl.trans({keys})")
            self.values(OF_QUERIES, {OF_QUERIES: "query_sums"}).print()
        if OF_SCORES in self.kernels:
            self.values(OF_SCORES, {OF_SCORES: "of_scores"}).print()

    def _weights(self, queries: str, keys: str) -> None:
        """Zeros or NaN in rows that see no key. Rows behind the end have no weights: sums along rows leave them out."""
        self._product("products", queries, keys)
        scores = self.values(SCORES, {PRODUCTS: "products"})
        scores.define(scores.live)
        self.line(f"score = {self.stored(scores, SCORES)}")
        if self.masks["x2"]:
            self.line('score = tl.where(in_keys, score, float("-inf"))')
        self.line("largest = tl.max(score, 1)[:, None]")
        self.line('shift = tl.where(largest == float("-inf"), 0.0, largest)')
        self.line(f"power = tl.exp2((score - shift) * {LOG2_E})")
        self.line("total = tl.sum(power, 1)[:, None]")
        if self.attention.hidden_rows_are_zero:
            self.line("total = tl.where(total == 0.0, 1.0, total)")
        self.line("weights = power / total")
        if self.masks["x1"]:
            self.line("weights = tl.where(in_rows, weights, 0.0)")

    def _product(self, name: str, left: str, right: str, added: bool = False) -> None:
        total = f", {name}" if added else ""
        self.line(f"{name} = tl.dot({left}, {right}{total}{precision(self.attention.dtypes[0])})")
