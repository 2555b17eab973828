"""Special functions as formulas, written once over any values with overloaded arithmetic: tensors, or scalars of a
loop.

Each formula takes `m`, a namespace of elementary functions (`m.exp`, `m.where(condition, x, y)`, ...), and values of
one floating-point dtype. `decompositions/special.py` registers them over tensors, `inductor/lower/operators/special.py`
over scalars of a loop body. Both branches of a case are always computed; nothing here knows dtypes or operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from stator.base.registry import Registry

from . import cephes

Formula = Callable[..., Any]

# By the name of the ATen operator: formulas of one value, and of several.
unary_formulas: Registry[str, Formula] = Registry("special function")
binary_formulas: Registry[str, Formula] = Registry("special function of two values")

INVERSE_SQRT_PI = 1 / math.sqrt(math.pi)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's rule, the highest power first."""
    result: Any = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result = result * x + coefficient
    return result


def ratio(x: Any, top: Sequence[float], bottom: Sequence[float]) -> Any:
    return polynomial(x, top) / polynomial(x, bottom)


def chebyshev_series(x: Any, coefficients: Sequence[float]) -> Any:
    """Clenshaw's recurrence in Cephes' convention: the last coefficient counts half, x runs over [-2, 2]."""
    before: Any = coefficients[0]
    last: Any = x * coefficients[0] + coefficients[1]
    previous: Any = 0.0
    for coefficient in coefficients[2:]:
        previous, before, last = before, last, x * last - before + coefficient
    return (last - previous) * 0.5 if len(coefficients) > 2 else last * 0.5


def ratio_of_halves(m: Any, x: Any, near: Sequence[float], far: Sequence[float]) -> Any:
    """Return e**-|x| I(x) for |x|, without the factor x of the first series: see `cephes.I0_NEAR`."""
    inside = chebyshev_series(x * 0.5 - 2.0, near)
    outside = chebyshev_series(32.0 / x - 2.0, far) / m.sqrt(x)
    return inside, outside


# -- modified Bessel functions ----------------------------------------------------------------------------------------


@unary_formulas.register("special_i0e")
def i0e(m: Any, x: Any) -> Any:
    size = m.abs(x)
    inside, outside = ratio_of_halves(m, size, cephes.I0_NEAR, cephes.I0_FAR)
    return m.where(size <= 8.0, inside, outside)


@unary_formulas.register("i0", "special_modified_bessel_i0")
def i0(m: Any, x: Any) -> Any:
    return m.exp(m.abs(x)) * i0e(m, x)


@unary_formulas.register("special_i1e")
def i1e(m: Any, x: Any) -> Any:
    size = m.abs(x)
    inside, outside = ratio_of_halves(m, size, cephes.I1_NEAR, cephes.I1_FAR)
    value = m.where(size <= 8.0, inside * size, outside)
    return m.where(x < 0.0, -value, value)


@unary_formulas.register("special_i1", "special_modified_bessel_i1")
def i1(m: Any, x: Any) -> Any:
    return m.exp(m.abs(x)) * i1e(m, x)


@unary_formulas.register("special_spherical_bessel_j0")
def spherical_j0(m: Any, x: Any) -> Any:
    """sin x / x, near 0 by its series, 0 at infinity."""
    series = polynomial(x * x, [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(7))])
    value = m.where(m.abs(x) < 0.5, series, m.sin(x) / x)
    return m.where(m.isinf(x), 0.0, value)


# -- the error function and its relatives -----------------------------------------------------------------------------

# W. J. Cody, Rational Chebyshev approximations for the error function, Mathematics of Computation 23 (1969): erf on
# [0, 0.47] in x**2, then e**(x*x) erfc(x) on [0.47, 4] in x and beyond in 1 / x**2.
ERF_TOP = (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2,
           3.20937758913846947e3)  # fmt: skip
ERF_BOTTOM = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
ERFCX_TOP = (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
             2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
             1.23033935479799725e3)  # fmt: skip
ERFCX_BOTTOM = (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
                3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3)  # fmt: skip
ERFCX_FAR_TOP = (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
                 1.60837851487422766e-2, 6.58749161529837803e-4)  # fmt: skip
ERFCX_FAR_BOTTOM = (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2,
                    2.33520497626869185e-3)  # fmt: skip


@unary_formulas.register("special_erfcx")
def erfcx(m: Any, x: Any) -> Any:
    """e**(x*x) erfc(x); +inf below -26.7, where twice e**(x*x) overflows a double."""
    size = m.abs(x)
    square = x * x
    growth = m.exp(square)
    near = growth * (1.0 - size * ratio(square, ERF_TOP, ERF_BOTTOM))
    middle = ratio(size, ERFCX_TOP, ERFCX_BOTTOM)
    inverse = 1.0 / square
    far = (INVERSE_SQRT_PI - inverse * ratio(inverse, ERFCX_FAR_TOP, ERFCX_FAR_BOTTOM)) / size
    value = m.where(size <= 0.46875, near, m.where(size <= 4.0, middle, far))
    value = m.where(size > 5e7, INVERSE_SQRT_PI / size, value)
    return m.where(x < 0.0, m.where(x < -26.7, math.inf, 2.0 * growth - value), value)


@unary_formulas.register("special_log_ndtr")
def log_ndtr(m: Any, x: Any) -> Any:
    """Logarithm of the normal distribution function: by erfcx in the lower tail."""
    t = x * math.sqrt(0.5)
    return m.where(x < -1.0, m.log(erfcx(m, -t) * 0.5) - t * t, m.log1p(m.erfc(t) * -0.5))


@unary_formulas.register("erfinv")
def erfinv(m: Any, y: Any) -> Any:
    """A rational first guess, then two steps of Halley's method, with the residual of erfc beyond a half: near 1 the
    difference of erf(x) and y has no digits left."""
    size = m.abs(y)
    square = y * y
    middle = size * polynomial(square, (-0.140543331, 0.914624893, -1.645349621, 0.886226899))
    middle = middle / polynomial(square, (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0))
    rest = 1.0 - size
    z = m.sqrt(-m.log(rest * 0.5))
    outer = polynomial(z, (1.641345311, 3.429567803, -1.624906493, -1.970840454))
    outer = outer / polynomial(z, (1.6370678, 3.5438892, 1.0))
    x = m.where(size <= 0.7, middle, outer)
    for _ in range(2):
        residual = m.where(size <= 0.5, m.erf(x) - size, rest - m.erfc(x))
        step = residual / (2 * INVERSE_SQRT_PI * m.exp(-x * x))
        x = x - step / (x * step + 1.0)
    x = m.where(size == 1.0, math.inf, m.where(size > 1.0, math.nan, x))
    return m.copysign(x, y)


# -- the gamma function's relatives -----------------------------------------------------------------------------------

DIGAMMA = (8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3, -4.16666666666666666667e-3,
           3.96825396825396825397e-3, -8.33333333333333333333e-3, 8.33333333333333333333e-2)  # fmt: skip


@unary_formulas.register("digamma")
def digamma(m: Any, x: Any) -> Any:
    """The asymptotic series beyond 10, shifted there by the recurrence; below 0 by reflection."""
    negative = x < 0.0
    positive = m.where(negative, 1.0 - x, x)
    small = positive < 10.0
    terms = 1.0 / positive
    for step in range(1, 10):
        terms = terms + 1.0 / (positive + float(step))
    shifted = m.where(small, positive + 10.0, positive)
    inverse = 1.0 / shifted
    square = inverse * inverse
    value = m.log(shifted) - 0.5 * inverse - square * polynomial(square, DIGAMMA)
    value = m.where(small, value - terms, value)
    fraction = x - m.round(x)
    value = m.where(negative, value - math.pi / m.tan(fraction * math.pi), value)
    value = m.where(negative & (x == m.trunc(x)), math.nan, value)
    return m.where(x == 0.0, m.where(1.0 / x < 0.0, math.inf, -math.inf, like=x), value)


def trigamma(m: Any, x: Any) -> Any:
    """Six steps of the recurrence and an asymptotic series; below a half by reflection. Infinite at 0, -1, ..."""
    mirrored = x < 0.5
    sine = m.sin(x * math.pi)
    positive = m.where(mirrored, 1.0 - x, x)
    total = 1.0 / (positive * positive)
    for step in range(1, 6):
        shifted = positive + float(step)
        total = total + 1.0 / (shifted * shifted)
    shifted = positive + 6.0
    square = 1.0 / (shifted * shifted)
    series = 1.0 / 6.0 - square * (1.0 / 30.0 - square * (1.0 / 42.0))
    total = total + (1.0 + 0.5 / shifted + square * series) / shifted
    return m.where(mirrored, (math.pi * math.pi) / (sine * sine) - total, total)


POLYGAMMA = (digamma, trigamma)  # by the order of the derivative of digamma


# -- elementary -------------------------------------------------------------------------------------------------------


@unary_formulas.register("sinc")
def sinc(m: Any, x: Any) -> Any:
    scaled = x * math.pi
    return m.where(x == 0.0, 1.0, m.sin(scaled) / scaled)


@unary_formulas.register("special_entr")
def entr(m: Any, x: Any) -> Any:
    """-x log x, 0 at 0, -inf below."""
    return m.where(x > 0.0, -x * m.log(x), m.where(x == 0.0, 0.0, m.where(x < 0.0, -math.inf, x)))


@binary_formulas.register("special_xlog1py")
def xlog1py(m: Any, x: Any, y: Any) -> Any:
    """x log(1 + y), which is 0 for x = 0 unless y is NaN."""
    return m.where(y != y, math.nan, m.where(x == 0.0, 0.0, x * m.log1p(y)))


# -- Chebyshev polynomials --------------------------------------------------------------------------------------------

# For each kind: the term that degree 1 adds to 2x (T: half of it), and the highest degree always computed by
# recurrence.
KINDS = {"t": (0.0, 6), "u": (0.0, 8), "v": (-1.0, 8), "w": (1.0, 8)}


def _chebyshev(m: Any, kind: str, x: Any, n: Any, by_recurrence: int) -> Any:
    """A Chebyshev polynomial of degree trunc(n), 0 below degree 0: low degrees by the recurrence, the others by their
    trigonometric form on (-1, 1), by the hyperbolic one outside, and by their values at the ends."""
    n = m.trunc(n)
    odd = n - 2.0 * m.floor(n * 0.5)
    sign = 1.0 - 2.0 * odd
    size = m.abs(x)
    angle, growth = m.acos(x), m.acosh(size)
    below = x < 0.0
    if kind == "t":
        inside, outside = m.cos(n * angle), m.cosh(n * growth)
        right, left = 1.0, sign
        outside = m.where(m.isinf(x), math.nan, m.where(below, sign * outside, outside))  # as the recurrence gives
    elif kind == "u":
        inside, outside = m.sin((n + 1.0) * angle) / m.sin(angle), m.sinh((n + 1.0) * growth) / m.sinh(growth)
        right, left = n + 1.0, sign * (n + 1.0)
        outside = m.where(below, sign * outside, outside)
    else:
        even = m.cosh((n + 0.5) * growth) / m.cosh(growth * 0.5)
        uneven = m.sinh((n + 0.5) * growth) / m.sinh(growth * 0.5)
        small, large = 1.0, n + n + 1.0
        if kind == "v":
            inside = m.cos((n + 0.5) * angle) / m.cos(angle * 0.5)
            outside, right, left = m.where(below, sign * uneven, even), small, sign * large
        else:
            inside = m.sin((n + 0.5) * angle) / m.sin(angle * 0.5)
            outside, right, left = m.where(below, sign * even, uneven), large, sign * small
    value = m.where(size < 1.0, inside, outside)
    before: Any = 1.0
    last = x if kind == "t" else x + x + KINDS[kind][0]
    value = m.where(n == 0.0, before, m.where(n == 1.0, last, value))
    for degree in range(2, by_recurrence + 1):
        before, last = last, (x + x) * last - before
        value = m.where(n == float(degree), last, value)
    value = m.where(x == 1.0, right, m.where(x == -1.0, left, value))
    return m.where(n < 0.0, 0.0, value)


def _polynomial(kind: str, shifted: bool) -> Formula:
    if shifted:
        return lambda m, x, n: _chebyshev(m, kind, x + x - 1.0, n, 6)
    return lambda m, x, n: _chebyshev(m, kind, x, n, KINDS[kind][1])


for _kind in KINDS:
    binary_formulas.add(f"special_chebyshev_polynomial_{_kind}", _polynomial(_kind, False))
    binary_formulas.add(f"special_shifted_chebyshev_polynomial_{_kind}", _polynomial(_kind, True))
