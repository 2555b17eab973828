"""Prints one operation of the vocabulary, or an index expression, as Triton text: a handler per operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import torch

from stator.base.errors import CompileError
from stator.base.registry import Registry
from stator.inductor.codegen.index_printer import IndexPrinter
from stator.inductor.codegen.kernel import KernelValue
from stator.shapes.expr import Expr, ExprLike, FloorDiv, Mod
from stator.shapes.extrema import Max, Min

from .types import literal, type_name


class TritonIndexPrinter(IndexPrinter):
    """Blocks and scalars of INDEX, the kernel's type of indices."""

    divisions: ClassVar = {FloorDiv: "//", Mod: "%"}
    functions: ClassVar = {FloorDiv: "floor_div", Mod: "floor_mod", Min: "tl.minimum", Max: "tl.maximum"}


class TritonContext(Protocol):
    """The kernel around an expression: prints operands, loads and indices."""

    def operand(self, position: int) -> str: ...
    def dtype(self, position: int) -> torch.dtype: ...
    def index(self, index: Expr) -> str: ...
    def size(self, size: ExprLike) -> str: ...
    def load(self, value: KernelValue) -> str: ...


Handler = Callable[[TritonContext, KernelValue], str]
PRINTERS: Registry[str, Handler] = Registry("operation of the loop vocabulary")


def print_value(context: TritonContext, value: KernelValue) -> str:
    handler = PRINTERS.get(value.name)
    if handler is None:
        raise CompileError("inductor", f"generated Triton kernels cannot compute {value.name!r} yet")
    return handler(context, value)


# Operations with one text for every dtype that they accept
_PLAIN = {
    **{"neg": "-{0}", "abs": "tl.abs({0})", "sign": "sign({0})", "logical_not": "({0} == 0)"},
    **{"sub": "{0} - {1}", "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "({0} < {1})", "le": "({0} <= {1})"},
    **{"gt": "({0} > {1})", "ge": "({0} >= {1})", "where": "tl.where({0}, {1}, {2})", "isnan": "({0} != {0})"},
    "fma": "tl.fma({0}, {1}, {2})",
    **{"isinf": '(tl.abs({0}) == float("inf"))', "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})"},
    **{"log2": "tl.log2({0})", "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "sigmoid": "tl.sigmoid({0})"},
    **{"trunc": "libdevice.trunc({0})", "round": "libdevice.rint({0})"},
    # tl.maximum's treatment of NaN has changed between versions, so the text spells it out
    "fmax": "tl.where(({0} != {0}) | ({0} < {1}), {1}, {0})",
    "fmin": "tl.where(({0} != {0}) | ({0} > {1}), {1}, {0})",
    **{"rsqrt": "libdevice.rsqrt({0})", "approximate_div": "{0} / {1}", "approximate_reciprocal": "1.0 / {0}"},
    **{"bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})"},
    **{"lshift": "({0} << {1})", "rshift": "({0} >> {1})", "floor_div": "floor_div({0}, {1})"},
    "trunc_div": "({0} // {1})",
}

# Operations under equal names in the device library, for float32 and float64
_LIBRARY = (
    *("expm1", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh"),
    *("atanh", "erfc", "lgamma", "atan2", "hypot", "copysign", "nextafter"),
)

# dtype class ("f" float, "i" integer, "b" bool) -> text, for operations that differ between the classes
_BY_KIND = {
    "add": {"f": "{0} + {1}", "i": "{0} + {1}", "b": "({0} | {1})"},
    "mul": {"f": "{0} * {1}", "i": "{0} * {1}", "b": "({0} & {1})"},
    "maximum": {
        "f": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        "i": "tl.maximum({0}, {1})",
        "b": "({0} | {1})",
    },
    "minimum": {
        "f": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        "i": "tl.minimum({0}, {1})",
        "b": "({0} & {1})",
    },
    "mod": {"f": "float_mod({0}, {1})", "i": "floor_mod({0}, {1})"},
    "fmod": {"f": "libdevice.fmod({0}, {1})", "i": "({0} % {1})"},
    "pow": {"f": "libdevice.pow({0}, {1})", "i": "int_pow({0}, {1})"},
    "bitwise_not": {"i": "(~{0})", "b": "({0} == 0)"},
}

# Operations with another text for float32: Triton's own divisions and roots are only approximate there; these functions
# round correctly
_FLOAT32 = {
    "div": ("tl.div_rn({0}, {1})", "{0} / {1}"),
    "sqrt": ("tl.sqrt_rn({0})", "tl.sqrt({0})"),
    "reciprocal": ("tl.div_rn({one}, {0})", "{one} / {0}"),
    "erf": ("error_function({0})", "tl.erf({0})"),
    "tanh": ("hyperbolic_tangent({0})", "libdevice.tanh({0})"),
}


def _arguments(context: TritonContext, value: KernelValue) -> list[str]:
    return [context.operand(argument.position) for argument in value.args]


def _kind(dtype: torch.dtype) -> str:
    return "b" if dtype is torch.bool else "f" if dtype.is_floating_point else "i"


def _plain(context: TritonContext, value: KernelValue) -> str:
    return _PLAIN[value.name].format(*_arguments(context, value))


def _library(context: TritonContext, value: KernelValue) -> str:
    return f"libdevice.{value.name}({', '.join(_arguments(context, value))})"


def _by_kind(context: TritonContext, value: KernelValue) -> str:
    text = _BY_KIND[value.name].get(_kind(context.dtype(value.args[0].position)))
    if text is None:
        raise CompileError("inductor", f"generated Triton kernels cannot compute {value.name} of {value.dtype} yet")
    return text.format(*_arguments(context, value))


def _by_width(context: TritonContext, value: KernelValue) -> str:
    single, other = _FLOAT32[value.name]
    text = single if value.dtype is torch.float32 else other
    return text.format(*_arguments(context, value), one=literal(1, value.dtype))


for _names, _handler in ((_PLAIN, _plain), (_LIBRARY, _library), (_BY_KIND, _by_kind), (_FLOAT32, _by_width)):
    for _name in _names:
        PRINTERS.add(_name, _handler)


@PRINTERS.register("random")
def _random(context: TritonContext, value: KernelValue) -> str:
    seed, stream, draw, index = value.args
    position = f"tl.full([], {index}, tl.int64)" if not index.symbols else f"({context.index(index)})"
    return f"random_bits({context.operand(seed.position)}, {context.operand(stream.position)}, {position}, {draw})"


@PRINTERS.register("normal")
def _normal(context: TritonContext, value: KernelValue) -> str:
    name = "normal_double" if value.dtype is torch.float64 else "normal_single"
    return f"{name}({context.operand(value.args[0].position)})"


@PRINTERS.register("to_dtype")
def _to_dtype(context: TritonContext, value: KernelValue) -> str:
    source = value.args[0].position
    text = context.operand(source)
    if value.dtype is torch.bool and context.dtype(source) is not torch.bool:
        return f"({text} != 0)"
    return f"{text}.to({type_name(value.dtype)})"


@PRINTERS.register("indirect")
def _indirect(context: TritonContext, value: KernelValue) -> str:
    source, size, _, wraps = value.args  # a statement of its own makes the check
    text = context.operand(source.position)
    if context.dtype(source.position) is not torch.int64:  # the size may not fit in a narrow type
        text = f"{text}.to(INDEX)"
    return f"wrap_index({text}, {context.size(size)})" if wraps else text


PRINTERS.add_all(
    {
        "load": lambda context, value: context.load(value),
        "constant": lambda context, value: literal(value.args[0], value.dtype),
        "index_value": lambda context, value: f"({context.index(value.args[0])}).to({type_name(value.dtype)})",
        "bitcast": lambda context, value: (
            f"{context.operand(value.args[0].position)}.to({type_name(value.dtype)}, bitcast=True)"
        ),
    }
)
