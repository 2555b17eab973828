"""The elementary functions of vec_math.h against wider numbers, for every instruction set this machine can run."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from tests.runtime.vec_library import TARGETS, build_library

from stator.inductor.codegen.cpp.types import identity

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
    "atan": 2.0,
    "asin": 2.0,
    "acos": 1.5,
    "sinh": 2.0,
    "cosh": 2.0,
    "asinh": 2.0,
    "acosh": 2.0,
    "atanh": 2.0,
    "lgamma": 1.5,
}
BINARY_ULP = {
    "nextafter": 0.0,
    "pow": 1.0,
    "atan2": 2.0,
    "hypot": 1.0,
    "fmod": 0.0,
    "mod": 0.5,
    "maximum": 0.0,
    "minimum": 0.0,
    "fmax": 0.0,
    "fmin": 0.0,
    "div": 0.5,
}
DOUBLE_ULP = {"tanh": 2.0, "pow": 1.5, "lgamma": 5.0}


def bound(name: str, dtype: torch.dtype) -> float:
    limits = UNARY_ULP | BINARY_ULP | (DOUBLE_ULP if dtype is torch.float64 else {})
    return max(limits[name], 0.5)


def _source() -> str:
    lines = [
        '#include "vec.h"',
        "#define FOR_VECTORS for (int64_t i = 0; i < n; i += LANES)",
        "#define FOR_ONES for (int64_t i = 0; i < n; ++i)",
    ]
    for type in ("float", "double"):
        for name in UNARY_ULP:
            lines.append(
                f'extern "C" void unary_{name}_{type}(const {type} *x, {type} *y, int64_t n) {{ FOR_VECTORS '
                f"store(y + i, op_{name}(load(x + i))); }}"
            )
            lines.append(
                f'extern "C" void one_{name}_{type}(const {type} *x, {type} *y, int64_t n) {{ '
                f"FOR_ONES y[i] = op_{name}(x[i]); }}"
            )
        for name in BINARY_ULP:
            lines.append(
                f'extern "C" void one_{name}_{type}(const {type} *x, const {type} *z, {type} *y, int64_t n) {{ '
                f"FOR_ONES y[i] = op_{name}(x[i], z[i]); }}"
            )
            lines.append(
                f'extern "C" void binary_{name}_{type}(const {type} *x, const {type} *z, {type} *y, int64_t n) {{ '
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
    for name, dtype in itertools.product(("argmax", "argmin"), (*TYPES, torch.int32, torch.int64)):
        type, worst = TYPES.get(dtype) or f"{str(dtype).removeprefix('torch.')}_t", identity(name, dtype)
        lines.append(
            f'extern "C" int64_t {name}_{type}(const {type} *x, int n) {{ const auto worst = splat({worst}); '
            "auto best = worst; vi64 at = arange_i64(0, 1); for (int i = 0; i < n; i += LANES) { "
            "int m = n - i < LANES ? n - i : LANES; auto value = select(first_lanes(m), load(x + i, m), worst); "
            f"update_{name}(best, at, value, arange_i64(i, 1)); }} return reduce_{name}(best, at); }}"
        )
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


@functools.cache
def samples(dtype: torch.dtype) -> torch.Tensor:
    info = torch.finfo(dtype)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(20000, generator=generator, dtype=dtype)
    bits = torch.randint(-(2**63), 2**63 - 1, (20000,), generator=generator)
    wide = bits.view(dtype)
    line = torch.linspace(-110, 110, 20001, dtype=dtype)
    small = torch.linspace(-2, 2, 20001, dtype=dtype)
    steps = 2.0 ** -torch.arange(1.0, 54, dtype=torch.float64)
    near_one = torch.cat([torch.linspace(0.999, 1.001, 2001), 1 - steps, 1 + steps]).to(dtype)
    most, least, tiny = info.max, info.smallest_normal, info.smallest_normal * info.eps
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, tiny, -tiny, least, most, -most, most / 2, 88.72283, -87.33655, 709.78, -745.1]
    edges += [float("inf"), float("-inf"), float("nan"), 2.5, 3.5, -2.5, 16777216.0, 1e10, 4.0, 3.9999998]
    quarters = (torch.cat([torch.arange(-300, 300), torch.arange(-41000, 41000, 37)]) * (math.pi / 2)).to(dtype)
    line = torch.cat([line, quarters])
    values = torch.cat([normal, normal * 10, wide, line, small, near_one, -near_one, torch.tensor(edges, dtype=dtype)])
    return torch.cat([values, torch.zeros(-len(values) % 64, dtype=dtype)])


def _by_mpmath(function: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    digits = (mpmath.nstr(function(value), 22) for value in np.clip(x, -99, 99).astype(float).tolist())
    return np.array([np.longdouble(text) for text in digits])


def _lgamma(x: np.longdouble) -> np.longdouble:
    value = mpmath.mpf(float(x))
    if not mpmath.isfinite(value) or (value <= 0 and value == mpmath.floor(value)):
        return np.longdouble(x if np.isnan(x) else np.inf)
    if value > 0:
        return np.longdouble(mpmath.nstr(mpmath.loggamma(value), 22))
    mirrored = mpmath.loggamma(1 - value)
    return np.longdouble(mpmath.nstr(mpmath.log(mpmath.pi / abs(mpmath.sinpi(value))) - mirrored, 22))


NUMPY_NAMES = {
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "atan2": "arctan2",
    "pow": "power",
    "mod": "remainder",
}
NUMPY_NAMES |= {"acosh": "arccosh", "asinh": "arcsinh", "atanh": "arctanh", "round": "rint", "div": "divide"}
FORMULAS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": lambda x: np.where(x > 0, 1, np.where(x < 0, -1, 0)),  # torch's, 0 for NaN
    "relu": lambda x: np.where(x < 0, 0, x),
    "lgamma": lambda x: np.vectorize(_lgamma, [np.longdouble])(x),
    "erf": lambda x: np.copysign(_by_mpmath(mpmath.erf, x), x),
    "erfc": lambda x: _by_mpmath(mpmath.erfc, x),
}


def exact(name: str, *operands: torch.Tensor) -> np.ndarray[Any, Any]:
    """The function in extended precision, whose errors are far below the bounds."""
    function = FORMULAS.get(name) or getattr(np, NUMPY_NAMES.get(name, name))
    arrays = [x.numpy() for x in operands]
    with np.errstate(all="ignore"), mpmath.workdps(25):
        if name not in ("fmod", "mod", "nextafter"):  # exact in each precision; mod adds a rounding
            arrays = [array.astype(np.longdouble) for array in arrays]
        return np.asarray(function(*arrays)).astype(np.longdouble)


def ulp_error(actual: torch.Tensor, reference: np.ndarray[Any, Any]) -> torch.Tensor:
    """Distance in units in the last place of the result; infinite where NaN or infinity disagree."""
    got = actual.numpy()
    with np.errstate(all="ignore"):
        rounded = reference.astype(got.dtype)
        unit = np.spacing(np.abs(rounded)).astype(np.longdouble)
        error = np.abs(got.astype(np.longdouble) - reference) / np.where(np.isfinite(unit), unit, 1.0)
        same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
        # a result one rounding away from overflow may come out as infinity
        error = np.where(
            same, np.minimum(np.nan_to_num(error, nan=0.0, posinf=0.0), 0.5), np.nan_to_num(error, nan=np.inf)
        )
        near = (
            np.isinf(got)
            & (np.abs(reference) > 0.99999 * np.finfo(got.dtype).max)
            & (np.sign(got) == np.sign(reference))
        )
    return torch.from_numpy(np.where(near, 0.0, error).astype(np.float64))


def _call(function: ctypes._CFuncPtr, *tensors: torch.Tensor) -> None:
    function(*[ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors], ctypes.c_int64(tensors[0].numel()))


TYPES = {torch.float32: "float", torch.float64: "double"}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", list(UNARY_ULP))
def test_unary(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    x = samples(dtype)
    if name in ("erf", "erfc", "lgamma"):  # references of many digits are slow
        x = torch.cat([x[-128:], x[::32]])[: len(x) // 32 // 64 * 64]
    y = torch.empty_like(x)
    _call(getattr(library, f"unary_{name}_{TYPES[dtype]}"), x, y)
    expected = exact(name, x)
    error = ulp_error(y, expected)
    worst = int(error.argmax())
    assert error[worst] <= bound(name, dtype), (
        f"{name}({x[worst].item()!r}) = {y[worst].item()!r}, expected {expected[worst]!r}: {error[worst]:.2f}"
    )
    zero = (x.numpy() == 0) & (expected == 0)  # signs of zeros, which errors do not see
    assert (np.signbit(y.numpy()) == np.signbit(expected))[zero].all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", list(BINARY_ULP))
def test_binary(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    x = samples(dtype)
    z = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))]
    if name == "pow":  # most random pairs overflow: add plausible ones
        x = torch.cat([x, x.abs() + 1e-3, x[:20000].abs(), torch.full((64,), 2.0)])
        z = torch.cat([z, z.clamp(-20, 20), torch.full((20000,), 2.5), torch.arange(64.0) - 32]).to(dtype)
    edges = x[-128:][x[-128:].abs() != 1.5]
    pairs = torch.cartesian_prod(edges, edges)
    pairs = pairs[: len(pairs) // 64 * 64]
    x, z = torch.cat([x, pairs[:, 0]]), torch.cat([z, pairs[:, 1]])
    y = torch.empty_like(x)
    _call(getattr(library, f"binary_{name}_{TYPES[dtype]}"), x, z, y)
    expected = exact(name, x, z)
    error = ulp_error(y, expected)
    worst = int(error.argmax())
    assert error[worst] <= bound(name, dtype), (
        f"{name}({x[worst].item()!r}, {z[worst].item()!r}) = {y[worst].item()!r}, expected {expected[worst]!r}"
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", [*UNARY_ULP, *BINARY_ULP])
def test_a_lane_has_the_bits_of_a_scalar_whatever_its_neighbours_hold(
    library: ctypes.CDLL, name: str, dtype: torch.dtype
) -> None:
    """A backward may compute values again in other loops, and compare them with the forward's."""
    x = samples(dtype)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(2))]
    operands = [x] if name in UNARY_ULP else [x, x.roll(17)]
    kind = "unary" if name in UNARY_ULP else "binary"
    lanes, ones = torch.empty_like(x), torch.empty_like(x)
    _call(getattr(library, f"{kind}_{name}_{TYPES[dtype]}"), *operands, lanes)
    _call(getattr(library, f"one_{name}_{TYPES[dtype]}"), *operands, ones)
    bits = torch.int32 if dtype is torch.float32 else torch.int64
    differ = (lanes.view(bits) != ones.view(bits)) & ~(lanes.isnan() & ones.isnan())
    assert not differ.any(), [(one[differ][0].item()) for one in (*operands, lanes, ones)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("one", ["", "one_"])
def test_halves_convert_as_torch_does(library: ctypes.CDLL, dtype: torch.dtype, one: str) -> None:
    name = str(dtype).removeprefix("torch.")
    x = samples(torch.float32)
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


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
def test_positions_of_extremes(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> None:
    """The first of equals and of NaN wins, among the least and largest numbers, too, and beside empty lanes."""
    type = TYPES.get(dtype) or str(dtype).removeprefix("torch.") + "_t"
    function = getattr(library, f"{name}_{type}")
    function.restype = ctypes.c_int64
    if dtype.is_floating_point:
        values = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.0], dtype=dtype)
    else:
        values = torch.tensor([torch.iinfo(dtype).max, torch.iinfo(dtype).min, 0, 1, -1, 7], dtype=dtype)
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        kinds = values[torch.randperm(6, generator=generator)[: 1 + seed % 3]]
        x = kinds[torch.randint(len(kinds), (1 + seed % 50,), generator=generator)]
        assert function(ctypes.c_void_p(x.data_ptr()), len(x)) == int(getattr(x, name)()), x.tolist()


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
