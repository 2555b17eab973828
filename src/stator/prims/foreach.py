"""Operators on lists of tensors: the single-tensor operator behind each, and how its arguments are distributed.

Data for the shape rules and the decompositions of `_foreach_*`; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_UNARY = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round
    rsqrt sigmoid sign sin sinh sqrt tan tanh trunc max
"""
# name -> the overload for a tensor and the one for a number as second operand
_BINARY = {
    "add": ("add.Tensor", "add.Tensor"),
    "sub": ("sub.Tensor", "sub.Tensor"),
    "mul": ("mul.Tensor", "mul.Tensor"),
    "div": ("div.Tensor", "div.Tensor"),
    "pow": ("pow.Tensor_Tensor", "pow.Tensor_Scalar"),
    "maximum": ("maximum.default", "clamp_min.default"),
    "minimum": ("minimum.default", "clamp_max.default"),
    "clamp_min": ("clamp_min.Tensor", "clamp_min.default"),
    "clamp_max": ("clamp_max.Tensor", "clamp_max.default"),
}
_OTHERS = {
    "_foreach_lerp.List": "lerp.Tensor",
    "_foreach_lerp.Scalar": "lerp.Scalar",
    "_foreach_lerp.ScalarList": "lerp.Scalar",
    "_foreach_addcmul.Scalar": "addcmul.default",
    "_foreach_addcmul.ScalarList": "addcmul.default",
    "_foreach_addcdiv.Scalar": "addcdiv.default",
    "_foreach_addcdiv.ScalarList": "addcdiv.default",
    "_foreach_pow.ScalarAndTensor": "pow.Scalar",
    "_foreach_norm.Scalar": "linalg_vector_norm.default",
    "_foreach_copy.default": "copy.default",
    "_foreach_clone.default": "clone.default",
    "_foreach_mm.default": "mm.default",
}
# Operators whose number is a keyword of the single-tensor operator.
_KEYWORDS = {"_foreach_addcmul": "value", "_foreach_addcdiv": "value"}


@dataclass(frozen=True, slots=True)
class Foreach:
    """`target` applies `single` to the n-th elements of its lists, for each n.

    listed: for each argument of `target`, by name, whether it is a list with one element per application. keyword: the
        keyword of `single` that takes the last positional argument.
    """

    target: OpOverload
    single: OpOverload
    listed: dict[str, bool]
    keyword: str | None = None

    def applications(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """Return the arguments of each application of `single`. Raises RuntimeError for lists of different lengths."""
        named = dict(zip(self.listed, args, strict=False)) | kwargs
        length = next(len(value) for name, value in named.items() if self.listed[name])
        for name, value in named.items():
            if self.listed[name] and len(value) != length:
                raise RuntimeError(
                    f"{self.target}: lists must have the same number of tensors, got {length} and {len(value)}"
                )
        positional = [argument.name for argument in self.target._schema.arguments if not argument.kwarg_only]
        for at in range(length):
            dealt = {name: value[at] if self.listed[name] else value for name, value in named.items()}
            given = [dealt.pop(name) for name in positional if name in dealt]
            if self.keyword is not None and len(given) == len(positional):
                dealt[self.keyword] = given.pop()
            if self.single is aten.linalg_vector_norm.default:
                dealt = {"dtype": given[2]} if len(given) > 2 else dealt
                given = [*given[:2], *((2,) if len(given) < 2 else ())]
            yield given, dealt


def _overload(name: str) -> OpOverload | None:
    packet, _, overload = name.partition(".")
    found = getattr(aten, packet, None)
    return getattr(found, overload or "default", None) if found is not None else None


def _pairs() -> Iterator[tuple[str, str]]:
    for name in _UNARY.split():
        yield f"_foreach_{name}.default", f"{name}.default"
    for name, (tensor, number) in _BINARY.items():
        for overload in ("List", "Tensor"):
            yield f"_foreach_{name}.{overload}", tensor
        for overload in ("Scalar", "ScalarList"):
            yield f"_foreach_{name}.{overload}", number
    yield from _OTHERS.items()


def _found() -> Iterator[Foreach]:
    for name, single_name in _pairs():
        target, single = _overload(name), _overload(single_name)
        if target is not None and single is not None:  # some exist only in some versions of torch
            listed = {argument.name: "List[" in str(argument.type) for argument in target._schema.arguments}
            yield Foreach(target, single, listed, _KEYWORDS.get(name.partition(".")[0]))


FOREACH: tuple[Foreach, ...] = tuple(_found())


def in_place(target: OpOverload) -> OpOverload | None:
    """Return `_foreach_add_.List` for `_foreach_add.List`, if it exists."""
    packet = getattr(aten, target._schema.name.partition("::")[2] + "_", None)
    return getattr(packet, target._overloadname, None) if packet is not None else None
