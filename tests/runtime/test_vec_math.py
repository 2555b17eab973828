"""The elementary functions of vec_math.h against float64, for every instruction set this machine can run."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from tests.runtime.vec_library import TARGETS, build_library

# Largest error in units in the last place; docs/math.md lists the same numbers
UNARY_ULP = {
    "exp": 1.5,
    "exp2": 1.5,
    "expm1": 2.5,
    "log": 1.5,
    "log2": 1.5,
    "log10": 2.0,
    "log1p": 2.0,
    "tanh": 4.0,
    "sigmoid": 2.5,
    "erf": 2.5,
    "erfc": 4.0,
    "sin": 1.5,
    "cos": 1.5,
    "sqrt": 0.5,
    "rsqrt": 1.5,
    "reciprocal": 0.5,
    "floor": 0.0,
    "ceil": 0.0,
    "trunc": 0.0,
    "round": 0.0,
    "abs": 0.0,
    "sign": 0.0,
    "relu": 0.0,
    "tan": 1.5,
    "atan": 1.5,
    "asin": 1.5,
    "acos": 1.5,
    "sinh": 2.0,
    "cosh": 2.0,
    "asinh": 2.0,
    "acosh": 2.0,
    "atanh": 2.0,
}
BINARY_ULP = {
    "pow": 1.0,
    "atan2": 1.5,
    "hypot": 1.0,
    "fmod": 0.0,
    "mod": 0.5,
    "maximum": 0.0,
    "minimum": 0.0,
    "fmax": 0.0,
    "fmin": 0.0,
    "div": 0.5,
}


def _source() -> str:
    lines = [
        '#include "vec.h"',
        "#define FOR_VECTORS for (int64_t i = 0; i < n; i += LANES)",
        "#define FOR_ONES for (int64_t i = 0; i < n; ++i)",
    ]
    for name in UNARY_ULP:
        lines.append(
            f'extern "C" void unary_{name}(const float *x, float *y, int64_t n) {{ FOR_VECTORS '
            f"store(y + i, op_{name}(load(x + i))); }}"
        )
        lines.append(
            f'extern "C" void one_{name}(const float *x, float *y, int64_t n) {{ FOR_ONES y[i] = op_{name}(x[i]); }}'
        )
    for name in BINARY_ULP:
        lines.append(
            f'extern "C" void one_{name}(const float *x, const float *z, float *y, int64_t n) {{ '
            f"FOR_ONES y[i] = op_{name}(x[i], z[i]); }}"
        )
        lines.append(
            f'extern "C" void binary_{name}(const float *x, const float *z, float *y, int64_t n) {{ '
            f"for (int64_t i = 0; i < n; i += LANES) store(y + i, op_{name}(load(x + i), load(z + i))); }}"
        )
    for dtype in ("float16", "bfloat16"):
        lines.append(
            f'extern "C" void to_{dtype}(const float *x, {dtype} *y, int64_t n) {{ FOR_VECTORS '
            f"store(y + i, load(x + i)); }}"
        )
        lines.append(
            f'extern "C" void from_{dtype}(const {dtype} *x, float *y, int64_t n) {{ FOR_VECTORS '
            f"store(y + i, load(x + i)); }}"
        )
        lines.append(
            f'extern "C" void one_to_{dtype}(const float *x, {dtype} *y, int64_t n) {{ FOR_ONES '
            f"store_one(y + i, load_one(x + i)); }}"
        )
        lines.append(
            f'extern "C" void one_from_{dtype}(const {dtype} *x, float *y, int64_t n) {{ FOR_ONES '
            f"store_one(y + i, load_one(x + i)); }}"
        )
    for name in ("sum", "max", "min", "prod"):
        lines.append(f'extern "C" float reduce_{name}_(const float *x) {{ return reduce_{name}(load(x)); }}')
    lines.append('extern "C" int lanes() { return LANES; }')
    lines.append(
        'extern "C" void tails(const float *x, float *y, int n) { store(y, load(x, n), n); }\n'
        'extern "C" void tails_u8(const uint8_t *x, uint8_t *y, int n) { store(y, load(x, n), n); }\n'
        'extern "C" void tails_i64(const int64_t *x, int64_t *y, int n) { store(y, load(x, n), n); }'
    )
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module", params=list(TARGETS))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_library(_source(), request.param, tmp_path_factory.mktemp("vec"))


def samples() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(20000, generator=generator)
    wide = (
        torch.randint(-(2**31), 2**31, (40000,), generator=generator, dtype=torch.int64)
        .to(torch.int32)
        .view(torch.float32)
    )
    line = torch.linspace(-110, 110, 20001)
    small = torch.linspace(-2, 2, 20001)
    near_one = torch.cat(
        [torch.linspace(0.999, 1.001, 2001), 1 - 2.0 ** -torch.arange(1.0, 25), 1 + 2.0 ** -torch.arange(1.0, 24)]
    )
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.72283, -87.33655]
    edges += [float("inf"), float("-inf"), float("nan"), 2.5, 3.5, -2.5, 16777216.0, 1e10, 4.0, 3.9999998]
    values = torch.cat([normal, normal * 10, wide, line, small, near_one, -near_one, torch.tensor(edges)])
    return torch.cat([values, torch.zeros(-len(values) % 64)])


def ulp_error(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distance in units in the last place of the float32 result; infinite where NaN or infinity disagree."""
    reference, got = expected.numpy(), actual.numpy()
    with np.errstate(all="ignore"):
        rounded = reference.astype(np.float32)
        unit = np.spacing(np.abs(rounded).astype(np.float32)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - reference) / np.where(np.isfinite(unit), unit, 1.0)
    same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    # a result one rounding away from overflow may come out as infinity
    error = np.where(same, np.minimum(np.nan_to_num(error, nan=0.0, posinf=0.0), 0.5), np.nan_to_num(error, nan=np.inf))
    near = np.isinf(got) & (np.abs(reference) > 3.4028e38) & (np.sign(got) == np.sign(reference))
    return torch.from_numpy(np.where(near, 0.0, error))


def _call(function: ctypes._CFuncPtr, *tensors: torch.Tensor) -> None:
    function(*[ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors], ctypes.c_int64(tensors[0].numel()))


@pytest.mark.parametrize("name", list(UNARY_ULP))
def test_unary(library: ctypes.CDLL, name: str) -> None:
    x = samples()
    y = torch.empty_like(x)
    _call(getattr(library, f"unary_{name}"), x, y)
    expected = getattr(torch, name)(x.double())
    error = ulp_error(y, expected)
    worst = int(error.argmax())
    assert error[worst] <= max(UNARY_ULP[name], 0.5), (
        f"{name}({x[worst].item()!r}) = {y[worst].item()!r}, expected {expected[worst].item()!r}: {error[worst]:.2f}"
    )


@pytest.mark.parametrize("name", list(BINARY_ULP))
def test_binary(library: ctypes.CDLL, name: str) -> None:
    x = samples()
    z = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    if name == "pow":  # most random pairs overflow: add plausible ones
        x = torch.cat([x, x.abs() + 1e-3, x[:20000].abs(), torch.full((64,), 2.0)])
        z = torch.cat([z, z.clamp(-20, 20), torch.full((20000,), 2.5), torch.arange(64.0) - 32])
    y = torch.empty_like(x)
    _call(getattr(library, f"binary_{name}"), x, z, y)
    if name in ("fmod", "mod"):  # exact in every precision, but torch's vector code for doubles is not
        with np.errstate(all="ignore"):
            rest = torch.from_numpy(np.fmod(x.numpy(), z.numpy()))
        differ = (rest != 0) & ((rest < 0) != (z < 0))
        expected = (torch.where(differ, rest + z, rest) if name == "mod" else rest).double()
    else:
        expected = getattr(torch, name)(x.double(), z.double())
    error = ulp_error(y, expected)
    worst = int(error.argmax())
    assert error[worst] <= max(BINARY_ULP[name], 0.5), (
        f"{name}({x[worst].item()!r}, {z[worst].item()!r}) = {y[worst].item()!r}, expected {expected[worst].item()!r}"
    )


@pytest.mark.parametrize("name", [*UNARY_ULP, *BINARY_ULP])
def test_a_lane_has_the_bits_of_a_scalar_whatever_its_neighbours_hold(library: ctypes.CDLL, name: str) -> None:
    """A backward may compute values again in other loops, and compare them with the forward's."""
    x = samples()[torch.randperm(len(samples()), generator=torch.Generator().manual_seed(2))]
    operands = [x] if name in UNARY_ULP else [x, x.roll(17)]
    kind = "unary" if name in UNARY_ULP else "binary"
    lanes, ones = torch.empty_like(x), torch.empty_like(x)
    _call(getattr(library, f"{kind}_{name}"), *operands, lanes)
    _call(getattr(library, f"one_{name}"), *operands, ones)
    differ = (lanes.view(torch.int32) != ones.view(torch.int32)) & ~(lanes.isnan() & ones.isnan())
    assert not differ.any(), [(one[differ][0].item()) for one in (*operands, lanes, ones)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("one", ["", "one_"])
def test_halves_convert_as_torch_does(library: ctypes.CDLL, dtype: torch.dtype, one: str) -> None:
    name = str(dtype).removeprefix("torch.")
    x = samples()
    y = torch.empty(len(x), dtype=dtype)
    _call(getattr(library, f"{one}to_{name}"), x, y)
    torch.testing.assert_close(y, x.to(dtype), rtol=0, atol=0, equal_nan=True)
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    back = torch.empty(65536)
    _call(getattr(library, f"{one}from_{name}"), every, back)
    torch.testing.assert_close(back, every.float(), rtol=0, atol=0, equal_nan=True)


def test_horizontal_reductions(library: ctypes.CDLL) -> None:
    lanes = library.lanes()
    for seed in range(5):
        x = torch.randn(lanes, generator=torch.Generator().manual_seed(seed))
        for name in ("sum", "max", "min", "prod"):
            function = getattr(library, f"reduce_{name}_")
            function.restype = ctypes.c_float
            expected = getattr(x, {"max": "amax", "min": "amin"}.get(name, name))()
            assert function(ctypes.c_void_p(x.data_ptr())) == pytest.approx(float(expected), rel=1e-5)
    x = torch.randn(lanes)
    x[lanes // 2] = float("nan")
    assert np.isnan(library.reduce_max_(ctypes.c_void_p(x.data_ptr())))


@pytest.mark.parametrize(
    ("name", "dtype"), [("tails", torch.float32), ("tails_u8", torch.uint8), ("tails_i64", torch.int64)]
)
def test_tails_touch_nothing_beyond(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    lanes = library.lanes()
    for count in range(1, lanes):
        x = torch.arange(1, lanes + 1).to(dtype)
        y = torch.full((lanes,), 99, dtype=dtype)
        getattr(library, name)(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), count)
        assert y.tolist() == [*x[:count].tolist(), *([99] * (lanes - count))]
