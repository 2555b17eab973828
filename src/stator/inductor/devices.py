"""What decisions about speed assume of each type of device. Data only; never what is right."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# The largest share of a matrix's bytes from which reading pays to compute it at each use: half of them, and scales
COMPRESSED = 0.6


@dataclass(frozen=True, slots=True)
class DeviceTraits:
    """two_pass_elements: the longest reduction whose data a second pass finds in the nearest memory.
    programs: programs that fill the device, where a kernel does not share one reduction between them; 0 where it does.
    row: the longest row whose elements later phases of a fused kernel still find near; column: the longest one where
    neighbouring elements lie in other rows.
    few_rows: a fused kernel with fewer long rows than this leaves the device idle.
    lazy_parts: a concatenation of so many parts, or fewer, is selected from its parts where it is used; 0: never.
    small_read: reading a buffer of fewer elements for each element of a result costs nothing beside storing the result.
    combined_bytes: a kernel that moves no more may be launched together with others; 0: never.
    products: matrix products can be Triton kernels of ours.
    tiles: they can be kernels of ours in C++.
    depthwise_taps: depthwise convolutions with kernels of up to so many taps are loops.
    quantized_rows: up to so many rows, sums are quicker than a library's product with a matrix that must be made of
    quantized numbers first; where they run along its rows in memory, and where across these.
    lazy_gather: a gather of less than one in so many elements computes these alone, not all.
    """

    two_pass_elements: int
    programs: int
    row: int
    column: int
    few_rows: int
    lazy_gather: int
    lazy_parts: int
    combined_bytes: int
    small_read: float
    quantized_rows: tuple[int, int] = (0, 0)
    products: bool = False
    tiles: bool = False
    depthwise_taps: int = 0


# Threads share one long reduction. Rows: the last cache; columns: sixteen rows are in flight in lanes.
# Quantized products on AVX-512: sums along rows take 0.3 to 0.7 of the time for 8 rows, 0.5 to 1.2 for 16. Across rows
# they touch as many pages as there are rows, and take 0.3 to 0.5 for 2 rows, 0.8 to 1.7 for 8.
CPU = DeviceTraits(
    two_pass_elements=8192,
    programs=0,
    row=1 << 20,
    column=1024,
    few_rows=4,
    lazy_gather=8,
    lazy_parts=0,
    combined_bytes=0,
    small_read=1 / 16,
    quantized_rows=(8, 2),
    tiles=True,
)

# A program keeps a row of up to 8192 elements in registers; 132 multiprocessors run a few programs each. Rows that are
# read again come from the second-level cache, which all programs share. Where there are few rows, lowering has split
# their reductions, so that fusion meets few rows only where these are cheap.
GPU = DeviceTraits(
    two_pass_elements=8192,
    programs=1056,
    row=1 << 18,
    column=4096,
    few_rows=1,
    lazy_gather=8,
    lazy_parts=4,
    combined_bytes=8 << 20,
    small_read=1 / 16,
    products=True,
    depthwise_taps=49,
)

TRAITS = {"cpu": CPU}
_GROUPED = (9, 10)  # major compute capabilities for which ATen has kernels of products of groups


def library_reads_ends(dtype: torch.dtype, device: torch.device) -> bool:
    """True if ATen's product of groups waits for the data that tells where they end, and calls a product for each."""
    if device.type != "cuda":
        return False
    return dtype is not torch.bfloat16 or torch.cuda.get_device_capability(device)[0] not in _GROUPED


def has_measured_products(device: torch.device) -> bool:
    """True for the device that numbers about launches of products are of (tests run kernels for it on the CPU)."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) == (9, 0)


def launches_groups(device: torch.device, dtype: torch.dtype, channels: int, out: int) -> bool:
    """True if a convolution of so many channels of each group to so many is a launch of products, in channels-last
    format: cuDNN takes 1.1 (many images of few groups) to ten times as long there (docs/gpu.md)."""
    halves = dtype in (torch.float16, torch.bfloat16)
    return halves and 16 <= channels <= 64 and channels % 8 == out % 8 == 0 and has_measured_products(device)


def traits_of(device: torch.device) -> DeviceTraits:
    return TRAITS.get(device.type, GPU)
