"""Which values on GPUs get rows that begin at multiples of 16 bytes although their length is none, because products
read them; and what that gains. Emits nothing.

The library computes a product quickly if its matrices have such rows, and if as many elements of each row are a
multiple of 16 bytes. Only the distance between rows grows: sizes stay, and nothing reads what lies between two rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from stator.inductor.sizes import Sizes
from stator.prims.layout import contiguous_strides
from stator.prims.record import TensorMeta

from .registry import lowerings, view_targets

aten = torch.ops.aten

ROW_BYTES = 16
DEVICES = ("cuda",)
# By operator: the positions of both sides
PRODUCTS: dict[Any, tuple[int, int]] = {aten.mm.default: (0, 1), aten.addmm.default: (1, 2)}

# Of an H100: operations in a microsecond, by the bytes that divide distances and lengths of all rows. 8 bytes were not
# measured: they count as 16.
_RATES = {2: 140e6, 4: 240e6, ROW_BYTES: 650e6}
_BANDWIDTH = 2.6e6  # bytes in a microsecond
_LAUNCH = 3.0
_LEAST_GAIN = 10.0


def padded_strides(shape: Sizes, dtype: torch.dtype) -> Sizes:
    """Row-major strides of which all but the last are multiples of 16 bytes."""
    return contiguous_strides((*shape[:-1], -(-shape[-1] // unit_of(dtype)) * unit_of(dtype)))


def unit_of(dtype: torch.dtype) -> int:
    """Elements in 16 bytes."""
    return ROW_BYTES // dtype.itemsize


def gain(sizes: Sequence[Any], steps: Sequence[Any], dtype: torch.dtype, device: torch.device) -> float:
    """Microseconds that a product of these sizes (rows, columns, depth) gains if the library need not read parts of 16
    bytes. steps: distances and lengths of the rows of both sides. 0 where it gains little, where sizes are not known,
    and for results with such rows, which kernels of ours compute."""
    known = all(isinstance(size, int) for size in (*sizes, *steps))
    if not known or device.type not in DEVICES or not _in_tensor_cores(dtype):
        return 0.0
    rows, columns, depth = sizes
    if columns % unit_of(dtype):
        return 0.0
    operations = 2.0 * rows * columns * depth
    moved = (rows * depth + depth * columns + rows * columns) * dtype.itemsize / _BANDWIDTH
    bytes_ = math.gcd(ROW_BYTES, *[step * dtype.itemsize for step in steps])
    rest = copy_time((rows, columns), dtype) + _LAUNCH  # the library adds the products of parts up in the result
    found = operations / _RATES.get(bytes_, _RATES[ROW_BYTES]) - max(operations / _RATES[ROW_BYTES], moved) - rest
    return found if found > _LEAST_GAIN else 0.0


def copy_time(shape: Sizes, dtype: torch.dtype) -> float:
    """Microseconds of a copy of a tensor."""
    return 2 * math.prod(shape) * dtype.itemsize / _BANDWIDTH + _LAUNCH


def _in_tensor_cores(dtype: torch.dtype) -> bool:
    if dtype is not torch.float32:
        return dtype in (torch.float16, torch.bfloat16)
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    tf32: bool = torch.backends.cuda.matmul.allow_tf32 if precision is None else precision("cuda", "matmul") == "tf32"
    return tf32


def row_of(shape: Sequence[Any], strides: Sequence[Any]) -> tuple[Any, Any] | None:
    """The distance and the length of the rows of a matrix in memory, or of its columns; None for other layouts."""
    (rows, columns), (down, across) = shape, strides
    return (down, columns) if across == 1 else (across, rows) if down == 1 else None


def values_to_pad(graph: fx.Graph, free: Collection[int]) -> set[fx.Node]:
    """The nodes whose results get such rows at no cost: loops compute them for products, and no one needs eager's
    strides. free: positions of outputs that may have other strides than eager's."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target not in PRODUCTS:
            continue
        meta: TensorMeta = node.meta["val"]
        sides: Any = [node.args[at] for at in PRODUCTS[node.target]]
        metas: list[TensorMeta] = [side.meta["val"] for side in sides]
        rows = [row for one in metas if (row := row_of(one.shape, one.stride)) is not None]
        steps = [size for row in rows for size in row]
        if gain((*meta.shape, metas[0].shape[1]), steps, meta.dtype, meta.device) > 0:
            found.update(
                base for side in sides if _is_made_in_rows(base := _under_views(side)) and _is_free(base, free)
            )
    return found


def _under_views(node: Any) -> fx.Node:
    while node.target in view_targets and node.target is not aten.as_strided.default:
        node = node.args[0]
    return node  # type: ignore[no-any-return]


def _is_made_in_rows(node: fx.Node) -> bool:
    """True for results of loops, row by row, with rows that begin at any address."""
    meta = node.meta.get("val")
    if node.target not in lowerings or node.target in _WITHOUT_LOOPS or not isinstance(meta, TensorMeta):
        return False
    known = len(meta.shape) > 1 and all(isinstance(size, int) for size in meta.shape)
    return known and meta.stride == contiguous_strides(meta.shape) and meta.shape[-1] % unit_of(meta.dtype) != 0


def _is_free(node: fx.Node, free: Collection[int]) -> bool:
    """True if all readers of a value, looking through views, take any strides: loops, products, and outputs that only
    compiled code reads."""
    for user in node.users:
        if user.op == "output":
            outputs: Any = user.args[0] if isinstance(user.args[0], (tuple, list)) else user.args
            if any(value is node and at not in free for at, value in enumerate(outputs)):
                return False
        elif user.target in view_targets and user.target is not aten.as_strided.default:
            if not _is_free(user, free):
                return False
        elif user.target not in lowerings or (user.target in _WITHOUT_LOOPS and user.target not in PRODUCTS):
            return False
    return True


# Lowered, but to calls, or for eager's strides
_WITHOUT_LOOPS = frozenset(
    (
        *PRODUCTS,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.as_strided.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
)
