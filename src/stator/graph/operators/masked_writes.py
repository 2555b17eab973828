"""Writes by boolean masks, `x[mask] = v` with a value for each True, and the gradient of `x[mask]`. In a traced graph
each element of the result looks its value up: the Trues before it tell the value's position. Kernels do this without a
list of the positions.

Importing this file registers the handler with every mode.
"""

from __future__ import annotations

from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeMode, FakeTensor, specials
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.prims.layout import always_equal, has_zero, is_unknown, same_sizes, surely
from stator.prims.operators.checks import check

aten = torch.ops.aten
_READING = "IndexBackward0"  # puts the gradient of x[mask] into zeros
_WRITING = frozenset(("IndexPutBackward0", "IndexPutImplBackward0"))  # put zeros where the forward wrote v


@specials.register(aten.index_put.default)
def _put_by_mask(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    base, indices, values, accumulate = (*args, False)[:4] if not kwargs else (None,) * 4
    if not isinstance(mode, FunctionalTracer) or base is None or not _is_by_mask(base, indices, values):
        return NotImplemented
    mask = indices[0]
    node = torch._C._current_autograd_node()
    formula = None if node is None else node.name()
    if formula not in (_READING, *_WRITING) and not _has_as_many(mode, mask, values.shape[0]):
        return NotImplemented
    rows = [*mask.shape, *[1] * (base.dim() - mask.dim())]
    with mode:
        places = aten.reshape.default(mask, rows)
        if formula in _WRITING:
            return aten.where.ScalarSelf(places, 0, base)
        source = aten.expand.default(values, [values.shape[0], *base.shape[mask.dim() :]])
        found = aten.masked_scatter.default(base, places, source)
        return aten.where.self(places, aten.add.Tensor(base, found), base) if accumulate else found


def _is_by_mask(base: FakeTensor, indices: Any, values: FakeTensor) -> bool:
    """Whether one mask covers the first dimensions, and there is a value for each True: not one value for all."""
    if len(indices) != 1 or indices[0].dtype is not torch.bool or base.dtype is not values.dtype:
        return False
    mask = indices[0]
    inner = base.dim() - mask.dim()
    if not mask.dim() or inner < 0 or values.dim() != inner + 1 or not base.device == mask.device == values.device:
        return False
    if not same_sizes(tuple(mask.shape), tuple(base.shape[: mask.dim()])) or has_zero((*base.shape, *values.shape)):
        return False
    return not surely(values.shape[0] == 1)


def _has_as_many(mode: FunctionalTracer, mask: FakeTensor, length: Any) -> bool:
    """Whether the mask has so many Trues, or the graph checks it."""
    known = mode.counted(mask)
    if known is not None and always_equal(known, length):
        return True
    if is_unknown(length) or length == 1:  # one value would be for all
        return False
    with mode:
        equal = aten.eq.Scalar(aten.sum.default(mask), length)
        text = f"shape mismatch: value tensor of {length} rows cannot be broadcast to the elements that a mask chooses"
        check(equal, "RuntimeError", text)
    return True
