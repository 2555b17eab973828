"""Triton's interpreter for tests: runs kernels on CPU tensors as a GPU would. Import it before anything else loads
Triton."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language.extra
from printed_modules import load_module
from triton import language as tl
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, ScanOps, TensorHandle, _get_np_dtype

from stator import pipeline
from stator.inductor import devices
from stator.inductor.program.steps import KernelSource
from stator.runtime import cuda


def cast(builder: InterpreterBuilder, source: TensorHandle, target: tl.dtype) -> TensorHandle:
    """Conversions as GPUs do them: the interpreter's own cut bfloat16 off instead of rounding it to nearest."""
    values, dtype = source.data, target.scalar
    if source.dtype.scalar == tl.bfloat16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if dtype == tl.bfloat16:
        rounded = torch.from_numpy(np.ascontiguousarray(values.astype(np.float32))).bfloat16()
        return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), dtype)
    return TensorHandle(values.astype(_get_np_dtype(target)), dtype)


InterpreterBuilder.cast_impl = cast


def dot(
    builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, total: TensorHandle, *options: Any
) -> TensorHandle:
    """Products with sums in the total's dtype: the interpreter's own takes the bits of bfloat16 for integers."""
    sides = [cast(builder, side, tl.float32) if side.dtype.scalar == tl.bfloat16 else side for side in (a, b)]
    found = np.matmul(*[side.data for side in sides], dtype=total.data.dtype) + total.data
    return TensorHandle(found, total.dtype.scalar)


InterpreterBuilder.create_dot = dot


def reduce_by_halves(self: ReduceOps, blocks: tuple[tl.core.tensor, ...]) -> list[tl.core.tensor]:
    """The halves of an axis are combined until one element is left. The interpreter's own loop calls the function for
    each element."""
    assert self.axis is not None and not self.keep_dims
    while blocks[0].shape[self.axis] > 1:
        halves = [np.split(block.handle.data, 2, self.axis) for block in blocks]
        sides = [
            [self.to_tensor(one[side], block.dtype) for one, block in zip(halves, blocks, strict=True)]
            for side in (0, 1)
        ]
        combined = self.combine_fn.fn(*sides[0], *sides[1])
        blocks = combined if isinstance(combined, tuple) else (combined,)
    return [self.to_tensor(np.squeeze(block.handle.data, self.axis), block.dtype) for block in blocks]


ReduceOps.generic_reduce = reduce_by_halves


def scan_by_distances(self: ScanOps, blocks: tuple[tl.core.tensor, ...]) -> list[tl.core.tensor]:
    """Each element is combined with that at a distance before it, which doubles from step to step."""
    (block,) = blocks
    values = np.moveaxis(block.handle.data, self.axis, -1)
    distance = 1
    while distance < values.shape[-1]:
        sides = [self.to_tensor(one, block.dtype) for one in (np.roll(values, distance, -1), values)]
        combined = self.combine_fn.fn(*sides).handle.data
        values = np.where(np.arange(values.shape[-1]) < distance, values, combined)
        distance *= 2
    return [self.to_tensor(np.ascontiguousarray(np.moveaxis(values, -1, self.axis)), block.dtype)]


ScanOps.generic_scan = scan_by_distances


def on_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter has no device library: the same functions from numpy or torch."""

    def call(*arguments: Any) -> Any:
        arrays = [argument.handle.data for argument in arguments]
        dtype = arguments[0].dtype.scalar
        result = np.asarray(function(*arrays)).astype(arrays[0].dtype)
        return tl.core.tensor(TensorHandle(result, dtype), arguments[0].type)

    return call


def from_torch(name: str) -> Callable[..., Any]:
    return lambda *arrays: getattr(torch, name)(*map(torch.from_numpy, map(np.ascontiguousarray, arrays))).numpy()


_NAMES = ["expm1", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot", "copysign", "nextafter"]
LIBRARY = SimpleNamespace(
    **{name: on_numpy(getattr(np, name)) for name in [*_NAMES, "exp2", "trunc", "rint", "fmod"]},
    **{
        name: on_numpy(from_torch(name)) for name in ["lgamma", "erfc", "atan2", "rsqrt", "asin", "acos", "atan", "pow"]
    },
    **{name: on_numpy(from_torch(name)) for name in ["asinh", "acosh", "atanh"]},
    mul_rn=on_numpy(np.multiply),
    fast_dividef=on_numpy(np.divide),
)
triton.language.extra.libdevice = LIBRARY  # the head of each printed module imports it from there
pipeline.LANGUAGES["cpu"] = "triton"


launches = 0  # counted for tests


class InterpretedKernel:
    """A kernel with the interface of `stator.runtime.cuda.TritonKernel`."""

    def __init__(self, source: KernelSource) -> None:
        self.module = load_module(source.source, source.symbol)
        self.function = getattr(self.module, source.symbol)

    def bind(self, count: int, sizes: tuple[int, ...] = ()) -> Callable[..., None]:
        grid, index = self.module.launch(*sizes)
        options = {**self.module.BLOCKS, "INDEX": index, "num_warps": self.module.WARPS, **cuda.COMPILER_OPTIONS}

        def launch(*tensors: torch.Tensor) -> None:
            global launches
            assert len(tensors) == count
            launches += 1
            if 0 not in grid:
                try:
                    self.function[grid](*tensors, *sizes, **options)
                except InterpreterError as error:
                    if "AssertionError" not in str(error):  # a program whose kernel is at fault would run eagerly
                        print("FAILED", self.function.__name__, error)
                    raise

        return launch


def load_kernels(sources: Sequence[KernelSource], device: torch.device) -> dict[str, InterpretedKernel]:
    return {source.symbol: InterpretedKernel(source) for source in sources}


cuda.load_kernels = load_kernels
devices.TRAITS["cpu"] = devices.GPU
