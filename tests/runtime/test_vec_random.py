"""vec_random.h against prims/operators/random.py, to the last bit, for every instruction set this machine can run; and
shifts."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from tests.runtime.vec_library import TARGETS, build_library

from stator.prims.operators import random
from stator.prims.special.normal_quantile import normal_quantile

SEED, STREAM, COUNT = -987654321987, 5, 19_200
INT32, INT64 = torch.int32, torch.int64

SOURCE = """
#include "vec.h"
#define VECTORS for (int64_t i = 0; i < n; i += LANES)
#define ONES for (int64_t i = 0; i < n; ++i)
#define KEY int64_t seed, int64_t stream, int64_t draw
extern "C" void run(int32_t *y, int64_t n, int64_t from, KEY) {
    random_blocks blocks;
    VECTORS store(y + i, random_run(blocks, seed, stream, (int)draw, i + from));
}
extern "C" void one(int32_t *y, int64_t n, int64_t step, KEY) {
    random_blocks blocks;
    ONES y[i] = random_one(blocks, seed, stream, (int)draw, i * step);
}
extern "C" void lanes(int32_t *y, int64_t n, int64_t step, KEY) {
    VECTORS store(y + i, random_lanes(seed, stream, (int)draw, arange_i64(i * step, step)));
}
extern "C" void normal32(const int32_t *x, float *y, int64_t n) { VECTORS store(y + i, op_normal(load(x + i))); }
extern "C" void normal32_one(const int32_t *x, float *y, int64_t n) { ONES y[i] = op_normal(x[i]); }
extern "C" void normal64(const int64_t *x, double *y, int64_t n) { VECTORS store(y + i, op_normal(load(x + i))); }
extern "C" void normal64_one(const int64_t *x, double *y, int64_t n) { ONES y[i] = op_normal(x[i]); }
#define SHIFT(name, T) \\
    extern "C" void name##_##T(const T *x, const T *by, T *y, int64_t n) { \\
        VECTORS store(y + i, op_##name(load(x + i), load(by + i))); \\
    }
SHIFT(lshift, int32_t) SHIFT(rshift, int32_t) SHIFT(lshift, int64_t) SHIFT(rshift, int64_t)
"""


@pytest.fixture(scope="module", params=list(TARGETS))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_library(SOURCE, request.param, tmp_path_factory.mktemp("vec"))


def call(function: Any, *arguments: torch.Tensor | int) -> None:
    function(*[ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int64(a) for a in arguments])


def words() -> torch.Tensor:
    """int64 of all magnitudes, with the ends of the range."""
    drawn = random.bits64(torch.tensor(1), 0, [COUNT])
    drawn[:6000] >>= torch.arange(6000) % 64
    drawn[:6] = torch.tensor([-(2**63), 2**63 - 1, 0, -1, 2**62, -(2**62)])
    return drawn


@pytest.mark.parametrize("start", [0, 8, 13, 63, 1000, 2**31 - 40, 2**36 + 5])
def test_runs_of_neighbours(library: ctypes.CDLL, start: int) -> None:
    got = torch.empty(COUNT, dtype=INT32)
    call(library.run, got, COUNT, start, SEED, STREAM, 1)
    assert torch.equal(got, random.bits_at(torch.tensor(SEED), STREAM, 1, torch.arange(COUNT) + start))


@pytest.mark.parametrize("step", [1, 3, 64, 2**30 + 1])
@pytest.mark.parametrize("name", ["one", "lanes"])
def test_elements_at_any_distance(library: ctypes.CDLL, name: str, step: int) -> None:
    got = torch.empty(COUNT, dtype=INT32)
    call(library[name], got, COUNT, step, SEED, STREAM, 0)
    assert torch.equal(got, random.bits_at(torch.tensor(SEED), STREAM, 0, torch.arange(COUNT) * step))


@pytest.mark.parametrize("name", ["normal32", "normal32_one", "normal64", "normal64_one"])
def test_normal_numbers(library: ctypes.CDLL, name: str) -> None:
    given = words() if "64" in name else (words() >> 32).int()
    expected = normal_quantile(given)
    got = torch.empty_like(expected)
    call(library[name], given, got, COUNT)
    assert torch.equal(got, expected)


@pytest.mark.parametrize(("dtype", "width"), [(INT32, 32), (INT64, 64)])
@pytest.mark.parametrize("name", ["lshift", "rshift"])
def test_shifts_by_any_number(library: ctypes.CDLL, name: str, dtype: torch.dtype, width: int) -> None:
    given = words() if width == 64 else (words() >> 32).int()
    by = (torch.arange(COUNT) % (width + 9) - 4).to(dtype)
    got = torch.empty_like(given)
    call(library[f"{name}_int{width}_t"], given, by, got, COUNT)
    eager = torch.bitwise_left_shift if name == "lshift" else torch.bitwise_right_shift
    assert torch.equal(got, eager(given, by))
