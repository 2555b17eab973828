"""Whether two tensors over one memory have elements in common, by their layouts alone. Nothing here knows tensors.

Of sizes that only the run can tell nothing is relied on: what is not known to lie apart may meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layout import has_zero, surely
from .record import TensorMeta

Steps = tuple[tuple[Any, Any], ...]  # (stride, size) of each dimension that leads to other elements


def same_elements(first: TensorMeta, second: TensorMeta) -> bool:
    """Whether both are known to have the same elements at the same indices."""
    return (
        first.dtype.itemsize == second.dtype.itemsize
        and surely(first.offset == second.offset)
        and len(first.shape) == len(second.shape)
        and all(surely(a == b) for a, b in zip(first.shape, second.shape, strict=True))
        and all(
            surely(size == 1) or surely(a == b)
            for size, a, b in zip(first.shape, first.stride, second.stride, strict=True)
        )
    )


def span(meta: TensorMeta) -> tuple[Any, Any]:
    """The bytes of the storage from the first element to behind the last."""
    size = meta.dtype.itemsize
    return meta.offset * size, (meta.offset + _reach(_steps(meta)) + 1) * size


def may_meet(first: TensorMeta, second: TensorMeta) -> bool:
    """Whether some element of one could lie where one of the other does."""
    if has_zero(first.shape) or has_zero(second.shape):
        return False
    if first.dtype.itemsize != second.dtype.itemsize:
        (start, end), (other, other_end) = span(first), span(second)
        return not (surely(end <= other) or surely(other_end <= start))
    return _meet(_steps(first), first.offset, _steps(second), second.offset)


def _steps(meta: TensorMeta) -> Steps:
    pairs = zip(meta.stride, meta.shape, strict=True)
    return tuple((stride, size) for stride, size in pairs if not (surely(size == 1) or surely(stride == 0)))


def _reach(steps: Steps) -> Any:
    return sum(stride * (size - 1) for stride, size in steps)


def _meet(first: Steps, start: Any, second: Steps, other: Any) -> bool:
    if surely(start + _reach(first) < other) or surely(other + _reach(second) < start):
        return False
    largest = _largest([stride for stride, _ in (*first, *second)])
    if largest is None:
        return True
    return all(_meet_in_rows(first, start - base, second, other - base, largest) for base in (start, other))


def _meet_in_rows(first: Steps, start: Any, second: Steps, other: Any, width: Any) -> bool:
    """Memory as rows of this width: elements are apart that lie in other rows, or at other places in their rows. That
    is known of tensors whose elements do not run on into the next row."""
    rows, inside = _split(first, width)
    other_rows, other_inside = _split(second, width)
    row, column = start // width, start % width
    other_row, other_column = other // width, other % width
    if not (surely(column + _reach(inside) < width) and surely(other_column + _reach(other_inside) < width)):
        return True
    if surely(row + rows < other_row) or surely(other_row + other_rows < row):
        return False
    return _meet(inside, column, other_inside, other_column)


def _split(steps: Steps, width: Any) -> tuple[Any, Steps]:
    """How many rows further the last one lies, and the steps within a row."""
    across = [size for stride, size in steps if surely(stride == width)]
    return sum(size - 1 for size in across), tuple(step for step in steps if not surely(step[0] == width))


def _largest(strides: Sequence[Any]) -> Any:
    """None where it is not known which that is."""
    return next((one for one in strides if all(surely(one >= stride) for stride in strides)), None)
