"""Checks the rules of `Lowered`. Raises VerificationError; never repairs."""

from __future__ import annotations

from typing import Any

from stator.base.errors import VerificationError
from stator.inductor.buffers import Extern, Layout, Loops, Lowered, View
from stator.inductor.loops.verifier import verify_body
from stator.prims.layout import extent
from stator.shapes.expr import Expr, Symbol
from stator.shapes.simplify import add_loop, lies_below

from .printer import print_lowered


def verify_lowered(lowered: Lowered) -> None:
    """Every buffer exists and is filled before it is read, and no index or view reaches outside of it."""
    _Check(lowered).run()


class _Check:
    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.bound = set(lowered.size_bindings)  # symbols of which the running program knows the values
        self.filled = {name for name, buffer in lowered.buffers.items() if buffer.kind in ("input", "constant")}

    def run(self) -> None:
        for node in self.lowered.nodes:
            if isinstance(node, Loops):
                self.loops(node)
            else:
                self.extern(node)
            for name in node.outputs:
                if name is not None:
                    self.known(name, node)
                    self.filled.add(name)
        self.arguments(self.lowered.outputs, "the outputs")

    def loops(self, node: Loops) -> None:
        verify_body(node.body, lambda name: self.known(name, node).dtype, self.bound)
        body = node.body
        ranges = self.lowered.sizes.ranges((*body.vars, *body.reduction_vars), (*body.ranges, *body.reduction_ranges))
        empty = 0 in body.ranges or 0 in body.reduction_ranges
        for at, op in enumerate(body.ops):
            if op.name == "indirect":
                add_loop(ranges, Symbol(f"indirect{at}"), op.args[1])  # type: ignore[arg-type]
            if op.name == "load" and op.args[0] not in self.filled and op.args[0] not in node.outputs:
                self.fail(node, f"reads {op.args[0]}, which nothing has filled")
            if op.name == "store" and op.args[0] not in node.outputs:
                self.fail(node, f"stores to {op.args[0]}, which is not among its outputs")
            masked = op.name in ("load", "store") and op.args[2 if op.name == "load" else 4] is not None
            if op.name in ("load", "store") and not masked and not empty:
                index = body.indices[op.args[1].position]  # type: ignore[union-attr]
                base = self.known(op.args[0], node)  # type: ignore[arg-type]
                size = extent(base.size, base.stride)
                if self.escapes(index, size, node, ranges):
                    low, high = index.bounds(ranges)
                    self.fail(node, f"%{at} reaches {low}..{high} of {op.args[0]}, which has {size} elements")

    def escapes(self, index: Expr, size: Any, node: Loops, ranges: dict[Symbol, Any]) -> bool:
        """True if an index surely leaves the buffer. What is open for symbolic sizes is tried in the example, but not
        for sizes that depend on data."""
        if lies_below(index, size, ranges):
            return False
        sizes, body = self.lowered.sizes, node.body
        if sizes.environment is None:
            return True
        if any(sizes.is_unknown(one) for one in (index, size, *body.ranges, *body.reduction_ranges)):
            return False
        example = {symbol: sizes.hint(symbol) for symbol in sizes.environment.ranges}
        loops = zip((*body.vars, *body.reduction_vars), (*body.ranges, *body.reduction_ranges), strict=True)
        limits = {symbol: (0, max(sizes.hint(extent) - 1, 0)) for symbol, extent in loops}
        for at, op in enumerate(body.ops):
            if op.name == "indirect":
                limits[Symbol(f"indirect{at}")] = (0, max(sizes.hint(op.args[1]) - 1, 0))  # type: ignore[arg-type]
        low, high = index.substitute(example).bounds(limits)
        return low < 0 or high >= sizes.hint(size)

    def extern(self, node: Extern) -> None:
        self.bound.update(symbol for symbol, _ in node.binds)
        self.arguments(node.args, node)
        self.arguments(tuple(node.kwargs.values()), node)
        if node.style not in ("out", "returns", "mutates"):
            self.fail(node, f"unknown style {node.style!r}")
        if node.style == "out" and len(node.outputs) != 1:
            self.fail(node, "style out has exactly one output")

    def arguments(self, arguments: Any, where: Any) -> None:
        for argument in arguments:
            if isinstance(argument, list | tuple):
                self.arguments(argument, where)
            elif isinstance(argument, View):
                layout = argument.layout
                base = self.known(argument.base, where)
                self.is_filled(argument.base, where)
                sizes, whole = self.lowered.sizes, extent(base.size, base.stride)
                reaches = layout.offset + extent(layout.size, layout.stride)
                open_ = sizes.is_unknown(reaches) or sizes.is_unknown(whole)
                if 0 not in layout.size and not open_ and sizes.hint(reaches) > sizes.hint(whole):
                    self.fail(where, f"a view reaches beyond {argument.base}: {layout}")
            elif isinstance(argument, str) and argument in self.lowered.buffers:
                self.is_filled(argument, where)

    def is_filled(self, name: str, where: Any) -> None:
        if name not in self.filled:
            self.fail(where, f"reads {name}, which nothing has filled")

    def known(self, name: str, where: Any) -> Layout:
        buffer = self.lowered.buffers.get(name)
        if buffer is None:
            self.fail(where, f"names {name}, which does not exist")
            raise AssertionError
        return buffer.layout

    def fail(self, where: Any, reason: str) -> None:
        text = where if isinstance(where, str) else f"the node that fills {where.outputs}"
        raise VerificationError(f"lowered graph: {text} {reason}\n{print_lowered(self.lowered)}")
