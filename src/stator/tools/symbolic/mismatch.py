"""Which sizes of a failed call of a torch function do not fit together, by families of functions.

Text only; a call of no known family has torch's own message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stator.shapes.conditions import compare
from stator.shapes.environment import Environment

from .program import CallOfTorch, shape_text

Shape = tuple[Any, ...]
Apart = Callable[[Any, Any], bool]

_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "mv", "dot"}
_WITH_ADDEND = {"addmm", "baddbmm"}
_ELEMENTWISE = {
    *("add", "sub", "mul", "div", "pow", "where", "maximum", "minimum", "masked_fill", "fmod", "remainder", "atan2"),
    *("eq", "ne", "lt", "le", "gt", "ge", "true_divide", "floor_divide", "addcmul", "addcdiv", "lerp", "expand"),
    *("logical_and", "logical_or", "bitwise_and", "bitwise_or", "hypot", "mse_loss", "l1_loss", "subtract", "multiply"),
    *("and", "or", "xor", "rsub", "truediv", "floordiv", "mod", "radd", "rmul", "iadd", "isub", "imul", "itruediv"),
}
_CONVOLUTIONS = {f"{prefix}{rank}d" for prefix in ("conv", "conv_transpose") for rank in (1, 2, 3)}


_TO_SIZES = {"view", "reshape", "expand", "unflatten", "broadcast_to", "split", "narrow", "permute", "as_strided"}


def describe(call: CallOfTorch, environment: Environment) -> tuple[str, bool]:
    """`linear: (batch, seq, 512) x (768, 768): 512 != 768`, and whether the last part, which does not fit, is known."""

    def apart(first: Any, second: Any) -> bool:
        return environment.evaluate_static(compare("==", first, second)) is False

    name = call.name.strip("_")
    between = " x " if name in _PRODUCTS or name == "linear" or call.name in _PRODUCTS else ", "
    shapes = call.shapes[:2] if name == "linear" else call.shapes
    text = f"{name}: {between.join(map(shape_text, shapes))}" if shapes else name
    if name in _TO_SIZES:
        text = f"{text} to {shape_text(call.arguments)}"
    found = _mismatch(call, name, apart)
    return (text, False) if found is None else (f"{text}: {found}", True)


def _mismatch(call: CallOfTorch, name: str, apart: Apart) -> str | None:
    shapes = [*call.shapes]
    if name == "linear":
        return _differ(shapes[0][-1], shapes[1][-1], apart) if len(shapes) > 1 and shapes[0] else None
    if name in _PRODUCTS or call.name in _PRODUCTS:
        first, second = shapes[1:3] if name in _WITH_ADDEND else shapes[:2]
        return _of_product(first, second, apart) if first and second else None
    if name in ("cat", "concat", "concatenate", "stack"):
        return _of_joined(shapes, apart)
    if name in _CONVOLUTIONS and len(shapes) > 1 and len(shapes[0]) > 1:
        return _of_convolution(name, shapes, apart)
    if name in ("layer_norm", "rms_norm") and len(shapes) > 1 and shapes[0] and shapes[1]:
        return _differ(shapes[0][-1], shapes[1][-1], apart)
    if name.removesuffix("_") in _ELEMENTWISE and len(shapes) > 1:
        return _of_broadcast(shapes, apart)
    return None


def _differ(first: Any, second: Any, apart: Apart) -> str | None:
    return f"{first} != {second}" if apart(first, second) else None


def _of_product(first: Shape, second: Shape, apart: Apart) -> str | None:
    inner = _differ(first[-1], second[-2] if len(second) > 1 else second[0], apart)
    return inner or _of_broadcast([first[:-2], second[:-2]], apart)


def _of_broadcast(shapes: Sequence[Shape], apart: Apart) -> str | None:
    for position in range(1, max(map(len, shapes)) + 1):
        sizes = [shape[-position] for shape in shapes if len(shape) >= position]
        wide = [size for size in sizes if size != 1]
        for size in wide[1:]:
            if apart(wide[0], size):
                return f"{wide[0]} != {size}"
    return None


def _of_joined(shapes: Sequence[Shape], apart: Apart) -> str | None:
    """The sizes that differ, unless only one dimension has any: that may be the one along which tensors are joined."""
    first = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(first):
            return f"{len(first)} dimensions and {len(shape)}"
        differing = [_differ(a, b, apart) for a, b in zip(first, shape, strict=True)]
        found = [text for text in differing if text]
        if found:
            return ", ".join(found)
    return None


def _of_convolution(name: str, shapes: Sequence[Shape], apart: Apart) -> str | None:
    """Channels of the input and of the weight, where groups do not explain the difference."""
    channels = shapes[0][len(shapes[0]) - (len(shapes[1]) - 1)]
    expected = shapes[1][0] if "transpose" in name else shapes[1][1]
    return f"{channels} channels, and a weight for {expected}" if apart(channels, expected) else None
