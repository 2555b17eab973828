"""Functions of torch that make constants of symbolic sizes in C++, by simpler operators: they run on fake tensors with
symbolic sizes, in place of torch's. Captured graphs hold torch's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from stator.graph.ir.size_bindings import is_symbolic
from stator.prims.decompositions import creation, linear_algebra
from stator.prims.layout import broadcast_shapes
from stator.prims.shape_rules.creation import lower_triangle

from .data_dependent_functions import stand_ins


def _is_symbolic(*tensors: Any) -> bool:
    return is_symbolic([tuple(one.shape) for one in tensors if isinstance(one, torch.Tensor)])


@stand_ins.register(torch.kron, "kron")
def _kron(input: torch.Tensor, other: torch.Tensor, *, out: Any = None) -> torch.Tensor:
    """The products of all pairs of elements. The dimensions of the operands alternate in the product."""
    if out is not None or not _is_symbolic(input, other):
        return torch.kron(input, other, out=out)
    rank = max(input.dim(), other.dim())
    first, second = ((1,) * (rank - one.dim()) + tuple(one.shape) for one in (input, other))
    left = input.reshape([size for pair in zip(first, (1,) * rank, strict=True) for size in pair])
    right = other.reshape([size for pair in zip((1,) * rank, second, strict=True) for size in pair])
    shape = [one * two for one, two in zip(first, second, strict=True)]
    return torch.ops.aten._unsafe_view.default(left * right, shape)  # fails as torch's on products of other layouts


@stand_ins.register(torch.take_along_dim, "take_along_dim")
def _take_along_dim(
    input: torch.Tensor, indices: torch.Tensor, dim: int | None = None, *, out: Any = None
) -> torch.Tensor:
    """`gather` after the other dimensions are broadcast. What torch refuses, it refuses here, too."""
    rank = input.dim()
    refused = (
        indices.dtype is not torch.int64 or indices.dim() != rank or (dim is not None and dim not in range(-rank, rank))
    )
    if dim is None or out is not None or refused or not _is_symbolic(input, indices):
        return torch.take_along_dim(input, indices, dim, out=out)
    dim %= rank
    own, wanted = list(input.shape), list(indices.shape)
    own[dim], wanted[dim] = wanted[dim], own[dim]
    return input.expand(broadcast_shapes(tuple(input.shape), tuple(wanted))).gather(
        dim, indices.expand(broadcast_shapes(tuple(own), tuple(indices.shape)))
    )


@stand_ins.register(torch.block_diag)
def _block_diag(*tensors: torch.Tensor) -> torch.Tensor:
    if not _is_symbolic(*tensors) or any(one.dim() > 2 or not one.numel() for one in tensors):
        return torch.block_diag(*tensors)
    return linear_algebra.block_diag(tensors)  # type: ignore[no-any-return]


@stand_ins.register(F.affine_grid)
def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool | None = None) -> torch.Tensor:
    """Positions from -1 to 1 in each dimension, mapped by one matrix for each image. torch's function raises
    the errors and warns of one pixel in a dimension."""
    rank = len(size) - 2
    fits = rank in (2, 3) and theta.is_floating_point() and tuple(theta.shape[1:]) == (rank, rank + 1)
    spatial = tuple(size[2:])
    warns = align_corners is None or (align_corners and any(one == 1 for one in spatial))
    if not is_symbolic(tuple(size)) or not fits or warns or not all(one > 0 for one in size):
        return F.affine_grid(theta, size, align_corners)  # type: ignore[arg-type]
    lines = []
    for axis, steps in enumerate(spatial):
        line = creation.linspace(-1.0, 1.0, steps, dtype=theta.dtype, device=theta.device)
        line = line if align_corners else line * (steps - 1) / steps
        lines.append(line.view([-1 if axis == dim else 1 for dim in range(rank)]).expand(spatial))
    positions = torch.stack([*reversed(lines), torch.ones_like(lines[0])], -1)  # the last dimension counts x first
    flat = positions.view(1, -1, rank + 1).expand(size[0], -1, -1)
    return flat.bmm(theta.transpose(1, 2)).view(size[0], *spatial, rank)


def _spaced(original: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    def run(start: Any, end: Any, steps: Any, *base: float, **options: Any) -> torch.Tensor:
        made = NotImplemented
        if is_symbolic(steps) and options.keys() <= {"dtype", "device"}:
            made = rule(start, end, steps, *base, **options)
        return original(start, end, steps, *base, **options) if made is NotImplemented else made

    return run


@stand_ins.register(torch.gru_cell)
def _gru_cell(
    input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: Any = None, b_hh: Any = None
) -> torch.Tensor:
    """h' = n + z * (h - n) with the gates r, z, n of Cho et al., 2014. torch's function raises the errors."""
    tensors = input, hx, w_ih, w_hh
    fits = all(one.dim() == 2 for one in tensors) and input.shape[0] == hx.shape[0]
    if not _is_symbolic(*tensors) or not fits or input.shape[1] != w_ih.shape[1] or hx.shape[1] != w_hh.shape[1]:
        return torch.gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    of_input, of_state = F.linear(input, w_ih, b_ih).chunk(3, 1), F.linear(hx, w_hh, b_hh).chunk(3, 1)
    reset, update = (torch.sigmoid(of_state[gate] + of_input[gate]) for gate in (0, 1))
    new = torch.tanh(of_input[2] + of_state[2] * reset)
    return (hx - new) * update + new


def _positions(original: Callable[..., Any], triangle: Callable[..., Any], count: Callable[..., Any]) -> None:
    """Register the positions of a triangle's elements in row-major order."""

    def run(row: Any, col: Any, offset: Any = 0, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
        if not is_symbolic((row, col, offset)) or options:
            return original(row, col, offset, dtype=dtype, device=device, **options)
        mask = triangle(torch.ones(row, col, dtype=torch.bool, device=device), offset)
        places = torch.nonzero_static(mask, size=count(row, col, offset))
        return places.t().contiguous().to(dtype or torch.int64)

    stand_ins.register(original)(run)


_positions(torch.tril_indices, torch.tril, lower_triangle)
_positions(torch.triu_indices, torch.triu, lambda row, col, offset: row * col - lower_triangle(row, col, offset - 1))
stand_ins.register(torch.linspace)(_spaced(torch.linspace, creation.linspace))
stand_ins.register(torch.logspace)(_spaced(torch.logspace, creation.logspace))
