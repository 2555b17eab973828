"""Functions of torch that make constants of symbolic sizes in C++, by simpler operators: they run on fake tensors with
symbolic sizes, in place of torch's. Captured graphs hold torch's functions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from stator.base.errors import Unsupported
from stator.graph.ir.size_bindings import is_symbolic
from stator.prims.decompositions import creation, linear_algebra
from stator.prims.layout import broadcast_shapes, strides_like_channels_last
from stator.prims.operators.checks import check
from stator.prims.operators.histogram import histc
from stator.prims.shape_rules.creation import lower_triangle

from .data_dependent_functions import decomposed, stand_ins

aten = torch.ops.aten


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
    return aten._unsafe_view.default(left * right, shape)  # fails as torch's on products of other layouts


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


@stand_ins.register(torch.masked_select, "masked_select")
def _masked_select(input: torch.Tensor, mask: torch.Tensor, *, out: Any = None) -> torch.Tensor:
    """Index by the mask: the autograd formula of `masked_select` reads the sizes as ints."""
    if out is not None or mask.dtype is not torch.bool or not _is_symbolic(input, mask):
        return torch.masked_select(input, mask, out=out)
    shape = broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return input.expand(shape)[mask.expand(shape)]


@stand_ins.register(torch.broadcast_tensors)
def _broadcast_tensors(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if not _is_symbolic(*tensors):
        return torch.broadcast_tensors(*tensors)  # type: ignore[return-value]
    shape = functools.reduce(broadcast_shapes, (tuple(one.shape) for one in tensors))
    return tuple(one.expand(shape) for one in tensors)


@stand_ins.register(F.adaptive_avg_pool2d)
def _adaptive_avg_pool2d(input: torch.Tensor, output_size: Any) -> torch.Tensor:
    """Means of whole images by eager's steps: the C++ asks which sizes are 1, although the layout does not depend on
    it."""
    is_one = output_size == 1 if type(output_size) is int else tuple(output_size) == (1, 1)
    if not is_one or input.dim() != 4 or not _is_symbolic(input):
        return F.adaptive_avg_pool2d(input, output_size)
    if not strides_like_channels_last(tuple(input.shape), input.stride()):
        return input.mean((-1, -2), keepdim=True)
    return input.mean((-1, -2))[:, None, None].permute(0, 3, 1, 2)


@stand_ins.register(F.adaptive_avg_pool1d)
def _adaptive_avg_pool1d(input: torch.Tensor, output_size: Any) -> torch.Tensor:
    """Means of whole rows, as of images of one row."""
    sizes = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,)
    is_one = type(sizes[0]) is int and sizes == (1,)  # a size that depends on data may be 1, too
    if not is_one or input.dim() != 3 or not _is_symbolic(input):
        return F.adaptive_avg_pool1d(input, output_size)
    return _adaptive_avg_pool2d(input.unsqueeze(-2), 1).squeeze(-2)


@stand_ins.register("fill_diagonal_")
def _fill_diagonal(self: torch.Tensor, fill_value: Any, wrap: bool = False) -> torch.Tensor:
    """Of matrices; where `wrap` is set, the diagonal begins anew in tall ones."""
    if self.dim() != 2 or wrap or not _is_symbolic(self):
        return self.fill_diagonal_(fill_value, wrap)
    self.diagonal().fill_(fill_value)
    return self


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
def gru_cell(
    input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: Any = None, b_hh: Any = None
) -> torch.Tensor:
    """h' = n + z * (h - n) with the gates r, z, n of Cho et al., 2014, in place where torch's function works in place.
    That function raises the errors."""
    tensors = input, hx, w_ih, w_hh
    fits = all(one.dim() == 2 for one in tensors) and input.shape[0] == hx.shape[0]
    fits = fits and input.shape[1] == w_ih.shape[1] and hx.shape[1] == w_hh.shape[1]
    if not _is_symbolic(*tensors) or not fits or any(one.shape[0] != 3 * hx.shape[1] for one in (w_ih, w_hh)):
        return torch.gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    of_input = F.linear(input, w_ih, b_ih).unsafe_split(hx.shape[1], 1)
    of_state = F.linear(hx, w_hh, b_hh).unsafe_split(hx.shape[1], 1)
    reset, update = (of_state[gate].add_(of_input[gate]).sigmoid_() for gate in (0, 1))
    new = (of_input[2] + of_state[2].mul_(reset)).tanh_()
    return (hx - new).mul_(update).add_(new)


@stand_ins.register(torch.lstm_cell)
def _lstm_cell(
    input: torch.Tensor, hx: Any, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """The gates i, f, g, o of Gers et al., 2000, in place where torch's function works in place. That function raises
    the errors."""
    tensors = (input, *hx, w_ih, w_hh)
    fits = len(hx) == 2 and all(one.dim() == 2 and one.shape[0] == input.shape[0] for one in (input, *hx))
    fits = fits and hx[0].shape[1] == hx[1].shape[1] == w_hh.shape[1] and input.shape[1] == w_ih.shape[1]
    if not _is_symbolic(*tensors) or not fits or any(one.shape[0] != 4 * w_hh.shape[1] for one in (w_ih, w_hh)):
        return torch.lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    gates = F.linear(hx[0], w_hh, b_hh).add_(F.linear(input, w_ih, b_ih)).unsafe_split(hx[0].shape[1], 1)
    write, keep, new, show = gates[0].sigmoid_(), gates[1].sigmoid_(), gates[2].tanh_(), gates[3].sigmoid_()
    cell = (keep * hx[1]).add_(write * new)
    return show * torch.tanh(cell), cell


class _RunningProduct(torch.autograd.Function):
    """`cumprod` with its gradient.

    The gradient of an element before the first zero is the sum of gradient * product from there on, divided by the
    element. At the first zero, products leave this element out; behind it, all are zero.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        result = aten.cumprod.default(input, dim)
        ctx.dim = dim
        ctx.save_for_backward(input, result)
        return result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            raise Unsupported("double-backward", "the gradient of cumprod over symbolic sizes is differentiated again")
        input, result = ctx.saved_tensors
        is_zero = input == 0
        zeros = is_zero.cumsum(ctx.dim)
        first = is_zero & (zeros == 1)
        without = gradient * torch.cumprod(input.masked_fill(first, 1), ctx.dim)
        before, at_first = (one.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim) for one in (gradient * result, without))
        return torch.where(zeros == 0, before / input, torch.where(first, at_first, 0)), None


@stand_ins.register(torch.cumprod, "cumprod")
def _cumprod(input: torch.Tensor, dim: int, **options: Any) -> torch.Tensor:
    """torch's gradient makes constants of the sizes."""
    trained = torch.is_grad_enabled() and input.requires_grad and not input.is_complex() and input.dim() > 0
    if not trained or options or not _is_symbolic(input):
        return torch.cumprod(input, dim, **options)
    return _RunningProduct.apply(input, dim)  # type: ignore[no-any-return]


def _is_float(input: Any) -> bool:
    return isinstance(input, torch.Tensor) and input.is_floating_point()


@stand_ins.register(torch.cov, "cov")
def _cov(input: torch.Tensor, *, correction: Any = 1, fweights: Any = None, aweights: Any = None) -> torch.Tensor:
    """Of variables in rows. torch's function weighs observations, raises the errors, and warns of too few."""
    fits = _is_float(input) and input.dim() <= 2 and fweights is None and aweights is None and type(correction) is int
    if not fits or not _is_symbolic(input) or input.numel() == 0:
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = input if input.dim() == 2 else input.view(1, -1)
    freedom = rows.shape[1] - correction
    if freedom <= 0:
        return torch.cov(input, correction=correction)
    rows = rows - rows.mean(1, keepdim=True)
    return (rows.mm(rows.t()) / freedom).squeeze()


@stand_ins.register(torch.corrcoef, "corrcoef")
def _corrcoef(input: torch.Tensor) -> torch.Tensor:
    """Covariances over the products of standard deviations."""
    if not _is_float(input) or input.dim() > 2 or not _is_symbolic(input):
        return torch.corrcoef(input)
    found = _cov(input)
    if not found.dim():
        return found / found
    deviations = found.diag().sqrt()
    return (found / deviations[:, None] / deviations[None]).clamp(-1, 1)


@stand_ins.register(torch.vander)
def _vander(x: torch.Tensor, N: Any = None, increasing: bool = False) -> torch.Tensor:
    """Running products of copies, behind ones. torch's function raises the errors, that of its gradient, too."""
    columns = x.shape[0] if N is None and x.dim() == 1 else N
    trained = torch.is_grad_enabled() and x.requires_grad
    if x.dim() != 1 or not _is_float(x) or trained or not is_symbolic((tuple(x.shape), columns)) or columns < 2:
        return torch.vander(x, N, increasing)
    powers = torch.cumprod(x.unsqueeze(-1).expand(x.shape[0], columns - 1), -1)
    made = torch.cat([x.new_ones(x.shape[0], 1), powers], -1)
    return made if increasing else made.flip(-1)


@stand_ins.register(torch.combinations)
def _combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> torch.Tensor:
    """Elements by all ascending tuples of positions, whose number is known."""
    if input.dim() != 1 or not 1 < r < 5 or not _is_symbolic(input):
        return torch.combinations(input, r, with_replacement)
    length = input.shape[0]
    places = torch.arange(length, device=input.device)
    grids = [places.view([-1 if at == dim else 1 for at in range(r)]) for dim in range(r)]
    ascends = torch.ones([length] * r, dtype=torch.bool, device=input.device)
    for one, following in itertools.pairwise(grids):
        ascends = ascends & (one <= following if with_replacement else one < following)
    count = math.prod(length + at if with_replacement else length - at for at in range(r)) // math.factorial(r)
    return input[torch.nonzero_static(ascends, size=count)]


@stand_ins.register(torch.gradient)
def _gradient(input: torch.Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> Any:
    """Differences of neighbours, inside of twice the distance. torch's function raises the errors, and takes
    coordinates."""
    dims = range(input.dim()) if dim is None else [dim] if type(dim) is int else dim
    steps = [1 if spacing is None else spacing] * len(dims) if not isinstance(spacing, (tuple, list)) else spacing
    fits = len(steps) == len(dims) and all(type(one) in (int, float) for one in steps) and edge_order == 1
    fits = fits and input.dim() > 0 and len({one % input.dim() for one in dims}) == len(dims)
    if not fits or not _is_float(input) or not _is_symbolic(input) or any(input.shape[one] < 2 for one in dims):
        options = {} if spacing is None else {"spacing": spacing}
        return torch.gradient(input, dim=dim, edge_order=edge_order, **options)
    found = []
    for one, step in zip(dims, steps, strict=True):
        length = input.shape[one]
        differences = input.narrow(one, 1, length - 1) - input.narrow(one, 0, length - 1)
        inside = (input.narrow(one, 2, length - 2) - input.narrow(one, 0, length - 2)) / step / 2
        ends = (differences.narrow(one, at, 1) / step for at in (0, length - 2))
        found.append(torch.cat([next(ends), inside, next(ends)], one))
    return tuple(found)


@stand_ins.register(torch.histc, "histc")
def _histc(input: torch.Tensor, bins: Any = 100, min: Any = 0, max: Any = 0, **options: Any) -> torch.Tensor:
    if not is_symbolic(bins) or options:
        return torch.histc(input, bins, min, max, **options)
    return histc(input.detach(), bins, min, max)  # type: ignore[no-any-return]


@stand_ins.register(torch.fft.fftfreq)
def _fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
    if not is_symbolic(n) or options:
        return torch.fft.fftfreq(n, d, dtype=dtype, device=device, **options)
    steps = torch.arange(n, dtype=dtype or torch.get_default_dtype(), device=device)
    return torch.where(steps < (n + 1) // 2, steps, steps - n) * (1.0 / (n * d))


@stand_ins.register(torch.fft.rfftfreq)
def _rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
    if not is_symbolic(n) or options:
        return torch.fft.rfftfreq(n, d, dtype=dtype, device=device, **options)
    return torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), device=device) * (1.0 / (n * d))


def _window(original: Any, values: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Register a window of two or more numbers, by its values at places from 0 to 2."""

    def run(
        window_length: Any, periodic: bool = True, *numbers: Any, dtype: Any = None, **options: Any
    ) -> torch.Tensor:
        made_of = dtype or torch.get_default_dtype()
        wide = made_of in (torch.float32, torch.float64) and options.keys() <= {"device"}
        if not is_symbolic(window_length) or numbers or not wide or window_length < 2:
            return original(window_length, periodic, *numbers, dtype=dtype, **options)
        step = 2 / (window_length if periodic else window_length - 1)
        return values(torch.arange(window_length, dtype=made_of, **options) * step)

    stand_ins.register(original)(run)


_BETA, _LARGEST_OF_KAISER = 12.0, 18948.925349296309  # i0(12)
_window(torch.hann_window, lambda place: 0.5 - (place * math.pi).cos() * 0.5)
_window(torch.hamming_window, lambda place: 0.54 - (place * math.pi).cos() * 0.46)
_window(
    torch.blackman_window, lambda place: 0.42 - (place * math.pi).cos() * 0.5 + (place * (2 * math.pi)).cos() * 0.08
)
_window(torch.bartlett_window, lambda place: 1 - (place - 1).abs())
_window(
    torch.kaiser_window,
    lambda place: torch.i0(_BETA * (1 - (place - 1) ** 2).clamp(min=0).sqrt()) / _LARGEST_OF_KAISER,
)


@stand_ins.register(torch.diagonal, "diagonal")
def _diagonal(input: torch.Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1, **names: Any) -> torch.Tensor:
    """The main diagonal behind the first columns, or rows."""
    if not is_symbolic(offset) or names:
        return torch.diagonal(input, offset, dim1, dim2, **names)
    dim, first = (dim2, offset) if offset >= 0 else (dim1, -offset)
    return torch.diagonal(aten.slice.Tensor(input, dim, first), 0, dim1, dim2)


@stand_ins.register(torch.diag_embed, "diag_embed")
def _diag_embed(input: torch.Tensor, offset: Any = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    if not is_symbolic(offset):
        return torch.diag_embed(input, offset, dim1, dim2)
    return decomposed(aten.diag_embed.default, input, offset, dim1, dim2)  # type: ignore[no-any-return]


@stand_ins.register(torch.diag, "diag")
def _diag(input: torch.Tensor, diagonal: Any = 0, **options: Any) -> torch.Tensor:
    if not is_symbolic(diagonal) or options or input.dim() not in (1, 2):
        return torch.diag(input, diagonal, **options)
    return _diag_embed(input, diagonal) if input.dim() == 1 else _diagonal(input, diagonal).clone()


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


# By mode, number of spatial dimensions, and antialias
_KERNELS = {
    ("nearest", 1, False): aten.upsample_nearest1d.default,
    ("nearest", 2, False): aten.upsample_nearest2d.default,
    ("nearest", 3, False): aten.upsample_nearest3d.default,
    ("nearest-exact", 1, False): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 2, False): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 3, False): aten._upsample_nearest_exact3d.default,
    ("linear", 1, False): aten.upsample_linear1d.default,
    ("bilinear", 2, False): aten.upsample_bilinear2d.default,
    ("bilinear", 2, True): aten._upsample_bilinear2d_aa.default,
    ("bicubic", 2, False): aten.upsample_bicubic2d.default,
    ("bicubic", 2, True): aten._upsample_bicubic2d_aa.default,
    ("trilinear", 3, False): aten.upsample_trilinear3d.default,
}


@stand_ins.register(F.interpolate)
def _interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """Call the kernel's operator with sizes as ATen computes them: a size times its factor, rounded down. What torch
    refuses, it refuses here, too."""
    spatial = input.dim() - 2
    kernel = _KERNELS.get((mode, spatial, antialias))
    given = size if size is not None else scale_factor
    each = list(given) if isinstance(given, (tuple, list)) else [given] * spatial
    wrong = (size is None) == (scale_factor is None) or len(each) != spatial
    wrong |= align_corners is not None and mode.startswith("nearest")
    wrong |= size is not None and bool(recompute_scale_factor)
    if kernel is None or wrong or not is_symbolic((tuple(input.shape), each)):
        return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    corners = [] if mode.startswith("nearest") else [bool(align_corners)]
    if size is not None:
        return kernel(input, each, *corners)  # type: ignore[no-any-return, operator]
    sizes = [math.floor(length * factor) for length, factor in zip(input.shape[2:], each, strict=True)]
    factors = [] if recompute_scale_factor else each
    return kernel(input, sizes, *corners, *factors)  # type: ignore[no-any-return, operator]


@stand_ins.register(F.max_pool1d)
def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Pool rows of one line in two dimensions, as ATen does for gradients."""
    if not is_symbolic(tuple(input.shape)) or not 2 <= input.dim() <= 3:
        plain: Any = F.max_pool1d
        return plain(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    given = (kernel_size, kernel_size if stride is None else stride, padding, dilation)
    window, steps, around, spread = (one[0] if isinstance(one, (tuple, list)) else one for one in given)
    pool: Any = F.max_pool2d
    found = pool(input.unsqueeze(-2), (1, window), (1, steps), (0, around), (1, spread), ceil_mode, return_indices)
    return tuple(one.squeeze(-2) for one in found) if return_indices else found.squeeze(-2)


def _centred_window(window: Any, length: Any, win_length: Any, like: torch.Tensor) -> Any:
    """The window, or ones, with zeros on both sides up to `length`."""
    if window is None:
        window = like.new_ones(win_length)
    before = (length - win_length) // 2
    return F.pad(window, (before, length - win_length - before)) if win_length != length else window


def _is_window(window: Any, n_fft: int, hop_length: int, win_length: int) -> bool:
    """Whether these are the ints that torch takes, and `window` has `win_length` elements."""
    ints = all(type(one) is int for one in (n_fft, hop_length, win_length))
    fits = ints and hop_length > 0 and 0 < win_length <= n_fft
    return fits and (window is None or tuple(window.shape) == (win_length,))


@stand_ins.register(torch.stft)
def _stft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """Fourier transforms of frames that begin each `hop_length` samples. torch's function raises the errors."""
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    real = not input.is_complex() and (window is None or not window.is_complex())
    taken = input.is_floating_point() and return_complex and align_to_window is None and input.dim() in (1, 2)
    if not _is_symbolic(input) or not real or not taken or not _is_window(window, n_fft, hop, length):
        plain: Any = torch.stft
        options = center, pad_mode, normalized, onesided, return_complex
        return plain(input, n_fft, hop_length, win_length, window, *options, align_to_window=align_to_window)
    signal = input if input.dim() == 2 else input[None]
    if center:
        signal = F.pad(signal[None], (n_fft // 2, n_fft // 2), pad_mode)[0]
    frames = signal.unfold(1, n_fft, hop)  # fails where the signal is shorter than a frame
    if window is not None or length < n_fft:
        frames = frames * _centred_window(window, n_fft, length, signal)
    mode = 1 if normalized else 0  # by the root of n_fft
    found = aten._fft_r2c.default(frames, [2], mode, onesided is not False).transpose(1, 2)
    return found if input.dim() == 2 else found[0]


@stand_ins.register(torch.istft, "istft")
def _istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Any = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """Add the frames of an inverse transform, divided by the sum of the windows' squares. The graph checks when it
    runs that this sum is nowhere zero. torch's function raises the other errors, and warns of missing samples."""
    hop, extent = hop_length or n_fft // 4, win_length or n_fft
    taken = input.is_complex() and input.dim() in (2, 3) and input.shape[-2] == n_fft // 2 + 1 and onesided is not False
    total = n_fft + hop * (input.shape[-1] - 1)
    first = n_fft // 2 if center else 0
    last = total - first if length is None else first + length
    taken = taken and not return_complex and (window is None or window.is_floating_point())
    if not taken or not _is_window(window, n_fft, hop, extent) or not first < last <= total:
        plain: Any = torch.istft
        options = center, normalized, onesided, length, return_complex
        return plain(input, n_fft, hop_length, win_length, window, *options)
    spectra = (input if input.dim() == 3 else input[None]).transpose(1, 2)
    frames = aten._fft_c2r.default(spectra, [2], 1 if normalized else 2, n_fft)
    shape = _centred_window(window, n_fft, extent, frames)
    overlap = shape.square().expand(1, spectra.shape[1], n_fft)
    sums = aten.unfold_backward.default(frames * shape, [frames.shape[0], total], 1, n_fft, hop)
    weights = aten.unfold_backward.default(overlap, [1, total], 1, n_fft, hop)[:, first:last]
    check(weights.abs().min() >= 1e-11, "RuntimeError", "istft: window overlap add min: 1")
    signal = sums[:, first:last] / weights
    return signal if input.dim() == 3 else signal[0]


@stand_ins.register(torch._C._nn.pad_sequence)
def _pad_sequence(
    sequences: Sequence[torch.Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor:
    """Pad to the largest of the first sizes. torch's function raises the errors."""
    shapes = [tuple(one.shape) for one in sequences]
    fits = len(shapes) > 0 and all(shape[1:] == shapes[0][1:] for shape in shapes) and padding_side in ("left", "right")
    if not is_symbolic(shapes) or not fits or not shapes[0]:
        plain: Any = torch._C._nn.pad_sequence
        return plain(sequences, batch_first, padding_value, padding_side)  # type: ignore[no-any-return]
    longest = shapes[0][0]
    for shape in shapes[1:]:
        longest = torch.sym_max(longest, shape[0])
    zeros = (0, 0) * (len(shapes[0]) - 1)
    padded = []
    for one, shape in zip(sequences, shapes, strict=True):
        missing = longest - shape[0]
        amounts = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(aten.constant_pad_nd.default(one, (*zeros, *amounts), padding_value))
    return torch.stack(padded, 0 if batch_first else 1)
