"""Prints one operation of the vocabulary, or an index expression, as Triton text: a handler per operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from stator.base.errors import CompileError
from stator.base.registry import Registry
from stator.inductor.codegen.cpp.kernel import CppValue
from stator.shapes.expr import Atom, Expr, FloorDiv, Mod, Ranges, Symbol
from stator.shapes.extrema import Max, Min

from .types import literal, type_name


class TritonContext(Protocol):
    """The kernel around an expression: prints operands, loads and indices."""

    def operand(self, position: int) -> str: ...

    def dtype(self, position: int) -> torch.dtype: ...

    def index(self, index: Expr) -> str: ...

    def load(self, value: CppValue) -> str: ...


Handler = Callable[[TritonContext, CppValue], str]
PRINTERS: Registry[str, Handler] = Registry("operation of the loop vocabulary")


def print_value(context: TritonContext, value: CppValue) -> str:
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
    **{"erf": "tl.erf({0})", "trunc": "libdevice.trunc({0})", "round": "libdevice.rint({0})"},
    # tl.maximum's treatment of NaN has changed between versions, so the text spells it out
    "fmax": "tl.where(({0} != {0}) | ({0} < {1}), {1}, {0})",
    "fmin": "tl.where(({0} != {0}) | ({0} > {1}), {1}, {0})",
    "rsqrt": "libdevice.rsqrt({0})",
    **{"bitwise_and": "({0} & {1})", "bitwise_or": "({0} | {1})", "bitwise_xor": "({0} ^ {1})"},
    **{"lshift": "({0} << {1})", "rshift": "({0} >> {1})", "floor_div": "floor_div({0}, {1})"},
    "trunc_div": "({0} // {1})",
}

# Operations under equal names in the device library, for float32 and float64
_LIBRARY = (
    *("expm1", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
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
    "pow": {"f": "libdevice.pow({0}, {1})"},
    "bitwise_not": {"i": "(~{0})", "b": "({0} == 0)"},
}

# Triton's own operators are only approximate for float32; these functions round correctly
_EXACT_IN_FLOAT32 = {
    "div": ("tl.div_rn({0}, {1})", "{0} / {1}"),
    "sqrt": ("tl.sqrt_rn({0})", "tl.sqrt({0})"),
    "reciprocal": ("tl.div_rn({one}, {0})", "{one} / {0}"),
}


def _arguments(context: TritonContext, value: CppValue) -> list[str]:
    return [context.operand(argument.position) for argument in value.args]


def _kind(dtype: torch.dtype) -> str:
    return "b" if dtype is torch.bool else "f" if dtype.is_floating_point else "i"


def _plain(context: TritonContext, value: CppValue) -> str:
    return _PLAIN[value.name].format(*_arguments(context, value))


def _library(context: TritonContext, value: CppValue) -> str:
    return f"libdevice.{value.name}({', '.join(_arguments(context, value))})"


def _by_kind(context: TritonContext, value: CppValue) -> str:
    text = _BY_KIND[value.name].get(_kind(context.dtype(value.args[0].position)))
    if text is None:
        raise CompileError("inductor", f"generated Triton kernels cannot compute {value.name} of {value.dtype} yet")
    return text.format(*_arguments(context, value))


def _exact(context: TritonContext, value: CppValue) -> str:
    single, other = _EXACT_IN_FLOAT32[value.name]
    text = single if value.dtype is torch.float32 else other
    return text.format(*_arguments(context, value), one=literal(1, value.dtype))


for _names, _handler in ((_PLAIN, _plain), (_LIBRARY, _library), (_BY_KIND, _by_kind), (_EXACT_IN_FLOAT32, _exact)):
    for _name in _names:
        PRINTERS.add(_name, _handler)


@PRINTERS.register("load")
def _load(context: TritonContext, value: CppValue) -> str:
    return context.load(value)


@PRINTERS.register("random")
def _random(context: TritonContext, value: CppValue) -> str:
    seed, stream, draw, index = value.args
    position = f"tl.full([], {index}, tl.int64)" if not index.symbols else f"({context.index(index)})"
    return f"random_bits({context.operand(seed.position)}, {context.operand(stream.position)}, {position}, {draw})"


@PRINTERS.register("normal")
def _normal(context: TritonContext, value: CppValue) -> str:
    name = "normal_double" if value.dtype is torch.float64 else "normal_single"
    return f"{name}({context.operand(value.args[0].position)})"


@PRINTERS.register("constant")
def _constant(context: TritonContext, value: CppValue) -> str:
    return literal(value.args[0], value.dtype)


@PRINTERS.register("index_value")
def _index_value(context: TritonContext, value: CppValue) -> str:
    return f"({context.index(value.args[0])}).to({type_name(value.dtype)})"


@PRINTERS.register("to_dtype")
def _to_dtype(context: TritonContext, value: CppValue) -> str:
    source = value.args[0].position
    text = context.operand(source)
    if value.dtype is torch.bool and context.dtype(source) is not torch.bool:
        return f"({text} != 0)"
    return f"{text}.to({type_name(value.dtype)})"


@PRINTERS.register("bitcast")
def _bitcast(context: TritonContext, value: CppValue) -> str:
    return f"{context.operand(value.args[0].position)}.to({type_name(value.dtype)}, bitcast=True)"


@PRINTERS.register("indirect")
def _indirect(context: TritonContext, value: CppValue) -> str:
    source, size, _ = value.args  # a statement of its own makes the check
    return f"wrap_index({context.operand(source.position)}, {size})"


def print_index(expr: Expr, ranges: Ranges, names: Mapping[Symbol, str]) -> str:
    """An index expression. `names`: the variables of the symbols, except for loops of one iteration."""
    text = ""
    for monomial, factor in expr.terms().items():
        factors = [_atom(atom, ranges, names) for atom in monomial]
        if abs(factor) != 1 or not factors:
            factors.insert(0, str(abs(factor)))
        sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
        text += sign + " * ".join(factors)
    return text or "0"


def _atom(atom: Atom, ranges: Ranges, names: Mapping[Symbol, str]) -> str:
    if isinstance(atom, Symbol):
        return names[atom]
    if isinstance(atom, FloorDiv | Mod):
        if not isinstance(atom.denominator, int):
            raise CompileError("inductor", f"division by a symbolic size in the index {atom}", hint="use static shapes")
        top = print_index(atom.numerator, ranges, names)
        if atom.numerator.bounds(ranges)[0] >= 0:
            return f"(({top}) {'//' if isinstance(atom, FloorDiv) else '%'} {atom.denominator})"
        return f"{'floor_div' if isinstance(atom, FloorDiv) else 'floor_mod'}({top}, {atom.denominator})"
    if isinstance(atom, Min | Max):
        function = "tl.minimum" if isinstance(atom, Min) else "tl.maximum"
        text = print_index(atom.args[0], ranges, names)
        for argument in atom.args[1:]:
            text = f"{function}({text}, {print_index(argument, ranges, names)})"
        return text
    raise CompileError("inductor", f"cannot print the index expression {atom}")
