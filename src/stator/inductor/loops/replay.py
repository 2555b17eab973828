"""Records the operations of a frozen body once more, over other loops. Decides nothing."""

from __future__ import annotations

from typing import Any

from stator.shapes.expr import Expr, ExprLike, Symbol

from .body import IndexRef, LoopBody, Ref

_METHODS = ["constant", "index_value", "to_dtype", "bitcast", "indirect", "step", "total", "random", "normal"]


class Replay:
    """Records operations of a body again, with other expressions for loops, and given values for reductions."""

    def __init__(self, ops: Any, body: LoopBody, where: dict[Symbol, ExprLike], given: dict[int, Any]) -> None:
        self.ops, self.body, self.where = ops, body, where
        self.known: dict[int, Any] = given
        self.indirect = {Symbol(f"indirect{at}"): at for at, op in enumerate(body.ops) if op.name == "indirect"}

    def value(self, position: int) -> Any:
        if position not in self.known:
            self.known[position] = self._compute(position)
        return self.known[position]

    def index(self, reference: Any) -> Expr:
        index = self.body.indices[reference.position]
        symbols: dict[Symbol, ExprLike] = {s: self.value(at) for s, at in self.indirect.items() if s in index.symbols}
        return index.substitute(self.where | symbols)

    def store(self, op: Any) -> None:
        buffer, index, value, mode, mask = op.args
        kept = None if mask is None else self.value(mask.position)
        self.ops.store(buffer, self.index(index), self.value(value.position), mode, kept)

    def _compute(self, position: int) -> Any:
        ops, op = self.ops, self.body.ops[position]
        args: list[Any] = [
            self.value(arg.position) if isinstance(arg, Ref) else self.index(arg) if isinstance(arg, IndexRef) else arg
            for arg in op.args
        ]
        if op.name == "load":
            buffer, index, mask, other = args
            if mask is None:
                return ops.load(buffer, index)
            return ops.masked(mask, lambda: ops.load(buffer, index, other), other, op.dtype)
        if op.name == "get":
            return args[0][args[1]]
        if op.name in _METHODS:
            return getattr(ops, op.name)(*args)
        return ops.elementwise(op.name, *args)
