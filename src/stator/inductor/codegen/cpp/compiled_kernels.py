"""Compiles kernels for timing: a convolution, and a product with a quantized weight, without what may follow."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stator.inductor.buffers import Buffer, Extern, Layout, Lowered
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.lower.operators.quantized_products import lowered_sums
from stator.inductor.schedule import schedule
from stator.inductor.schedule.convolutions import convolution_kernels
from stator.inductor.schedule.groups import ConvolutionGroup, Group, Schedule
from stator.runtime.build import build_kernels
from stator.runtime.launch import make_kernel

from .kernel_source import print_kernel

_CPU = torch.device("cpu")


def compiled_convolution(found: DirectConvolution) -> Callable[..., None]:
    """What computes the convolution of images with a packed kernel into memory: of three tensors."""
    sizes = {
        "images": (found.images * found.size[0] * found.size[1], found.pixel),
        "packed": (found.packed_elements + found.zeros, 1),
        "result": (found.rows, found.columns),
    }
    buffers = {
        name: Buffer(name, Layout(size, (size[1], 1), torch.float32, _CPU), "computed" if name == "result" else "input")
        for name, size in sizes.items()
    }
    call = Extern(("result",), found, ("images", "packed", None), style="out")
    lowered = Lowered(buffers, [call], ["images", "packed"], ["result"])
    (group,) = convolution_kernels(Schedule((call,)), lowered, fuse=False).steps
    assert isinstance(group, ConvolutionGroup)
    return _built(group, lowered)


def compiled_sums(rows: int, inner: int, columns: int, dtype: torch.dtype, along_memory: bool) -> Callable[..., None]:
    """What multiplies rows of float32 by a matrix of int8, whose columns or rows are contiguous, into memory of this
    dtype: of three tensors."""
    lowered = lowered_sums(rows, inner, columns, dtype, along_memory)
    (group,) = schedule(lowered).steps
    assert isinstance(group, Group)
    kernel, places = _built(group, lowered), [lowered.inputs.index(name) for name in group.reads]

    def product(*given: torch.Tensor) -> None:
        kernel(*(given[place] for place in places), given[-1])

    return product


def _built(group: Group, lowered: Lowered) -> Callable[..., None]:
    kernel = print_kernel(group, lowered.buffers)
    address = build_kernels([kernel])[kernel.symbol]
    arguments = len(group.reads) + len(group.writes)
    return make_kernel(address, arguments, kernel.symbol, sizes=lowered.sizes.hints(kernel.sizes))
