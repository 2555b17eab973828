"""Tensors of one number in lists, where torch would read the numbers: `torch.tensor([a, b])`, and `x[(a, b), (c, d)]`
as `zip` of two tensors gives it. In graphs they are stacked, which reads nothing. Known numbers are read as in eager.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, SequenceValue, TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue, index_makers

if TYPE_CHECKING:
    from stator.dynamo.interpreter.capture_context import CaptureContext

_MOST_NUMBERS = 4096  # each is a part of the graph


def stacked(context: CaptureContext, data: Value, wanted: torch.dtype | None = None) -> TensorValue | None:
    """What `torch.tensor(data)` gives on the device of its tensors; None if it reads nothing that is not known, or if
    there is something else in the lists, or numbers that eager may refuse to convert to the dtype that is wanted."""
    leaves = list(_leaves(context, data))
    tensors = [leaf for leaf in leaves if isinstance(leaf, TensorValue)]
    if not tensors or len(leaves) > _MOST_NUMBERS or all(_is_known(tensor) for tensor in tensors):
        return None
    device = tensors[0].fake.device
    if not all(_is_number(context, leaf, device) for leaf in leaves) or not _shape(data):
        return None
    if wanted is not None and not all(_always_fits(leaf, wanted) for leaf in leaves):
        return None
    return _stack(context, data, device)


def _leaves(context: CaptureContext, value: Value) -> Iterator[Value]:
    if isinstance(value, SequenceValue):
        for at, item in enumerate(value.items):
            value.items[at] = context.realized(item)
            yield from _leaves(context, value.items[at])
    else:
        yield value


def _is_known(tensor: TensorValue) -> bool:
    return tensor.fake.tracked_value() is not None  # type: ignore[attr-defined]


def _is_number(context: CaptureContext, leaf: Value, device: torch.device) -> bool:
    if isinstance(leaf, TensorValue):
        return leaf.cls is torch.Tensor and leaf.fake.dim() == 0 and leaf.fake.device == device
    return type(leaf) is ConstantValue and leaf.python_type(context) in (int, float, bool)


def _shape(value: Value) -> tuple[int, ...] | None:
    """Of lists in lists; None where their lengths differ, or where one is empty."""
    if not isinstance(value, SequenceValue):
        return ()
    shapes = {_shape(item) for item in value.items}
    shape = shapes.pop() if len(shapes) == 1 else None
    return None if shape is None else (len(value.items), *shape)


def _always_fits(leaf: Value, wanted: torch.dtype) -> bool:
    own = leaf.fake.dtype if isinstance(leaf, TensorValue) else torch.tensor(leaf.constant()).dtype
    if own is wanted or wanted in (torch.bool, torch.float64):
        return not own.is_complex or own is wanted
    whole = not own.is_floating_point and not own.is_complex
    return whole and wanted in (torch.int64, torch.float32)


def _stack(context: CaptureContext, value: Value, device: torch.device) -> TensorValue:
    if isinstance(value, TensorValue):
        return context.record_method("detach", [value], {})  # type: ignore[return-value]
    if isinstance(value, SequenceValue):
        items: list[Value] = [_stack(context, item, device) for item in value.items]
        return context.record_function(torch.stack, [ListValue(items)], {})  # type: ignore[return-value]
    return context.record_function(torch.tensor, [value], {"device": ConstantValue(device)})  # type: ignore[return-value]


def _index(context: CaptureContext, key: Value) -> Value:
    """In the place of an index whose parts are lists of whole numbers in tensors, or of truths."""
    if not isinstance(key, TupleValue):
        return key
    parts = [_part(context, context.realized(item)) for item in key.items]
    return key if all(new is old for new, old in zip(parts, key.items, strict=True)) else TupleValue(parts)


def _part(context: CaptureContext, part: Value) -> Value:
    if not isinstance(part, SequenceValue):
        return part
    tensors = [leaf for leaf in _leaves(context, part) if isinstance(leaf, TensorValue)]
    if any(leaf.fake.is_floating_point() or leaf.fake.is_complex() for leaf in tensors):
        return part
    made = stacked(context, part)
    if made is None or made.fake.dtype in (torch.bool, torch.uint8, torch.int64):
        return part if made is None else made
    if made.fake.is_floating_point():
        return part
    return context.record_method("to", [made, ConstantValue(torch.int64)], {})


index_makers.append(_index)
