"""Prints one operation of the vocabulary as a C++ expression: a handler per operation, for scalars and vectors alike.

Expressions call the functions of vec.h and vec_math.h, overloaded for both. No statement or loop is printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from stator.base.errors import CompileError
from stator.base.registry import Registry
from stator.inductor.codegen.kernel import Kernel, KernelValue
from stator.inductor.loops.float8 import is_float8
from stator.inductor.loops.vocabulary import ELEMENTWISE
from stator.shapes.expr import Expr, ExprLike, Symbol

from .column_plan import ColumnPlan
from .phases import PhasePlan
from .types import KIND, NARROW, literal
from .vectorize import LoopOrder


class EmitterContext(Protocol):
    """lanes: the number of valid lanes. bounds: a loop restricted to a part. slot, width, prefixes: the names of the
    current accumulators. narrows: False where the store of the value narrows it."""

    kernel: Kernel
    order: LoopOrder
    plan: PhasePlan
    columns: ColumnPlan | None
    scans_columns: bool
    lanes: str
    lane_symbol: Symbol | None
    narrows: bool
    bounds: tuple[int, str, str] | None
    part_depth: int | None
    prefixes: Mapping[int, str]
    slot: str
    width: int

    def line(self, text: str) -> None: ...
    def block(self, head: str, *first: str) -> AbstractContextManager[None]: ...
    def loop(self, loop: int, body: Callable[[], None]) -> None: ...
    def at(self, buffer: str, index: Expr) -> str: ...
    def size_text(self, size: ExprLike) -> str: ...
    def operand(self, position: int, vector: bool) -> str: ...
    def dtype(self, position: int) -> torch.dtype: ...
    def load(self, value: KernelValue, vector: bool) -> str: ...
    def random(self, value: KernelValue, vector: bool) -> str: ...
    def index_number(self, index: Expr, vector: bool) -> str: ...
    def is_tiled(self, value: KernelValue) -> bool: ...
    def is_vector(self, position: int) -> bool: ...
    def wide(self, position: int) -> bool: ...
    def lanes_reduced(self) -> bool: ...
    def combining(self, kind: str) -> str: ...
    def position_register(self, position: int) -> str: ...


Handler = Callable[[EmitterContext, KernelValue, bool], str]
PRINTERS: Registry[str, Handler] = Registry("operation of the loop vocabulary")

# Results of these are operands, or need no more bits than the operands: floats stay values of their dtype
_EXACT_NAMES = "abs neg maximum minimum fmax fmin relu sign floor ceil trunc round copysign"
_EXACT = frozenset(_EXACT_NAMES.split())
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def print_value(context: EmitterContext, value: KernelValue, vector: bool) -> str:
    handler = PRINTERS.get(value.name)
    if handler is None:
        raise CompileError("inductor", f"generated C++ kernels cannot compute {value.name!r} yet")
    return handler(context, value, vector)


def _elementwise(context: EmitterContext, value: KernelValue, vector: bool) -> str:
    args = [context.operand(arg.position, vector) for arg in value.args]
    kind = KIND[value.dtype]
    if value.name in _INFIX and kind in ("f32", "f64"):
        text = f"{args[0]} {_INFIX[value.name]} {args[1]}"
    else:
        text = f"op_{value.name}({', '.join(args)})"
    exact = value.name in _EXACT and kind == "f32"
    return text if exact else _narrowed(context, text, value.dtype)


def _narrowed(context: EmitterContext, text: str, dtype: torch.dtype) -> str:
    narrow = NARROW.get(dtype)
    return f"{narrow}({text})" if narrow and context.narrows else text


for _name in ELEMENTWISE - {"where"}:
    PRINTERS.add(_name, _elementwise)


@PRINTERS.register("where")
def _where(context: EmitterContext, value: KernelValue, vector: bool) -> str:
    condition, chosen, other = (context.operand(arg.position, vector) for arg in value.args)
    return f"select({condition}, {chosen}, {other})"


@PRINTERS.register("to_dtype")
def _to_dtype(context: EmitterContext, value: KernelValue, vector: bool) -> str:
    source = value.args[0].position
    return _converted(context, context.operand(source, vector), context.dtype(source), value.dtype)


def _converted(context: EmitterContext, text: str, source: torch.dtype, target: torch.dtype) -> str:
    if source is target:
        return text
    if KIND[source] != KIND[target]:
        text = f"convert_{KIND[target]}({text})"
    return _narrowed(context, text, target)


_BITCASTS = {
    (torch.float32, torch.int32),
    (torch.int32, torch.float32),
    (torch.float64, torch.int64),
    (torch.int64, torch.float64),
}


@PRINTERS.register("bitcast")
def _bitcast(context: EmitterContext, value: KernelValue, vector: bool) -> str:
    source: Any = context.dtype(value.args[0].position)
    if is_float8(source) or is_float8(value.dtype):  # the byte
        return context.operand(value.args[0].position, vector)
    if (source, value.dtype) not in _BITCASTS:
        raise CompileError("inductor", f"generated C++ kernels cannot reinterpret {source} as {value.dtype} yet")
    return f"bitcast_{KIND[value.dtype]}({context.operand(value.args[0].position, vector)})"


@PRINTERS.register("indirect")
def _indirect(context: EmitterContext, value: KernelValue, vector: bool) -> str:
    source, size, check, wraps = value.args
    size = context.size_text(size)
    text = context.operand(source.position, vector)
    if context.dtype(source.position) is not torch.int64:
        text = f"convert_i64({text})"
    if not check:
        return f"wrap_index({text}, {size})" if wraps else text
    function = "check_index" if wraps else "check_position"
    return f"{function}({text}, {size}, error{f', {context.lanes}' if vector else ''})"


PRINTERS.add_all(
    {
        "load": lambda context, value, vector: context.load(value, vector),
        "random": lambda context, value, vector: context.random(value, vector),
        "normal": lambda context, value, vector: f"op_normal({context.operand(value.args[0].position, vector)})",
        "constant": lambda context, value, vector: literal(value.args[0], value.dtype),
        "index_value": lambda context, value, vector: _converted(
            context, context.index_number(value.args[0], vector), torch.int64, value.dtype
        ),
    }
)
