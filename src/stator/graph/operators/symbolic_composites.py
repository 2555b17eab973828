"""Functions of torch that make constants of symbolic sizes in C++, by simpler operators: they run on fake tensors with
symbolic sizes, in place of torch's. Captured graphs hold torch's functions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from stator.graph.ir.size_bindings import is_symbolic
from stator.prims.decompositions import creation
from stator.prims.layout import broadcast_shapes
from stator.prims.operators.checks import check
from stator.prims.shape_rules.creation import lower_triangle

from .data_dependent_functions import stand_ins

aten = torch.ops.aten


def _is_symbolic(*tensors: Any) -> bool:
    return is_symbolic([tuple(one.shape) for one in tensors if isinstance(one, torch.Tensor)])


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


@stand_ins.register(torch.linspace)
def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> torch.Tensor:
    made = NotImplemented
    if is_symbolic(steps) and options.keys() <= {"dtype", "device"}:
        made = creation.linspace(start, end, steps, **options)
    return torch.linspace(start, end, steps, **options) if made is NotImplemented else made


@stand_ins.register(torch.gru_cell)
def _gru_cell(
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
