"""Linear algebra by products, sums and gathers: traces, cross products, distances, norms of slices; matrix products
with additions, by the primitives `mm` and `bmm`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from stator.prims.layout import wrap_dim
from stator.prims.shape_rules.creation import lower_triangle
from stator.prims.type_promotion import common_dtype, is_integral

from .decomposition_decorator import cast, decomposes, decomposition_table, iota, widened
from .shaping import iota_along

aten = torch.ops.aten


@decomposes("linalg_cross", wide=False)
def linalg_cross(self: Any, other: Any, *, dim: int = -1) -> Any:
    """Compute each component from the two that follow it cyclically."""
    dim = wrap_dim(dim, len(self.shape))
    first, second = aten.broadcast_tensors.default([self, other])
    products = [
        aten.mul.Tensor(rolled(first, 1, dim), rolled(second, 2, dim)),
        aten.mul.Tensor(rolled(first, 2, dim), rolled(second, 1, dim)),
    ]
    return aten.sub.Tensor(*products)


def rolled(self: Any, by: int, dim: int) -> Any:
    """Rotate: component i of the result is component i + `by` modulo 3."""
    return aten.cat.default([aten.slice.Tensor(self, dim, by, 3), aten.slice.Tensor(self, dim, 0, by)], dim)


@decomposes("dist", wide=False)
def dist(self: Any, other: Any, p: Any = 2) -> Any:
    if common_dtype((self, other)).is_complex:
        return NotImplemented
    return aten.linalg_vector_norm.default(aten.sub.Tensor(self, other), p)


@decomposes("_cdist_forward", wide=False)
def cdist(x1: Any, x2: Any, p: float, compute_mode: int | None) -> Any:
    """Norms of the differences of every row of one with every row of the other."""
    if not x1.dtype.is_floating_point or 0 in (*x1.shape, *x2.shape):
        return NotImplemented
    difference = aten.sub.Tensor(aten.unsqueeze.default(x1, -2), aten.unsqueeze.default(x2, -3))
    return aten.linalg_vector_norm.default(difference, p, [-1])


@decomposes("_pdist_forward", wide=False)
def pdist(self: Any, p: float = 2.0) -> Any:
    """The distances of each row from the rows after it, in order."""
    rows = self.shape[0]
    if 0 in tuple(self.shape[1:]):
        return NotImplemented
    if rows < 2:
        return aten.full.default([0], 0, dtype=self.dtype, device=self.device)
    earlier, later = pairs(rows, self)
    difference = aten.sub.Tensor(aten.index_select.default(self, 0, earlier), aten.index_select.default(self, 0, later))
    return aten.linalg_vector_norm.default(difference, p, [-1])


def pairs(count: int, like: Any) -> tuple[Any, Any]:
    """Return the positions (i, j) of all pairs with i < j, ordered by i, then by j."""
    both = _upper_triangle_indices(count, count, 1, dtype=torch.int64, device=like.device)
    return aten.select.int(both, 0, 0), aten.select.int(both, 0, 1)


def _triangle_indices(name: str, count: Any) -> Any:
    triangle = getattr(aten, name.partition("_")[0]).default

    @decomposes(name, wide=False)
    def triangle_indices(
        row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
    ) -> Any:
        """The positions of a mask, in row-major order."""
        mask = triangle(aten.full.default([row, col], True, dtype=torch.bool, device=device), offset)
        places = aten.nonzero_static.default(mask, size=count(row, col, offset))
        return cast(aten.t.default(places), dtype or torch.int64)

    return triangle_indices


_triangle_indices("tril_indices", lower_triangle)
_upper_triangle_indices = _triangle_indices(
    "triu_indices", lambda row, col, offset: row * col - lower_triangle(row, col, offset - 1)
)


@decomposes("renorm", wide=False)
def renorm(self: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    """Scale slices whose norm exceeds `maxnorm` down to it."""
    if not self.dtype.is_floating_point or 0 in tuple(self.shape):
        return NotImplemented
    dim = wrap_dim(dim, len(self.shape))
    others = [axis for axis in range(len(self.shape)) if axis != dim]
    norm = aten.linalg_vector_norm.default(widened(self), p, others, True)
    factor = aten.where.ScalarOther(
        aten.gt.Scalar(norm, maxnorm),
        aten.div.Tensor(aten.full_like.default(norm, maxnorm), aten.add.Tensor(norm, 1e-7)),
        1.0,
    )
    scaled = aten.mul.Tensor(self, cast(factor, self.dtype))
    return aten.clone.default(scaled, memory_format=torch.contiguous_format)


@decomposes("block_diag", wide=False)
def block_diag(tensors: Sequence[Any]) -> Any:
    """Each block padded by zeros to the full width, one below the other."""
    dtype = common_dtype([aten.empty.memory_format([1], dtype=tensor.dtype) for tensor in tensors])
    blocks = []
    for tensor in tensors:
        matrix = tensor
        while len(matrix.shape) < 2:
            matrix = aten.unsqueeze.default(matrix, 0)
        blocks.append(cast(matrix, dtype))
    total: Any = 0
    for block in blocks:
        total = total + block.shape[1]
    rows, left = [], 0
    for block in blocks:
        width = block.shape[1]
        rows.append(aten.constant_pad_nd.default(block, [left, total - left - width], 0))
        left = left + width
    return aten.cat.default(rows)


@decomposes("_chunk_cat", wide=False)
def chunk_cat(tensors: Sequence[Any], dim: int, num_chunks: int) -> Any:
    """Pad each tensor to a multiple of `num_chunks`, cut it into that many rows, and join the rows."""
    parts = []
    for tensor in tensors:
        axis = wrap_dim(dim, len(tensor.shape))
        lack = -tensor.shape[axis] % num_chunks
        if lack:
            after = len(tensor.shape) - 1 - axis
            tensor = aten.constant_pad_nd.default(tensor, [0, 0] * after + [0, lack], 0)
        parts.append(aten.reshape.default(tensor, [*tensor.shape[:axis], num_chunks, -1]))
    return aten.cat.default(parts, axis + 1)


@decomposes("rot90", wide=False)
def rot90(self: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    first, second = (wrap_dim(dim, len(self.shape)) for dim in dims)
    k = k % 4
    if k == 0:
        return aten.clone.default(self, memory_format=torch.contiguous_format)
    if k == 2:
        return aten.flip.default(self, [first, second])
    if k == 1:
        return aten.transpose.int(aten.flip.default(self, [second]), first, second)
    return aten.flip.default(aten.transpose.int(self, first, second), [second])


@decomposes("diagonal_scatter", wide=False)
def diagonal_scatter(self: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Take `src` on the diagonal, by row (or column), and the old value elsewhere."""
    rank = len(self.shape)
    rows, columns = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    length = src.shape[-1]
    if 0 in tuple(src.shape):
        return aten.clone.default(self)
    along = rows if offset >= 0 else columns
    place = aten.clamp_max.default(iota(self.shape[along], self), length - 1)
    spread = aten.index_select.default(src, -1, place)
    # The diagonal is the last dimension of src: move it into place, and repeat it along the other dimension.
    across = columns if along == rows else rows
    order = [axis for axis in range(rank) if axis not in (rows, columns)] + [along]
    spread = aten.permute.default(spread, [order.index(axis) for axis in sorted(order)])
    spread = aten.unsqueeze.default(spread, across)
    position = [iota_along(self.shape[axis], axis, rank, self) for axis in (rows, columns)]
    on_diagonal = aten.eq.Tensor(
        aten.sub.Tensor(position[1], position[0]), aten.full.default([], offset, dtype=torch.int64, device=self.device)
    )
    return aten.where.self(on_diagonal, spread, self)


@decomposes("empty_permuted", wide=False)
def empty_permuted(size: Any, physical_layout: Any, **options: Any) -> Any:
    packed = aten.empty.memory_format([size[dim] for dim in physical_layout], **options)
    return aten.permute.default(packed, [list(physical_layout).index(dim) for dim in range(len(size))])


def _inside(self: Any, indices: Sequence[Any]) -> list[Any]:
    return [
        None if index is None else aten.clamp.default(index, -size, size - 1)
        for index, size in zip(indices, self.shape, strict=False)
    ]


@decomposes("_unsafe_masked_index", wide=False)
def unsafe_masked_index(self: Any, mask: Any, indices: Sequence[Any], fill: Any) -> Any:
    """Read the indexed element where the mask is True; elsewhere indices may be out of range."""
    if 0 in tuple(self.shape):
        return NotImplemented
    read = aten._unsafe_index.Tensor(self, _inside(self, indices))
    return aten.masked_fill.Scalar(read, aten.logical_not.default(mask), fill)


@decomposes("_unsafe_masked_index_put_accumulate", wide=False)
def unsafe_masked_index_put(self: Any, mask: Any, indices: Sequence[Any], values: Any) -> Any:
    if 0 in tuple(self.shape):
        return aten.clone.default(self)
    kept = aten.masked_fill.Scalar(values, aten.logical_not.default(mask), 0)
    return aten._unsafe_index_put.default(self, _inside(self, indices), kept, True)


@decomposes("isin.Tensor_Tensor", wide=False)
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Compare all pairs if these are few; eager sorts if they are many."""
    count = math.prod(test_elements.shape)
    if not count or count > 64:
        return NotImplemented
    tests = aten.reshape.default(test_elements, [-1])
    equal = aten.eq.Tensor(aten.unsqueeze.default(elements, -1), tests)
    found = aten.any.dim(equal, -1)
    return aten.logical_not.default(found) if invert else found


@decomposes("linalg_pinv.atol_rtol_tensor", wide=False)
def pinv(self: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """Invert the singular values (for a Hermitian matrix, eigenvalues) above max(atol, rtol * largest)."""
    if self.dtype not in (torch.float32, torch.float64) or 0 in tuple(self.shape):
        return NotImplemented
    rows, columns = self.shape[-2], self.shape[-1]
    if hermitian:
        values, right = aten._linalg_eigh.default(self, "L", True)
        left, sizes = right, aten.abs.default(values)
    else:
        left, values, transposed = aten._linalg_svd.default(self, False, True)
        right, sizes = aten.transpose.int(transposed, -2, -1), values
    largest = aten.amax.default(sizes, [-1], True)
    atol = aten.zeros_like.default(largest) if atol is None else aten.unsqueeze.default(cast(atol, self.dtype), -1)
    if rtol is None:
        default = torch.finfo(self.dtype).eps * max(rows, columns)
        rtol = aten.where.ScalarSelf(aten.gt.Scalar(atol, 0.0), 0.0, aten.full_like.default(atol, default))
    else:
        rtol = aten.unsqueeze.default(cast(rtol, self.dtype), -1)
    limit = aten.maximum.default(atol, aten.mul.Tensor(rtol, largest))
    inverse = aten.where.ScalarOther(aten.gt.Tensor(sizes, limit), aten.reciprocal.default(values), 0.0)
    scaled = aten.mul.Tensor(right, aten.unsqueeze.default(inverse, -2))
    return aten.matmul.default(scaled, aten.transpose.int(left, -2, -1))


@decomposes("lu_unpack", wide=False)
def lu_unpack(LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    """The triangles of a packed factorisation; the library makes the permutation."""
    if not unpack_data or not LU_data.dtype.is_floating_point or 0 in tuple(LU_data.shape):
        return NotImplemented
    rows, columns = LU_data.shape[-2], LU_data.shape[-1]
    order = min(rows, columns)
    lower = aten.tril.default(aten.slice.Tensor(LU_data, -1, 0, order), -1)
    unit = aten.eye.m(rows, order, dtype=LU_data.dtype, device=LU_data.device)
    upper = aten.triu.default(aten.slice.Tensor(LU_data, -2, 0, order))
    if unpack_pivots:
        permutation = aten.lu_unpack.default(LU_data, LU_pivots, False, True)[0]
    else:
        permutation = aten.empty.memory_format([0], dtype=LU_data.dtype, device=LU_data.device)
    return permutation, aten.add.Tensor(lower, unit), upper


@decomposes("linalg_lu", wide=False)
def linalg_lu(A: Any, *, pivot: bool = True) -> Any:
    if not pivot or not A.dtype.is_floating_point or 0 in tuple(A.shape):
        return NotImplemented
    packed, pivots, _ = aten.linalg_lu_factor_ex.default(A, pivot=pivot)
    return aten.lu_unpack.default(packed, pivots)


def combined(self: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """Return beta * self + alpha * product; beta = 0 ignores `self` even if it holds NaN."""
    if is_integral(product.dtype):
        alpha, beta = math.trunc(alpha), math.trunc(beta)  # as eager converts them
    if alpha != 1:
        product = aten.mul.Tensor(product, alpha)
    if beta == 0:
        return product
    return aten.add.Tensor(product, self if beta == 1 else aten.mul.Tensor(self, beta))


def product_with_vector(self: Any, vec: Any) -> Any:
    return aten.squeeze.dim(aten.mm.default(self, aten.unsqueeze.default(vec, 1)), 1)


@decomposes("dot")
def dot(self: Any, tensor: Any) -> Any:
    if self.dtype.is_complex:
        return NotImplemented
    return aten.sum.dim_IntList(aten.mul.Tensor(self, tensor), [0], dtype=self.dtype)


@decomposes("addr")
def addr(self: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if self.dtype is torch.bool and vec1.dtype is torch.bool and vec2.dtype is torch.bool:
        both = aten.logical_and.default(aten.unsqueeze.default(vec1, 1), aten.unsqueeze.default(vec2, 0))
        both = aten.logical_and.default(both, aten.full.default([], bool(alpha), dtype=torch.bool, device=self.device))
        return aten.logical_or.default(both, self) if beta else both
    outer = aten.mul.Tensor(aten.unsqueeze.default(vec1, 1), aten.unsqueeze.default(vec2, 0))
    return combined(self, outer, beta, alpha)


decomposition_table(
    {
        "trace": lambda self: aten.sum.default(aten.diagonal.default(self)),
        "vdot": lambda self, other: NotImplemented if self.dtype.is_complex else aten.dot.default(self, other),
        "unsafe_split.Tensor": lambda self, size, dim=0: aten.split.Tensor(self, size, dim),
        "unsafe_split_with_sizes": lambda self, sizes, dim=0: aten.split_with_sizes.default(self, sizes, dim),
        "_unsafe_index_put": lambda self, *arguments: aten.index_put.default(self, *arguments),
        "isin.Tensor_Scalar": lambda elements, number, *, invert=False, **_: (
            aten.ne.Scalar if invert else aten.eq.Scalar
        )(elements, number),
        # without the vectors, which ATen would also compute for tensor subclasses such as fake tensors
        "linalg_svdvals": lambda A, *, driver=None: aten._linalg_svd.default(A, False, False, driver=driver)[1],
        "linalg_eigvalsh": lambda self, UPLO="L": aten._linalg_eigh.default(self, UPLO, False)[0],
    },
    wide=False,
)
decomposition_table(
    {
        "native_dropout_backward": lambda grad, mask, scale: aten.mul.Tensor(
            aten.mul.Tensor(grad, cast(mask, grad.dtype)), scale
        ),
        "addmm": lambda self, one, other, *, beta=1, alpha=1: combined(self, aten.mm.default(one, other), beta, alpha),
        "baddbmm": lambda self, one, other, *, beta=1, alpha=1: combined(
            self, aten.bmm.default(one, other), beta, alpha
        ),
        "addbmm": lambda self, one, other, *, beta=1, alpha=1: combined(
            self, aten.sum.dim_IntList(aten.bmm.default(one, other), [0]), beta, alpha
        ),
        "mv": product_with_vector,
        "addmv": lambda self, mat, vec, *, beta=1, alpha=1: combined(self, product_with_vector(mat, vec), beta, alpha),
    }
)
