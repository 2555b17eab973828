"""The memory accesses of a node: buffer, index expression, and the owner of the memory. No decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stator.graph.ir.size_bindings import symbols_of
from stator.inductor.buffers import Buffer, Extern, Layout, Loops, View
from stator.inductor.loops.body import IndexRef, LoopBody, Ref
from stator.inductor.loops.vocabulary import HEAVY
from stator.inductor.sizes import product
from stator.shapes.expr import Expr, ExprLike, Symbol


@dataclass(frozen=True, slots=True)
class Access:
    """`plain`: neither masked nor combined with the memory's content."""

    buffer: str
    index: Expr
    plain: bool


@dataclass(frozen=True, slots=True)
class LoopSummary:
    """A loop node's accesses and costs. `iterations`: how often its innermost operations run."""

    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    reads: frozenset[str]
    writes: frozenset[str]
    reduces: bool
    positions: bool  # has an argmax, an argmin or a scan
    iterations: ExprLike
    operations: int
    repeated: int  # operations of further steps of loops inside of an iteration
    heavy: int


def summarize(node: Loops) -> LoopSummary:
    body = node.body
    loads: dict[Access, None] = {}
    stores: dict[Access, None] = {}
    heavy, positions = 0, False
    for op in body.ops:
        if op.name == "load":
            loads[Access(op.args[0], _index(body.indices, op.args[1]), op.args[2] is None)] = None  # type: ignore[arg-type]
        elif op.name == "store":
            plain = op.args[3] is None and op.args[4] is None
            stores[Access(op.args[0], _index(body.indices, op.args[1]), plain)] = None  # type: ignore[arg-type]
        elif op.name in HEAVY:
            heavy += 1
        elif op.name == "scan" or (op.name == "reduce" and op.args[0] in ("argmax", "argmin")):
            positions = True
    return LoopSummary(
        tuple(loads),
        tuple(stores),
        frozenset([access.buffer for access in loads]),
        frozenset([access.buffer for access in stores]),
        bool(body.reduction_vars),
        positions,
        product(body.ranges) * product(body.reduction_ranges),
        len(body.ops),
        _repeated(body),
        heavy,
    )


def _repeated(body: LoopBody) -> int:
    counts: dict[int, int] = {}  # by operation of such a loop
    symbols: dict[Symbol, int] = {}
    for at, op in enumerate(body.ops):
        if op.name == "step":
            counts[at] = op.args[0]  # type: ignore[assignment]
        elif counts and op.name != "total":
            refs = [arg.position for arg in op.args if isinstance(arg, Ref)]
            for arg in op.args:
                if isinstance(arg, IndexRef):
                    refs += [symbols[one] for one in body.indices[arg.position].symbols if one in symbols]
            steps = [counts[ref] for ref in refs if ref in counts]
            if steps:
                counts[at] = steps[0]
        if op.name == "indirect":
            symbols[Symbol(f"indirect{at}")] = at
    return sum(count - 1 for count in counts.values())


def _index(indices: tuple[Expr, ...], arg: Any) -> Expr:
    assert isinstance(arg, IndexRef)
    return indices[arg.position]


def memory_owner(name: str, buffers: Mapping[str, Buffer]) -> str:
    """The buffer that owns the memory: `name` itself, or the input that it mutates in place."""
    seen = name
    while True:
        buffer = buffers[seen]
        if buffer.kind != "computed" or not isinstance(buffer.value, str):
            return seen
        seen = buffer.value


def extern_reads(extern: Extern) -> set[str]:
    return names_in((extern.args, extern.kwargs)).union(extern.mutates, extern.keeps)


def extern_writes(extern: Extern) -> set[str]:
    return {name for name in extern.outputs if name is not None} | set(extern.mutates)


def names_in(values: Iterable[Any]) -> set[str]:
    """The buffers that values name, also as views or inside of containers."""
    found: set[str] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, View):
            found.add(value.base)
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
    return found


def symbols_needed(node: Loops | Extern, buffers: Mapping[str, Buffer]) -> frozenset[Symbol]:
    """The symbols in the loops, or in the arguments and new buffers, of a node."""
    layouts = [(layout.size, layout.stride) for name in node.outputs if name for layout in (buffers[name].layout,)]
    if isinstance(node, Extern):
        views = [(one.size, one.stride, one.offset) for one in _view_layouts((node.args, node.kwargs))]
        new = layouts if node.style == "out" else []
        return symbols_of([node.args, node.kwargs, views, new])
    body = node.body
    values = [[arg for arg in op.args if isinstance(arg, Expr)] for op in body.ops]
    return symbols_of([body.ranges, body.reduction_ranges, body.indices, values, layouts])


def _view_layouts(value: Any) -> Iterable[Layout]:
    if isinstance(value, View):
        yield value.layout
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _view_layouts(item)
