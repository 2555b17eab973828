"""Divisions of float32 that only half floats see, and how kernels compute them.

A division that rounds correctly takes about twenty instructions and a branch for each element, between which a thread
computes nothing else; an approximate one takes six, and is wrong by two units in the last place at most (PTX,
`div.full.f32`). Rounded to a half float, both give one number, but for at most one quotient of 2000 (float16) or of
16000 (bfloat16): those beside the middle of two half floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from stator.inductor.buffers import Buffer
from stator.inductor.codegen.kernel import Kernel, KernelValue, merge
from stator.inductor.loops.body import Ref
from stator.inductor.schedule.groups import Group
from stator.inductor.sizes import SizeKnowledge

from .expressions import TritonIndexPrinter

_DIVISIONS = {"div": "approximate_div", "reciprocal": "approximate_reciprocal"}


def merge_members(group: Group, buffers: Mapping[str, Buffer], knowledge: SizeKnowledge) -> Kernel:
    """The values of a group's kernel, with approximate divisions where results lose their last digits."""
    kernel = merge(group, buffers, knowledge, TritonIndexPrinter)
    divisions = {at for at, value in enumerate(kernel.values) if value.name in _DIVISIONS and _has_more(kernel, value)}
    if divisions:
        divisions -= {position for store in kernel.stores for position in kernel.store_operands(store)}
        for value in kernel.values:
            if not _is_half(value) or value.name != "to_dtype":
                divisions.difference_update(kernel.operands(value.args))
    for at in divisions:
        kernel.values[at] = replace(kernel.values[at], name=_DIVISIONS[kernel.values[at].name])
    return kernel


def _has_more(kernel: Kernel, division: KernelValue) -> bool:
    """True for a float32 of other operands than two half floats, whose quotient is exact in eager."""
    if division.dtype is not torch.float32:
        return False
    return not all(_was_half(kernel, argument) for argument in division.args)


def _was_half(kernel: Kernel, operand: Ref) -> bool:
    value = kernel.values[operand.position]
    return value.name == "constant" or (value.name == "to_dtype" and _is_half(kernel.values[value.args[0].position]))


def _is_half(value: KernelValue) -> bool:
    return value.dtype.is_floating_point and value.dtype.itemsize < 4


__all__ = ["merge_members"]
