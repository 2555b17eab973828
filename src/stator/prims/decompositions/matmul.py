"""Matrix products with additions, by the primitives `mm` and `bmm`."""

from __future__ import annotations

from typing import Any

import torch

from stator.prims.type_promotion import is_integral

from .decomposition_decorator import decomposes

aten = torch.ops.aten


def combined(self: Any, product: Any, beta: Any, alpha: Any) -> Any:
    """Return beta * self + alpha * product; beta = 0 ignores `self` even if it holds NaN."""
    if is_integral(product.dtype):
        alpha, beta = int(alpha), int(beta)  # as eager converts them
    if alpha != 1:
        product = aten.mul.Tensor(product, alpha)
    if beta == 0:
        return product
    return aten.add.Tensor(product, self if beta == 1 else aten.mul.Tensor(self, beta))


@decomposes("addmm")
def addmm(self: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return combined(self, aten.mm.default(mat1, mat2), beta, alpha)


@decomposes("baddbmm")
def baddbmm(self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return combined(self, aten.bmm.default(batch1, batch2), beta, alpha)


@decomposes("addbmm")
def addbmm(self: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return combined(self, aten.sum.dim_IntList(aten.bmm.default(batch1, batch2), [0]), beta, alpha)


@decomposes("mv")
def mv(self: Any, vec: Any) -> Any:
    return aten.squeeze.dim(aten.mm.default(self, aten.unsqueeze.default(vec, 1)), 1)


@decomposes("addmv")
def addmv(self: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return combined(self, mv(mat, vec), beta, alpha)


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
