"""Shape rules of matrix products."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import always_equal, broadcast_shapes, elementwise_strides, holds
from stator.prims.record import TensorMeta, shape_rule

from .operands import common_device, fresh, overloads, with_in_place

aten = torch.ops.aten
MATMUL = ("matmul",)


def same_dtype(*tensors: Any) -> None:
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {dtype} != {tensor.dtype}")
    common_device(tensors)


@shape_rule(*overloads("mm"), tags=MATMUL)
def mm(self: Any, mat2: Any) -> TensorMeta:
    first, second = tuple(self.shape), tuple(mat2.shape)
    if len(first) != 2:
        raise RuntimeError("self must be a matrix")
    if len(second) != 2:
        raise RuntimeError("mat2 must be a matrix")
    if not holds(first[1] == second[0]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({first[0]}x{first[1]} and {second[0]}x{second[1]})"
        )
    same_dtype(self, mat2)
    return fresh((first[0], second[1]), self)


@with_in_place(*overloads("addmm"), tags=MATMUL)
def addmm(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = mm(mat1, mat2)
    same_dtype(self, mat1)
    check_expands(self, result.shape)
    return result


@shape_rule(*overloads("_addmm_activation"), tags=MATMUL)
def addmm_activation(
    self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, use_gelu: bool = False
) -> TensorMeta:
    return addmm(self, mat1, mat2)


def check_expands(self: Any, shape: tuple[Any, ...]) -> None:
    own = tuple(self.shape)
    if not always_equal(own, shape) and broadcast_shapes(own, shape) != shape:
        raise RuntimeError(f"expand: the tensor of shape {list(own)} cannot be expanded to {list(shape)}")


@shape_rule(*overloads("bmm"), tags=MATMUL)
def bmm(self: Any, mat2: Any) -> TensorMeta:
    first, second = tuple(self.shape), tuple(mat2.shape)
    if len(first) != 3 or len(second) != 3:
        raise RuntimeError("batch1 and batch2 must be 3D tensors")
    if not holds(first[0] == second[0]) or not holds(first[2] == second[1]):
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{first[0]}, {first[2]}] but got: "
            f"[{second[0]}, {second[1]}]."
        )
    same_dtype(self, mat2)
    return fresh((first[0], first[1], second[2]), self)


@shape_rule(*overloads("_grouped_mm"), tags=MATMUL)
def grouped_mm(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> TensorMeta:
    """Multiply groups of rows, of columns or of both, which end at `offs`. Rows of the result begin at 16 bytes."""
    first, second = tuple(self.shape), tuple(mat2.shape)
    dims = (len(first), len(second))
    if not {*dims} <= {2, 3}:
        raise RuntimeError(f"Multiplicands must be 2D or 3D but got mat_a.dim()={dims[0]} and mat_b.dim()={dims[1]}")
    if (offs is None) != (dims == (3, 3)):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d")
    if bias is not None or out_dtype not in (None, self.dtype):
        raise RuntimeError("Bias not supported yet" if bias is not None else "Grouped gemm output dtype must match")
    if self.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise RuntimeError(f"Expected mat_a to be Float32, BFloat16 or Float16 matrix, got {self.dtype}")
    if offs is not None and (offs.dtype is not torch.int32 or len(offs.shape) != 1):
        raise RuntimeError("Offsets have to be int32, in one dimension")
    same_dtype(self, mat2)
    groups = offs.shape[0] if offs is not None else first[0]
    if not holds(first[-1] == second[-2]) or not all(holds(s[0] == groups) for s in (first, second) if len(s) == 3):
        raise RuntimeError(f"grouped_mm: {list(first)} and {list(second)} do not fit, for {groups} groups")
    padding = 16 // self.dtype.itemsize
    for matrix in (self, mat2):
        strides = matrix.stride()[-2:]
        if 1 not in strides or any(stride != 1 and not holds(stride % padding == 0) for stride in strides):
            raise RuntimeError("strides should be multiple of 16 bytes")
    shape = (*((groups,) if dims in ((2, 2), (3, 3)) else ()), first[-2], second[-1])
    columns = -(-shape[-1] // padding) * padding
    strides = (columns, 1) if len(shape) == 2 else (first[-2] * columns, columns, 1)
    return fresh(shape, self, stride=strides)


@with_in_place(*overloads("baddbmm"), tags=MATMUL)
def baddbmm(self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = bmm(batch1, batch2)
    same_dtype(self, batch1)
    check_expands(self, result.shape)
    return result


@with_in_place(*overloads("addbmm"), tags=MATMUL)
def addbmm(self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = bmm(batch1, batch2)
    same_dtype(self, batch1)
    check_expands(self, result.shape[1:])
    return fresh(result.shape[1:], batch1)


@shape_rule(*overloads("mv"), tags=MATMUL)
def mv(self: Any, vec: Any) -> TensorMeta:
    if len(self.shape) != 2 or len(vec.shape) != 1:
        raise RuntimeError(f"vector + matrix @ vector expected, got {len(self.shape)}, {len(vec.shape)}")
    if not holds(self.shape[1] == vec.shape[0]):
        raise RuntimeError(
            f"size mismatch, got input ({self.shape[0]}), mat ({self.shape[0]}x{self.shape[1]}), vec ({vec.shape[0]})"
        )
    same_dtype(self, vec)
    return fresh((self.shape[0],), self)


@with_in_place(*overloads("addmv"), tags=MATMUL)
def addmv(self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = mv(mat, vec)
    check_expands(self, result.shape)
    return result


@shape_rule(*overloads("dot vdot"), tags=MATMUL)
def dot(self: Any, tensor: Any) -> TensorMeta:
    if len(self.shape) != 1 or len(tensor.shape) != 1:
        raise RuntimeError(f"1D tensors expected, but got {len(self.shape)}D and {len(tensor.shape)}D tensors")
    if not holds(self.shape[0] == tensor.shape[0]):
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{self.shape[0]}] and src [{tensor.shape[0]}] to have the same "
            "number of elements"
        )
    if self.dtype is not tensor.dtype:
        raise RuntimeError(f"dot : expected both vectors to have same dtype, but found {self.dtype} and {tensor.dtype}")
    return fresh((), self)


@with_in_place(*overloads("addr"), tags=MATMUL)
def addr(self: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    shape = (vec1.shape[0], vec2.shape[0])
    check_expands(self, shape)
    dtype = torch.promote_types(self.dtype, torch.promote_types(vec1.dtype, vec2.dtype))
    layouts = (
        (tuple(self.shape), self.stride()),
        ((shape[0], 1), (vec1.stride()[0], 0)),
        ((1, shape[1]), (0, vec2.stride()[0])),
    )
    return fresh(shape, self, dtype, elementwise_strides(shape, layouts))


@shape_rule(*overloads("linear"), tags=MATMUL)
def linear(input: Any, weight: Any, bias: Any = None) -> TensorMeta:
    shape = tuple(input.shape)
    out_features = tuple(weight.shape)[:-1]
    if not holds(shape[-1] == weight.shape[-1]):
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({shape[:-1]}x{shape[-1]} and "
            f"{weight.shape[-1]}x{out_features})"
        )
    same_dtype(input, weight)
    return fresh((*shape[:-1], *out_features), input)
