"""Which lowerings give eager's results to the last bit, so that they may stay kernels under `exact_rounding`.

Those that move elements, compute with integers, or round each operation as IEEE 754 says and in the order that ATen
does. Everything that adds up in an order of its own, approximates a function or calls another library does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from stator.prims.record import TensorMeta

from .registry import can_lower, view_targets

aten = torch.ops.aten

# Results are elements of the arguments (or of a constant), whatever they hold.
_MOVES = """
    clone contiguous copy _to_copy cat stack repeat flip roll constant_pad_nd tril triu embedding gather index_select
    index.Tensor _unsafe_index.Tensor select_scatter slice_scatter unfold masked_fill where max_pool2d_with_indices amax
    amin max.dim min.dim max.default min.default argmax argmin fill full full_like zeros zeros_like ones ones_like
    new_empty new_empty_strided new_full new_ones new_zeros empty empty_like empty_strided scalar_tensor eye lift
    lift_fresh detach alias as_strided
"""
# One correctly rounded operation, or several in eager's order. Held by tests/inductor/test_exact_rounding.py.
_ROUNDED = """
    abs neg sign sgn floor ceil trunc round reciprocal rsqrt square isnan isinf signbit eq ne lt le gt ge maximum
    minimum fmax fmin copysign clamp clamp_min clamp_max mul div.Tensor div.Scalar true_divide nan_to_num relu hardtanh
    leaky_relu threshold prelu _prelu_kernel threshold_backward leaky_relu_backward sigmoid_backward
    logical_and logical_or logical_not logical_xor any all
"""
# Eager multiplies by alpha and adds in one rounding.
_SUMS = "add sub rsub"
_EXACT_POWERS = (1, 2, 3, -1, -2)
_DTYPES = frozenset((torch.float32, torch.float64))


def _overloads(names: str) -> Iterator[Any]:
    for name in names.split():
        packet, _, overload = name.partition(".")
        found = getattr(aten, packet)
        for each in [overload] if overload else found.overloads():
            yield getattr(found, each)


_moves, _rounded, _sums = (frozenset(_overloads(names)) for names in (_MOVES, _ROUNDED, _SUMS))
_powers = frozenset((aten.pow.Tensor_Scalar,))


def keeps_whole(target: Any) -> bool:
    """Under `exact_rounding` only views that have no lowering are decomposed: another formula rounds otherwise."""
    return can_lower(target) or all(part.alias_info is None for part in target._schema.returns)


def rounds_as_eager(node: fx.Node) -> bool:
    """May the lowering of the node's operator be used?"""
    target: Any = node.target
    if target in view_targets or target in _moves or target.namespace != "aten":
        return True
    metas = tree_leaves((_metas(node.args), _metas(node.kwargs), node.meta["val"]))
    dtypes = {meta.dtype for meta in metas if isinstance(meta, TensorMeta)}
    if not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
        return not any(isinstance(leaf, float) for leaf in tree_leaves((node.args, node.kwargs)))
    if not all(dtype in _DTYPES for dtype in dtypes if dtype.is_floating_point or dtype.is_complex):
        return False
    if target in _sums:
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        return bool(alpha == 1)
    if target in _powers:
        return node.args[1] in _EXACT_POWERS
    return target in _rounded


def _metas(arguments: Any) -> Any:
    return fx.map_arg(arguments, lambda node: node.meta.get("val"))
