"""Gathers of csrc/vec.h: whole vectors, tails and masks, by indices of both widths, on each instruction set."""

from __future__ import annotations

import ctypes

import pytest
import torch
from vec_library import TARGETS, build_library

INDICES = {torch.int32: "int32_t", torch.int64: "int64_t"}


def _source() -> str:
    lines = ['#include "vec.h"', 'extern "C" int lanes() { return LANES; }']
    for index in INDICES.values():
        lines.append(
            f'extern "C" void gather_{index}(const float *p, const {index} *at, float *y, int n)'
            "{ store(y, gather(p, load(at), n), n); }"
        )
        lines.append(
            f'extern "C" void masked_{index}(const float *p, const {index} *at, const bool *read, float *y, int n)'
            "{ store(y, gather(p, load(at), load(read), n)); }"
        )
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module", params=list(TARGETS))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_library(_source(), request.param, tmp_path_factory.mktemp("vec"))


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _indices(dtype: torch.dtype, read: torch.Tensor) -> torch.Tensor:
    """Random places among 1000 elements; far outside of all memory where nothing may be read."""
    places = torch.randint(0, 1000, read.shape, dtype=dtype)
    return torch.where(read, places, torch.iinfo(dtype).max // 8)


@pytest.mark.parametrize("dtype", INDICES)
def test_tails_read_their_lanes_alone(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    values, lanes = torch.randn(1000), library.lanes()
    for count in range(1, lanes + 1):
        indices, found = _indices(dtype, torch.arange(lanes) < count), torch.zeros(lanes)
        getattr(library, f"gather_{INDICES[dtype]}")(_pointer(values), _pointer(indices), _pointer(found), count)
        assert torch.equal(found[:count], values[indices[:count].long()])


@pytest.mark.parametrize("dtype", INDICES)
def test_masks_read_their_lanes_alone(library: ctypes.CDLL, dtype: torch.dtype) -> None:
    values, lanes = torch.randn(1000), library.lanes()
    for count in range(1, lanes + 1):
        mask = torch.rand(lanes) > 0.5
        read = mask & (torch.arange(lanes) < count)
        indices, found = _indices(dtype, read), torch.full((lanes,), 7.0)
        masked = getattr(library, f"masked_{INDICES[dtype]}")
        masked(_pointer(values), _pointer(indices), _pointer(mask), _pointer(found), count)
        assert torch.equal(found, torch.where(read, values[indices.long().clamp(max=999)], 0.0))
