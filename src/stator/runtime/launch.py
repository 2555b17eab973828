"""Addresses to callables: kernels called on tensors, and cached views of parameters.

The C extension implements both; without it ctypes does, slower. Nothing here allocates memory.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .tensor_impl import calibrate

try:
    from . import _launch  # type: ignore[attr-defined]
except ImportError:  # installed without a C compiler
    _launch = None

UNCHECKED_VERSION = -1

if _launch is not None:
    _offsets = calibrate()
    _launch.install(
        None if _offsets is None else _offsets.as_tuple(),
        torch.Tensor,
        torch.Tensor.data_ptr,
        torch.as_strided,
        torch.Tensor.storage_offset,
        torch.Tensor.untyped_storage,
        torch.get_num_threads,
    )


def native() -> bool:
    """Whether the C extension is in use."""
    return _launch is not None


def make_kernel(address: int, count: int, name: str, *, small: bool = False, sizes: int = 0) -> Callable[..., None]:
    """Return a callable that runs the kernel at `address` on `count` tensors and `sizes` ints (ABI in kernel_abi.md).

    small: keep the interpreter lock, because the kernel is very short. The callable raises IndexError if the kernel met
        an index out of range, TypeError for wrong arguments, RuntimeError for a tensor without memory.
    """
    if _launch is not None:
        return _launch.Kernel(address, count, name, small, sizes)
    return CtypesKernel(address, count, name, sizes)


def make_static_view(
    size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a callable that makes this view of a tensor, relative to the tensor's start; cached until its storage
    changes."""
    return _launch.StaticView(size, stride, offset) if _launch is not None else UncachedView(size, stride, offset)


def make_layout_check(
    template: torch.Tensor, repair: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a callable that returns its tensor if it has the layout, dtype and device of `template`, else `repair` of
    it."""
    return _launch.LayoutCheck(template, repair) if _launch is not None else repair


def dispatch_keys(tensor: torch.Tensor) -> int:
    """Return the dispatch keys of a tensor as a number."""
    return torch._C._dispatch_keys(tensor).raw_repr()


def layouts(tensors: Sequence[torch.Tensor]) -> Any:
    """Return an object that is equal for tensors of equal strides and dispatch keys."""
    return [(tensor.stride(), dispatch_keys(tensor)) for tensor in tensors]


def places(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return the storage of each tensor, as the address of its C++ object, and its offset there: pairs of int64."""
    pairs = [(tensor.untyped_storage()._cdata, tensor.storage_offset()) for tensor in tensors]
    return array("q", itertools.chain.from_iterable(pairs)).tobytes()


def lie_at(tensors: Sequence[torch.Tensor], known: bytes) -> bool:
    """Return whether the tensors lie at the places that `places` returned."""
    return places(tensors) == known


def memory(tensors: Sequence[torch.Tensor]) -> tuple[bytes, list[torch.UntypedStorage]]:
    """Return the places of tensors, and their storages: while these live, no other storage has their addresses."""
    return places(tensors), [tensor.untyped_storage() for tensor in tensors]


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version of each tensor, UNCHECKED_VERSION for tensors made in inference mode, which have none."""
    return [UNCHECKED_VERSION if tensor.is_inference() else tensor._version for tensor in tensors]


if _launch is not None and _offsets is not None:  # many times as fast
    dispatch_keys, layouts, places = _launch.dispatch_keys, _launch.layouts, _launch.places
    lie_at, memory, versions = _launch.lie_at, _launch.memory, _launch.versions

_thread = threading.local()


class CtypesKernel:
    """`_launch.Kernel` without the C extension."""

    __slots__ = ("count", "function", "name", "sizes")

    def __init__(self, address: int, count: int, name: str, sizes: int = 0) -> None:
        parameters = [ctypes.c_void_p] * (2 if sizes else 1)
        self.function = ctypes.CFUNCTYPE(None, *parameters)(address)
        self.count, self.sizes = count, sizes
        self.name = name

    def __call__(self, *arguments: Any) -> None:
        if len(arguments) != self.count + self.sizes:
            expected = f"{self.count} tensors" + (f" and {self.sizes} sizes" if self.sizes else "")
            raise TypeError(f"kernel {self.name} takes {expected}, not {len(arguments)} arguments")
        tensors, numbers = arguments[: self.count], arguments[self.count :]
        if any(not -(2**63) <= number < 2**63 for number in numbers):
            raise OverflowError(f"a size of kernel {self.name} does not fit in 64 bits")
        sizes = (ctypes.c_int64 * max(self.sizes, 1))(*numbers)
        error = (ctypes.c_int64 * 3)()
        pointers = (ctypes.c_void_p * (self.count + 1))()
        for i, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"argument {i} of kernel {self.name} must be a tensor, not {type(tensor).__name__}")
            address = tensor.data_ptr()
            if not address and tensor.numel():
                raise RuntimeError(f"argument {i} of kernel {self.name} is a tensor without memory")
            pointers[i] = address
        pointers[self.count] = ctypes.addressof(error)
        if not getattr(_thread, "ready", False):
            torch.get_num_threads()  # torch sets OpenMP's number of threads lazily, per thread
            _thread.ready = True
        given = (ctypes.addressof(sizes),) if self.sizes else ()
        self.function(ctypes.addressof(pointers), *given)
        if error[0]:
            raise IndexError(
                f"index {error[1]} is out of bounds for dimension with size {error[2]} (in kernel {self.name})"
            )


class UncachedView:
    """`_launch.StaticView` without the C extension, and without its cache."""

    __slots__ = ("offset", "size", "stride")

    def __init__(self, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
        self.size, self.stride, self.offset = size, stride, offset

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(tensor, self.size, self.stride, tensor.storage_offset() + self.offset)
