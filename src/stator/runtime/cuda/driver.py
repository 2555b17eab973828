"""The CUDA driver for this process: opened at first use, through the C extension."""

from __future__ import annotations

import functools
from typing import Any

import torch

from stator.base.errors import MissingToolchain
from stator.runtime.tensor_impl import calibrate

try:
    from stator.runtime import _cuda  # type: ignore[attr-defined]
except ImportError:  # installed without a C compiler
    _cuda = None

_DEVICE_TYPES = {"cpu": 0, "cuda": 1}  # numbers of c10


@functools.cache
def open_driver(path: str = "libcuda.so.1", stream_library: str = "libtorch_cuda.so") -> Any:
    """Return the C extension, ready to load and launch. `stream_library`: the one of torch that knows current streams.

    Raises MissingToolchain if the extension was not built, or without a working driver.
    """
    if _cuda is None:
        raise MissingToolchain("stator was installed without a C compiler, which kernels for GPUs need")
    offsets = calibrate()
    _cuda.install(
        None if offsets is None else offsets.as_tuple(),
        torch.Tensor,
        torch.Tensor.data_ptr,
        torch.Tensor.get_device,
        getattr(torch._C, "_cuda_getCurrentRawStream", None),
    )
    try:
        _cuda.open_driver(path, stream_library)
    except RuntimeError as error:
        raise MissingToolchain(f"kernels for GPUs need the CUDA driver: {error}") from error
    return _cuda


def device_code(device: torch.device) -> int:
    """Return a device as TensorImpl holds it: type in the low byte, index in the high one, 255 for none."""
    index = 255 if device.index is None else device.index
    return _DEVICE_TYPES[device.type] | index << 8
