"""Products of matrices on GPUs by cuBLASLt itself: ATen's operators around it take most of the host's time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from stator.runtime.tensor_impl import calibrate

from . import driver

# Operators that write into `out`: how many dimensions their matrices have, and whether a bias comes first
DIRECT_PRODUCTS = {"aten.mm.out": (2, False), "aten.addmm.out": (2, True), "aten.bmm.out": (3, False)}
_LIBRARIES = ("libcublasLt.so.13", "libcublasLt.so.12")


def direct_product(name: str, usual: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a callable with the arguments of `usual`, the callable of an operator that writes into `out`.

    For half floats it calls cuBLASLt, with sums in float32. It calls `usual` for what the library is not given: other
    dtypes, layouts and devices, and what it refuses. Returns `usual` itself for other operators, and where torch's
    settings choose how products are computed.
    """
    if name not in DIRECT_PRODUCTS or device.type != "cuda" or device.index is None or _are_settings_special():
        return usual
    extension = driver.open_driver()
    return make_product(extension, name, usual, device) if _has_library(extension) else usual


def make_product(extension: Any, name: str, usual: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return the product of a C extension whose library is open."""
    allocate = functools.partial(torch.empty, dtype=torch.uint8, device=device)
    return extension.Product(usual, *DIRECT_PRODUCTS[name], device.index or 0, driver.device_code(device), allocate)


@functools.cache
def _has_library(extension: Any) -> bool:
    return calibrate() is not None and any(extension.open_products(name) for name in _LIBRARIES)


def _are_settings_special() -> bool:
    """Return whether torch would raise for, or time, or is told how to compute products."""
    return (
        torch.are_deterministic_algorithms_enabled()
        or torch.cuda.tunable.is_enabled()
        or torch._C._get_blas_preferred_backend() not in _USUAL_BACKENDS
    )


_USUAL_BACKENDS = tuple(
    getattr(torch._C._BlasBackend, name) for name in ("Default", "Cublas") if hasattr(torch._C._BlasBackend, name)
)

__all__ = ["DIRECT_PRODUCTS", "direct_product", "make_product"]
