"""Special functions against eager's: over ranges, at the joints of their formulas, and at infinities and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch

import stator
from stator.base import counters
from stator.prims.decompositions.special import FUNCTIONS
from stator.prims.record import record
from stator.prims.special.special_functions import binary_formulas, unary_formulas

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, 5.0, 8.0, 10.0, -2.09, 2.09, 0.46875, 4.0, 1e-7, 1e-20, 300.0, 1e6]
SPECIAL += [math.inf, -math.inf, math.nan]
# relative to the value, but to at least this share of 1; eager's float32 of oscillating functions is no better
TOLERANCES = {torch.float64: (1e-12, 1e-3), torch.float32: (2e-5, 1e-1)}
# beside a pole, where the last bit of the argument decides about the leading digits
POLES = {"digamma": 1e-2}
DTYPES = [torch.float64, torch.float32]


def points(dtype: torch.dtype, name: str) -> torch.Tensor:
    x = torch.cat([torch.linspace(-28, 30, 2001), torch.linspace(-3, 3, 1001), torch.linspace(-0.999, 0.999, 501)])
    if name in POLES:
        x = x[((x - x.round()).abs() > POLES[name]) | (x > 0)]
    return torch.cat([x, torch.tensor(SPECIAL)]).to(dtype)


def assert_equal(ours: torch.Tensor, eager: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    assert ours.dtype is eager.dtype
    relative, least = TOLERANCES[dtype]
    same = (ours == eager) | (torch.isnan(ours) & torch.isnan(eager))
    error = torch.where(same, 0.0, (ours - eager).abs() / eager.abs().clamp_min(least))
    assert not torch.isnan(error).any(), "NaN or infinity on one side only"
    assert error.max() <= factor * relative, f"off by {error.max():.2e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_value(dtype: torch.dtype) -> None:
    """Formulas over tensors, and one kernel of everything at once."""
    whole = {name: points(dtype, name) for name in sorted(unary_formulas)}

    def program(whole: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return [getattr(torch.ops.aten, name).default(x) for name, x in whole.items()]

    counters.clear()
    with torch.no_grad():
        results, expected = stator.compile(program, fullgraph=True)(whole), program(whole)
    assert not [name for name in counters.counts if name.startswith("inductor_fallback:")]
    for (name, x), compiled, eager in zip(whole.items(), results, expected, strict=True):
        assert_equal(unary_formulas[name](FUNCTIONS, x), eager, dtype)
        assert_equal(compiled, eager, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", range(5))
def test_polygamma(order: int, dtype: torch.dtype) -> None:
    x = points(dtype, "digamma")
    x = x[torch.isnan(x) | (x.abs() < 1e3)]  # the series gives NaN at infinity, in either order of its terms
    x = x[(x > 0) | ((x - x.round()).abs() > 0.1) | (x == x.round())]
    if order >= 2 and order % 2 == 0:
        x = x[(x > 0) | ((x.frac().abs() - 0.5).abs() > 0.1)]  # zeros, where two large terms cancel
    eager = torch.polygamma(order, x)
    rule = record(torch.ops.aten.polygamma.default).decompose
    assert rule is not None
    assert_equal(rule(order, x), eager, dtype)  # type: ignore[arg-type]
    assert_equal(stator.compile(lambda x: torch.polygamma(order, x), fullgraph=True)(x), eager, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(binary_formulas))
def test_functions_of_two_values(name: str, dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-2.95, 2.9, 117), torch.tensor([0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan])])
    x, n = torch.broadcast_tensors(x.to(dtype)[:, None], torch.linspace(-3, 14, 18, dtype=dtype))
    x, n = x.contiguous(), n.contiguous()
    ours, eager = binary_formulas[name](FUNCTIONS, x, n), getattr(torch.ops.aten, name).default(x, n)
    assert_equal(ours, eager, dtype, factor=20.0)  # the recurrence that eager uses for high degrees loses digits


# name: the reference, the ends of the range, and the largest error in units in the last place, as in docs/math.md.
# Beyond the range eager's formulas lose digits, too: by cancellation, and by rounded squares in exponents.
BOUNDS: dict[str, tuple[Callable[..., mpmath.mpf], float, float, float]] = {
    "erfinv": (mpmath.erfinv, -1.0, 1.0, 2.0),
    "special_erfcx": (lambda x: mpmath.exp(x * x) * mpmath.erfc(x), 0.0, 20.0, 4.0),
    "special_log_ndtr": (lambda x: mpmath.log(mpmath.erfc(-x / mpmath.sqrt(2)) / 2), -20.0, 0.0, 4.0),
    "special_i0e": (lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)), -300.0, 300.0, 6.0),
    "special_i1e": (lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)), -300.0, 300.0, 10.0),
    "i0": (lambda x: mpmath.besseli(0, x), -80.0, 80.0, 6.0),
    "special_i1": (lambda x: mpmath.besseli(1, x), -80.0, 80.0, 8.0),
    "special_spherical_bessel_j0": (lambda x: mpmath.sin(x) / x if x else mpmath.mpf(1), -300.0, 300.0, 2.0),
    "sinc": (mpmath.sincpi, -0.75, 0.75, 4.0),
    "special_entr": (lambda x: -x * mpmath.log(x) if x else mpmath.mpf(0), 0.0, 300.0, 2.0),
    "digamma": (mpmath.digamma, 2.0, 300.0, 20.0),
}


def ends_and_middle(low: float, high: float, dtype: torch.dtype) -> torch.Tensor:
    """Points that get ever closer to both ends and to 0, to the smallest number and to the last place."""
    info = torch.finfo(dtype)
    steps = 2.0 ** torch.linspace(math.log2(info.eps), 0.0, 40, dtype=torch.float64)
    tiny = 2.0 ** torch.linspace(math.log2(info.smallest_normal) - 10, 0.0, 40, dtype=torch.float64)
    middle = torch.linspace(low, high, 200, dtype=torch.float64)
    x = torch.cat([middle, low + steps * (high - low) / 2, high - steps * (high - low) / 2, tiny, -tiny]).to(dtype)
    return x[(x > low) & (x < high)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BOUNDS)
def test_error_to_the_ends_of_the_range(name: str, dtype: torch.dtype) -> None:
    reference, low, high, bound = BOUNDS[name]
    x = ends_and_middle(low, high, dtype)

    def program(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch.ops.aten, name).default(x)

    result = stator.compile(program, fullgraph=True)(x)
    digits, smallest = (24, -149) if dtype is torch.float32 else (53, -1074)
    worst, at = 0.0, 0.0
    with mpmath.workdps(50):
        for point, value in zip(x.tolist(), result.tolist(), strict=True):
            exact = reference(mpmath.mpf(point))
            unit = mpmath.ldexp(1, max(mpmath.frexp(exact)[1] - digits, smallest))
            error = float(abs(value - exact) / unit)
            worst, at = max((worst, at), (error, point))
    assert worst <= bound, f"{worst:.2f} units at {at!r}"
