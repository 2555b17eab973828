"""Shape rules of matrix factorisations, solvers and inverses. LAPACK's results are column-major, matrix by matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator.base.errors import Unsupported
from stator.prims.layout import (
    Sizes,
    broadcast_shapes,
    contiguous_strides,
    holds,
    is_contiguous,
    preserved_strides,
    smaller_size,
    wrap_dim,
)
from stator.prims.record import ShapeRule, TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import COMPLEX_OF_REAL, REAL_OF_COMPLEX, common_dtype, is_integral

from .operands import fresh, overloads, shape_table

LINALG = ("linalg",)


def column_major_strides(shape: Sizes) -> Sizes:
    """Return strides of a batch of column-major matrices."""
    *batch, rows, columns = shape
    strides = contiguous_strides((*batch, columns, rows))
    return (*strides[:-2], strides[-1], strides[-2])


def column_major(shape: Sizes, like: Any, dtype: torch.dtype | None = None) -> TensorMeta:
    return fresh(shape, like, dtype, column_major_strides(tuple(shape)))


def empty(like: Any, dtype: torch.dtype | None = None) -> TensorMeta:
    """Make the empty placeholder of a result that is not computed."""
    return fresh((0,), like, dtype)


def real(dtype: torch.dtype) -> torch.dtype:
    return REAL_OF_COMPLEX.get(dtype, dtype)


def matrix(self: Any, square: bool = False) -> Sizes:
    """Return the shape of a batch of floating-point matrices. Refuses other tensors."""
    shape = tuple(self.shape)
    refuse_if(len(shape) < 2 or (square and not holds(shape[-1] == shape[-2])) or is_integral(self.dtype))
    return shape


@shape_rule(*overloads("cholesky_solve"), tags=LINALG)
def cholesky_solve(self: Any, input2: Any, upper: bool = False) -> TensorMeta:
    own, other = matrix(self), matrix(input2, square=True)
    return column_major((*broadcast_shapes(own[:-2], other[:-2]), *own[-2:]), self)


@shape_rule(*overloads("_linalg_svd"), tags=LINALG)
def svd(
    A: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    *batch, rows, columns = matrix(A)
    rank = smaller_size(rows, columns)
    values = fresh((*batch, rank), A, real(A.dtype))
    if not compute_uv:
        return empty(A), values, empty(A)
    left = column_major((*batch, rows, rows if full_matrices else rank), A)
    shape = (*batch, columns if full_matrices else rank, columns)
    # cuSOLVER computes the adjoint of what LAPACK computes
    right = column_major(shape, A) if A.device.type == "cpu" else fresh(shape, A)
    return left, values, right


@shape_rule(*overloads("_linalg_eigh"), tags=LINALG)
def eigh(A: Any, UPLO: str = "L", compute_v: bool = True) -> tuple[TensorMeta, TensorMeta]:
    shape = matrix(A, square=True)
    return fresh(shape[:-1], A, real(A.dtype)), column_major(shape, A) if compute_v else empty(A)


@shape_rule(*overloads("linalg_qr"), tags=LINALG)
def qr(A: Any, mode: str = "reduced") -> tuple[TensorMeta, TensorMeta]:
    *batch, rows, columns = matrix(A)
    refuse_if(mode not in ("reduced", "complete", "r"))
    rank = rows if mode == "complete" else smaller_size(rows, columns)
    triangle = column_major((*batch, rank, columns), A)
    return empty(A) if mode == "r" else column_major((*batch, rows, rank), A), triangle


@shape_rule(*overloads("linalg_lu_factor_ex"), tags=LINALG)
def lu_factor_ex(
    A: Any, *, pivot: bool = True, check_errors: bool = False
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    *batch, rows, columns = matrix(A)
    pivots = fresh((*batch, smaller_size(rows, columns)), A, torch.int32)
    return column_major((*batch, rows, columns), A), pivots, fresh(batch, A, torch.int32)


@shape_rule(*overloads("linalg_lu"), tags=LINALG)
def lu(A: Any, *, pivot: bool = True) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    shape = matrix(A)
    lower, upper = triangles(A, shape)
    return fresh((*shape[:-1], shape[-2]), A) if pivot else empty(A), lower, upper


def triangles(like: Any, shape: Sizes) -> tuple[TensorMeta, TensorMeta]:
    """Return the layouts of L and U of a packed factorisation of this shape."""
    *batch, rows, columns = shape
    rank = smaller_size(rows, columns)
    return fresh((*batch, rows, rank), like), fresh((*batch, rank, columns), like)


@shape_rule(*overloads("lu_unpack"), tags=LINALG)
def lu_unpack(
    LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    shape = tuple(LU_data.shape)
    refuse_if(len(shape) < 2)
    lower, upper = triangles(LU_data, shape) if unpack_data else (empty(LU_data), empty(LU_data))
    return fresh((*shape[:-1], shape[-2]), LU_data) if unpack_pivots else empty(LU_data), lower, upper


def broadcast_matrices(first: Sizes, second: Sizes) -> tuple[Sizes, Sizes]:
    batch = broadcast_shapes(first[:-2], second[:-2])
    return (*batch, *first[-2:]), (*batch, *second[-2:])


def solution(shape: Sizes, like: Any, left: bool) -> TensorMeta:
    """Return the layout of a solution: column-major if the unknown is a matrix on the right of A, else row-major."""
    return column_major(shape, like) if left else fresh(shape, like)


@shape_rule(*overloads("linalg_lu_solve"), tags=LINALG)
def lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> TensorMeta:
    factors = matrix(LU, square=True)
    return solution(broadcast_matrices(factors, tuple(B.shape))[1], B, left)


@shape_rule(*overloads("_linalg_solve_ex"), tags=LINALG)
def solve_ex(
    A: Any, B: Any, *, left: bool = True, check_errors: bool = False
) -> tuple[TensorMeta, TensorMeta, TensorMeta, TensorMeta]:
    shape, other = matrix(A, square=True), tuple(B.shape)
    pivots, info = fresh(shape[:-1], A, torch.int32), fresh(shape[:-2], A, torch.int32)
    factors = column_major(shape, A)
    if len(other) == 1 or (len(shape) - 1 == len(other) and other == shape[:-1]):  # a batch of vectors
        refuse_if(not left)
        result = broadcast_matrices(shape, (*other, 1))[1][:-1]  # eager lays it out as a matrix
        return (column_major(result, A) if len(result) > 1 else fresh(result, A)), factors, pivots, info
    return solution(broadcast_matrices(shape, other)[1], A, left), factors, pivots, info


@shape_rule(*overloads("linalg_solve_triangular"), tags=LINALG)
def solve_triangular(self: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> TensorMeta:
    coefficients, shape = broadcast_matrices(matrix(self, square=True), tuple(B.shape))
    stored_by_columns = is_contiguous(transposed(coefficients), transposed(self.stride()))
    if is_conjugated(self) and tuple(self.shape) == coefficients and stored_by_columns:
        return fresh(shape, B)
    return column_major(shape, B)


def transposed(values: Sizes) -> Sizes:
    """Return sizes or strides with the last two exchanged."""
    return (*values[:-2], values[-1], values[-2])


def is_conjugated(tensor: Any) -> bool:
    """Whether a tensor is conjugated lazily; False for a TensorMeta."""
    return isinstance(tensor, torch.Tensor) and tensor.is_conj()


@shape_rule(*overloads("triangular_solve"), tags=LINALG)
def triangular_solve(
    self: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    own, coefficients = broadcast_matrices(matrix(self), matrix(A, square=True))
    return column_major(own, self), column_major(coefficients, A)


@shape_rule(*overloads("linalg_ldl_solve"), tags=LINALG)
def ldl_solve(LD: Any, pivots: Any, B: Any, *, hermitian: bool = False) -> TensorMeta:
    factors = matrix(LD, square=True)
    return column_major(broadcast_matrices(factors, tuple(B.shape))[1], B)


@shape_rule(*overloads("linalg_cross"), tags=("pointwise",))
def cross(self: Any, other: Any, *, dim: int = -1) -> TensorMeta:
    first, second = tuple(self.shape), tuple(other.shape)
    refuse_if(len(first) != len(second))
    axis = wrap_dim(dim, len(first))
    refuse_if(first[axis] != 3 or second[axis] != 3)
    return fresh(broadcast_shapes(first, second), self, common_dtype((self, other)))


@shape_rule(*overloads("_linalg_check_errors"), tags=("data_dependent",))
def check_errors(info: Any, api_name: str, *, is_matrix: bool) -> None:
    return None


@shape_rule(*overloads("trace"), tags=("reduction",))
def trace(self: Any) -> TensorMeta:
    refuse_if(len(self.shape) != 2)
    return fresh((), self, torch.int64 if is_integral(self.dtype) else self.dtype)


@shape_rule(*overloads("_trilinear"), tags=("matmul",))
def trilinear(
    i1: Any,
    i2: Any,
    i3: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> TensorMeta:
    """The sum over `sumdim` of the product of three tensors, each with dimensions of one inserted at `expand`."""
    shape: Sizes = ()
    for operand, expanded in ((i1, expand1), (i2, expand2), (i3, expand3)):
        own = list(operand.shape)
        for dim in sorted(expanded):
            own.insert(dim, 1)
        shape = broadcast_shapes(shape, tuple(own)) if shape else tuple(own)
    kept = [size for dim, size in enumerate(shape) if dim not in sumdim]
    return fresh(kept, i1)


@shape_rule(*overloads("linalg_lstsq"), tags=LINALG)
def lstsq(self: Any, b: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Solution, residuals, rank and singular values; results that the driver does not compute are empty. If residuals
    exist only for matrices of full rank, their shape depends on data."""
    if self.device.type != "cpu":
        return NotImplemented
    driver = driver or "gelsy"
    *batch, rows, columns = shape = matrix(self)
    other = tuple(b.shape)
    vector = len(other) == 1 or (len(shape) - 1 == len(other) and other == shape[:-1])
    if vector:
        other = (*other, 1)
    overdetermined = rows > columns
    if overdetermined and driver in ("gelsd", "gelss"):
        raise Unsupported(
            "data-dependent",
            f"linalg.lstsq by {driver} gives residuals where all matrices have full rank: their shape depends on data",
            hint="use driver='gelsy' or 'gels', or compute it outside the compiled region",
        )
    lead = broadcast_shapes(tuple(batch), other[:-2])
    stride = column_major_strides((*lead, rows if overdetermined else columns, other[-1]))
    result = fresh((*lead, columns, other[-1]), self, stride=stride)
    if vector:
        result = fresh(result.shape[:-1], self, stride=stride[:-1])
    return (
        result,
        fresh((*lead, other[-1]), self, real(self.dtype))
        if driver == "gels" and overdetermined
        else empty(self, real(self.dtype)),
        empty(self, torch.int64) if driver == "gels" else fresh(batch, self, torch.int64),
        fresh((*batch, smaller_size(rows, columns)), self, real(self.dtype))
        if driver in ("gelsd", "gelss")
        else empty(self, real(self.dtype)),
    )


def of_matrices(square: bool, results: Callable[[Any, Sizes], Any]) -> ShapeRule:
    """The rule of an operator whose results follow from its matrices alone, whatever its options are."""
    return lambda self, *_, **__: results(self, matrix(self, square))


def info(like: Any, shape: Sizes) -> TensorMeta:
    """LAPACK's integer for each matrix."""
    return fresh(shape[:-2], like, torch.int32)


def pivots(like: Any, shape: Sizes) -> TensorMeta:
    return fresh(shape[:-1], like, torch.int32)


def eig(A: Any, shape: Sizes) -> tuple[TensorMeta, TensorMeta]:
    dtype = COMPLEX_OF_REAL.get(A.dtype, A.dtype)
    # copied from LAPACK's where the matrix is not on the CPU
    vectors = column_major if A.device.type == "cpu" else fresh
    return fresh(shape[:-1], A, dtype), vectors(shape, A, dtype)


def with_factors(A: Any, shape: Sizes, *first: torch.dtype) -> tuple[TensorMeta, ...]:
    """A result for each matrix in each of these dtypes, its factors, and its pivots."""
    return (*[fresh(shape[:-2], A, dtype) for dtype in first], column_major(shape, A), pivots(A, shape))


SQUARE: dict[str, Callable[[Any, Sizes], Any]] = {
    "cholesky": lambda A, shape: fresh(shape, A) if 0 in shape else column_major(shape, A),
    "cholesky_inverse": lambda A, shape: column_major(shape, A),
    "linalg_cholesky_ex linalg_inv_ex": lambda A, shape: (column_major(shape, A), info(A, shape)),
    "linalg_ldl_factor_ex": lambda A, shape: (*with_factors(A, shape), info(A, shape)),
    "linalg_eig": eig,
    "_linalg_eigvals": lambda A, shape: eig(A, shape)[0],
    "_linalg_det": lambda A, shape: with_factors(A, shape, A.dtype),
    "_linalg_slogdet": lambda A, shape: with_factors(A, shape, A.dtype, real(A.dtype)),
    "linalg_matrix_exp": lambda A, shape: fresh(
        shape, A, stride=preserved_strides(shape, A.stride()) if (shape[-1] == 0 or shape[-1] == 1) else None
    ),
}
OF_ANY_SIZE: dict[str, Callable[[Any, Sizes], Any]] = {
    "geqrf": lambda A, shape: (column_major(shape, A), fresh((*shape[:-2], smaller_size(*shape[-2:])), A)),
    "linalg_householder_product": lambda A, shape: column_major(shape, A),
    "linalg_pinv.atol_rtol_tensor": lambda A, shape: fresh(transposed(shape), A),
}
for _square, _table in ((True, SQUARE), (False, OF_ANY_SIZE)):
    shape_table(LINALG, {names: of_matrices(_square, results) for names, results in _table.items()})
shape_table(LINALG, {"ormqr": lambda self, tau, other, *_: column_major(matrix(other), other)})
