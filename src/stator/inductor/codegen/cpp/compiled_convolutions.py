"""Compiles convolutions without anything that follows them, for timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stator.inductor.buffers import Buffer, Extern, Layout, Lowered
from stator.inductor.convolutions import DirectConvolution
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule.convolutions import convolution_kernels
from stator.inductor.schedule.groups import ConvolutionGroup, Schedule
from stator.runtime.build import build_kernels
from stator.runtime.launch import make_kernel

from .kernel_source import print_kernel

_CPU = torch.device("cpu")


def compiled_convolutions(found: Sequence[DirectConvolution]) -> list[Callable[..., None]]:
    """What computes each of these convolutions of images with a packed kernel into memory: of three tensors. All are
    compiled at once."""
    printed = [_printed(one) for one in found]
    addresses = build_kernels([kernel for kernel, _ in printed])
    return [make_kernel(addresses[kernel.symbol], 3, kernel.symbol, sizes=sizes) for kernel, sizes in printed]


def _printed(found: DirectConvolution) -> tuple[KernelSource, tuple[int, ...]]:
    """The kernel, and the sizes that it is called with."""
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
    kernel = print_kernel(group, buffers)
    return kernel, lowered.sizes.hints(kernel.sizes)
