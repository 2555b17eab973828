"""Shape rules of matrix products."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.layout import always_equal, broadcast_shapes, elementwise_strides, holds
from stator.prims.record import TensorMeta, shape_rule
from stator.prims.refusal import refuse_if

from .operands import common_device, fresh, overloads, shape_table, with_in_place

aten = torch.ops.aten
MATMUL = ("matmul",)


def same_dtype(*tensors: Any) -> None:
    dtype = tensors[0].dtype
    for tensor in tensors:
        refuse_if(tensor.dtype is not dtype)
    common_device(tensors)


@shape_rule(*overloads("mm"), tags=MATMUL)
def mm(self: Any, mat2: Any) -> TensorMeta:
    first, second = tuple(self.shape), tuple(mat2.shape)
    refuse_if(len(first) != 2 or len(second) != 2 or not holds(first[1] == second[0]))
    same_dtype(self, mat2)
    return fresh((first[0], second[1]), self)


@with_in_place(*overloads("addmm"), tags=MATMUL)
def addmm(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = mm(mat1, mat2)
    same_dtype(self, mat1)
    check_expands(self, result.shape)
    return result


def check_expands(self: Any, shape: tuple[Any, ...]) -> None:
    own = tuple(self.shape)
    refuse_if(not always_equal(own, shape) and broadcast_shapes(own, shape) != shape)


@shape_rule(*overloads("bmm"), tags=MATMUL)
def bmm(self: Any, mat2: Any) -> TensorMeta:
    first, second = tuple(self.shape), tuple(mat2.shape)
    refuse_if(len(first) != 3 or len(second) != 3)
    refuse_if(not holds(first[0] == second[0]) or not holds(first[2] == second[1]))
    same_dtype(self, mat2)
    return fresh((first[0], first[1], second[2]), self)


@shape_rule(*overloads("_grouped_mm"), tags=MATMUL)
def grouped_mm(self: Any, mat2: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> TensorMeta:
    """Multiply groups of rows, of columns or of both, which end at `offs`. Rows of the result begin at 16 bytes."""
    first, second = tuple(self.shape), tuple(mat2.shape)
    dims = (len(first), len(second))
    refuse_if(not {*dims} <= {2, 3} or (offs is None) != (dims == (3, 3)))
    refuse_if(bias is not None or out_dtype not in (None, self.dtype))
    refuse_if(self.dtype not in (torch.float32, torch.float16, torch.bfloat16))
    refuse_if(offs is not None and (offs.dtype is not torch.int32 or len(offs.shape) != 1))
    same_dtype(self, mat2)
    groups = offs.shape[0] if offs is not None else first[0]
    refuse_if(
        not holds(first[-1] == second[-2]) or not all(holds(s[0] == groups) for s in (first, second) if len(s) == 3)
    )
    padding = 16 // self.dtype.itemsize
    for matrix in (self, mat2):
        strides = matrix.stride()[-2:]
        refuse_if(1 not in strides or any(stride != 1 and not holds(stride % padding == 0) for stride in strides))
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
    refuse_if(len(self.shape) != 2 or len(vec.shape) != 1 or not holds(self.shape[1] == vec.shape[0]))
    same_dtype(self, vec)
    return fresh((self.shape[0],), self)


@with_in_place(*overloads("addmv"), tags=MATMUL)
def addmv(self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> TensorMeta:
    result = mv(mat, vec)
    check_expands(self, result.shape)
    return result


@shape_rule(*overloads("dot vdot"), tags=MATMUL)
def dot(self: Any, tensor: Any) -> TensorMeta:
    refuse_if(len(self.shape) != 1 or len(tensor.shape) != 1 or not holds(self.shape[0] == tensor.shape[0]))
    refuse_if(self.dtype is not tensor.dtype)
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
    refuse_if(not holds(shape[-1] == weight.shape[-1]))
    same_dtype(input, weight)
    return fresh((*shape[:-1], *out_features), input)


shape_table(MATMUL, {"_addmm_activation": lambda self, mat1, mat2, **_: addmm(self, mat1, mat2)})
