"""Random bits to standard normal numbers, by operations that round alike everywhere: + - * / and square root.

M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37 (1988):
rational functions of the middle, and of sqrt(-log(p)) in the tails; PPND7 for float32, PPND16 for float64. Generated
kernels repeat these steps (runtime/csrc/vec_random.h), so that their numbers agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Steps:
    """Coefficients, lowest power first. `far`: for sqrt(-log(p)) > 5, which 32 bits do not reach.

    shift: of the exponent in the bits of a float. root: the bits of sqrt(1/2). logarithm: 2/3, 2/5, ... of the series
        of log((1 + s) / (1 - s)).
    """

    real: torch.dtype
    width: int
    shift: int
    root: int
    logarithm: tuple[float, ...]
    middle: tuple[Sequence[float], Sequence[float]]
    tail: tuple[Sequence[float], Sequence[float]]
    far: tuple[Sequence[float], Sequence[float]] | None


SINGLE = Steps(
    real=torch.float32,
    width=32,
    shift=23,
    root=0x3F3504F3,
    logarithm=tuple(2 / k for k in (3, 5, 7, 9)),
    middle=(
        (3.3871327179, 50.434271938, 159.29113202, 59.109374720),
        (1.0, 17.895169469, 78.757757664, 67.187563600),
    ),
    tail=((1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103), (1.0, 0.73700164250, 0.12021132975)),
    far=None,
)
DOUBLE = Steps(
    real=torch.float64,
    width=64,
    shift=52,
    root=0x3FE6A09E667F3BCD,
    logarithm=tuple(2 / k for k in (3, 5, 7, 9, 11, 13, 15, 17, 19, 21)),
    middle=(
        (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
        (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077, 21213.794301586595867,
         39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
    ),
    tail=(
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
         1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550, 0.148103976427480074590,
         0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
    far=(
        (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
         0.0265321895265761230930, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
        (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525, 7.86869131145613259100e-4,
         1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)  # fmt: skip
LOG_2 = 0.6931471805599453


def normal_quantile(words: torch.Tensor) -> torch.Tensor:
    """Return the normal quantile of (word + 1/2) / 2**width + 1/2 for words of int32 (to float32) or int64 (to
    float64)."""
    steps = SINGLE if words.dtype is torch.int32 else DOUBLE
    above = words ^ (words >> (steps.width - 1))  # distance from the middle, in 0 .. 2**(width - 1) - 1
    below = above ^ ((1 << (steps.width - 1)) - 1)  # distance from the end
    q = (above.to(steps.real) + 0.5) * 2.0**-steps.width
    p = (below.to(steps.real) + 0.5) * 2.0**-steps.width
    r = 0.180625 - q * q
    t = _square_root(-_log(p, steps))
    numerator, denominator = (_polynomial(part, t - 1.6) for part in steps.tail)
    if steps.far is not None:
        beyond = t > 5.0
        numerator, denominator = (
            torch.where(beyond, _polynomial(part, t - 5.0), near)
            for part, near in zip(steps.far, (numerator, denominator), strict=True)
        )
    middle = r >= 0.0
    numerator = torch.where(middle, _polynomial(steps.middle[0], r) * q, numerator)
    denominator = torch.where(middle, _polynomial(steps.middle[1], r), denominator)
    value = numerator / denominator
    return torch.where(words < 0, -value, value)


def _log(x: torch.Tensor, steps: Steps) -> torch.Tensor:
    """Return log(x) for positive normal x: 2**k (1 + f), then the series in s = f / (2 + f)."""
    whole = x.view(torch.int32 if steps.width == 32 else torch.int64)
    k = (whole - steps.root) >> steps.shift
    f = (whole - (k << steps.shift)).view(steps.real) - 1.0
    s = f / (f + 2.0)
    z = s * s
    return k.to(steps.real) * LOG_2 + (_polynomial(steps.logarithm, z) * z * s + s * 2.0)


def _square_root(x: torch.Tensor) -> torch.Tensor:
    """Return the correctly rounded root; torch.sqrt is not correctly rounded if a vector library computes it."""
    if x.dtype is torch.float32:
        return x.to(torch.float64).sqrt().to(torch.float32)
    y = x.sqrt()
    head = y * 134217729.0  # 2**27 + 1 splits y in halves whose products are exact (T. J. Dekker, 1971)
    head = head - (head - y)
    rest = y - head
    missing = ((x - head * head) - 2.0 * (head * rest)) - rest * rest
    return y + missing / (2.0 * y)


def _polynomial(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        value = value * x + coefficient
    return value
