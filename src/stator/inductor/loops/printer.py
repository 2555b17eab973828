"""Prints loop bodies for people. Nothing parses this text; codegen has its own printers."""

from __future__ import annotations

import torch

from .body import IndexRef, LoopBody, Op, Ref


def print_body(body: LoopBody, indent: str = "") -> str:
    """Print loops as `for` lines and operations as `%n:dtype = name(...)`; reduction epilogues are outdented."""
    lines = []
    depth = indent
    for symbol, size in zip(body.vars, body.ranges, strict=True):
        lines.append(f"{depth}for {symbol} in range({size}):")
        depth += "  "
    outer = depth
    for symbol, size in zip(body.reduction_vars, body.reduction_ranges, strict=True):
        lines.append(f"{depth}for {symbol} in range({size}):  # reduced")
        depth += "  "
    late = after_reduction(body)
    for position, op in enumerate(body.ops):
        lines.append((outer if position in late else depth) + _line(body, position, op))
    return "\n".join(lines)


def after_reduction(body: LoopBody) -> frozenset[int]:
    """Positions of the operations that run once per outer iteration, because they need a reduction's result.

    A pointwise body has none. An operation that does not depend on the reduction loops may run on either side of them.
    """
    late: set[int] = set()
    symbols: set[str] = set()
    for position, op in enumerate(body.ops):
        depends = False
        for arg in op.args:
            if isinstance(arg, Ref) and arg.position < position:
                source = body.ops[arg.position]
                depends |= arg.position in late or source.name in ("reduce", "welford")
            elif isinstance(arg, IndexRef) and symbols:
                depends |= any(symbol.name in symbols for symbol in body.indices[arg.position].symbols)
        if depends:
            late.add(position)
            if op.name == "indirect":
                symbols.add(f"indirect{position}")
    return frozenset(late)


def _line(body: LoopBody, position: int, op: Op) -> str:
    args = ", ".join(_argument(body, arg) for arg in op.args)
    if op.name == "store":
        return f"store({args})"
    return f"%{position}:{dtype_name(op.dtype)} = {op.name}({args})"


def _argument(body: LoopBody, arg: object) -> str:
    if isinstance(arg, Ref):
        return f"%{arg.position}"
    if isinstance(arg, IndexRef):
        return f"[{body.indices[arg.position]}]"
    return dtype_name(arg) if isinstance(arg, torch.dtype) else str(arg)


def dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
