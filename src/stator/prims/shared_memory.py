"""Whether two tensors over one storage share elements, decided by their layouts alone.

Nothing is relied on about sizes known only at run time: tensors that are not known to be separate may meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layout import always_equal, has_zero, surely
from .record import TensorMeta

Steps = tuple[tuple[Any, Any], ...]  # (stride, size) of each dimension with several elements


def same_elements(first: TensorMeta, second: TensorMeta) -> bool:
    """Whether both layouts are known to place every element at one address."""
    return (
        first.dtype.itemsize == second.dtype.itemsize
        and surely(first.offset == second.offset)
        and len(first.shape) == len(second.shape)
        and all(surely(a == b) for a, b in zip(first.shape, second.shape, strict=True))
        and all(
            surely(a == b) or surely(size == 1)
            for size, a, b in zip(first.shape, first.stride, second.stride, strict=True)
        )
    )


def span(meta: TensorMeta) -> tuple[Any, Any]:
    """Return the bytes of the storage from the first element to behind the last."""
    size = meta.dtype.itemsize
    return meta.offset * size, (meta.offset + _reach(_steps(meta)) + 1) * size


def may_meet(first: TensorMeta, second: TensorMeta) -> bool:
    """Whether the two layouts could overlap in some element."""
    if has_zero(first.shape) or has_zero(second.shape):
        return False
    if first.dtype.itemsize != second.dtype.itemsize:
        (start, end), (other, other_end) = span(first), span(second)
        return not (surely(end <= other) or surely(other_end <= start))
    return _meet(_steps(first), first.offset, _steps(second), second.offset)


def _steps(meta: TensorMeta) -> Steps:
    pairs = zip(meta.stride, meta.shape, strict=True)
    return tuple((stride, size) for stride, size in pairs if not (always_equal(size, 1) or surely(stride == 0)))


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
    """Whether the layouts may meet, seen as rows of `width`: elements in other rows, or at other places in their rows,
    are separate. Requires tensors whose elements do not run on into the next row."""
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
    """Return the number of rows that the elements span, and the steps within a row."""
    across = [size for stride, size in steps if surely(stride == width)]
    return sum(size - 1 for size in across), tuple(step for step in steps if not surely(step[0] == width))


def _largest(strides: Sequence[Any]) -> Any:
    """Return the largest stride; None if unknown."""
    return next((one for one in strides if all(surely(one >= stride) for stride in strides)), None)
