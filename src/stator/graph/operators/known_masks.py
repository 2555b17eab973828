"""Selection by boolean masks whose values are known while tracing: the result's size depends on the mask.

`fake_mode.py` tracks known values. Importing this file registers the handlers with every mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stator.graph.fake.fake_mode import FakeMode, FakeTensor, flat_tensors, specials
from stator.graph.fake.unknown_sizes import masks_expanded
from stator.prims.shape_rules.indexing import MASKS

aten = torch.ops.aten


@specials.register(aten.index.Tensor)
def _index(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Index by a known boolean mask: the result has as many elements as the mask has True."""
    tensor, indices = args[0], args[1]
    masks = [index for index in indices if index is not None and index.dtype in MASKS]
    if not masks:
        return NotImplemented
    if any(mask.known_value() is None or not mask.dim() or mask.device != tensor.device for mask in masks):
        return mode._data_dependent(aten.index.Tensor, args, kwargs, flat_tensors(args))

    def columns(mask: FakeTensor) -> Sequence[FakeTensor]:
        known: Any = mask.known_value()
        return [mode.value(column) for column in known.nonzero(as_tuple=True)]

    return mode.dispatch(aten.index.Tensor, (tensor, masks_expanded(tensor, indices, columns)), {})


@specials.register(aten.masked_select.default)
def _masked_select(mode: FakeMode, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, mask = args
    known = mask.known_value()
    if known is None or known.dtype is not torch.bool or mask.device != tensor.device:
        return NotImplemented
    shape = torch.broadcast_shapes(tuple(tensor.shape), tuple(mask.shape))
    if not shape:
        return NotImplemented
    columns = [mode.value(column) for column in known.expand(shape).nonzero(as_tuple=True)]
    expanded = mode.dispatch(aten.expand.default, (tensor, list(shape)), {})
    return mode.dispatch(aten.index.Tensor, (expanded, columns), {})
