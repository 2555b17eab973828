"""Prints random bits and normal numbers as Triton text, bit by bit equal to prims/operators/random.py and
normal_quantile.py.

Text only: nothing here imports triton.
"""

from __future__ import annotations

from collections.abc import Sequence

from stator.prims.special.normal_quantile import DOUBLE, LOG_2, SINGLE, Steps

from .types import literal

BITS = """
@triton.jit
def random_bits(seed, stream, index, draw: tl.constexpr):
    # Philox 4x32-10
    index = index.to(tl.int64)
    counter = (index >> 6) * 16 + (index & 15)
    w0 = counter.to(tl.uint32)
    w1 = (counter >> 32).to(tl.uint32)
    w2 = stream.to(tl.uint32) + w0 * 0
    w3 = tl.full([], draw, tl.uint32) + w0 * 0
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        first = w0.to(tl.uint64) * 0xD2511F53
        second = w2.to(tl.uint64) * 0xCD9E8D57
        w0 = (second >> 32).to(tl.uint32) ^ w1 ^ k0
        w1 = second.to(tl.uint32)
        w2 = (first >> 32).to(tl.uint32) ^ w3 ^ k1
        w3 = first.to(tl.uint32)
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    odd = (index & 16) != 0
    word = tl.where((index & 32) != 0, tl.where(odd, w3, w2), tl.where(odd, w1, w0))
    return word.to(tl.int32, bitcast=True)
"""


def _times(first: str, second: str) -> str:
    """A product that is rounded before any addition (no fused multiply-add)."""
    return f"libdevice.mul_rn({first}, {second})"


def _normal(name: str, steps: Steps) -> str:
    real = f"tl.float{steps.width}"
    whole = f"tl.int{steps.width}"

    def number(value: float) -> str:
        return literal(value, steps.real)

    def polynomial(result: str, coefficients: Sequence[float], x: str) -> list[str]:
        lines = [f"{result} = {_times(x, number(coefficients[-1]))} + {number(coefficients[-2])}"]
        return lines + [f"{result} = {_times(result, x)} + {number(c)}" for c in reversed(coefficients[:-2])]

    def rational(suffix: str, parts: tuple[Sequence[float], Sequence[float]], x: str) -> list[str]:
        return polynomial(f"top_{suffix}", parts[0], x) + polynomial(f"bottom_{suffix}", parts[1], x)

    exact = steps.width == 64  # Triton's division and root of float32 are approximate
    unit, half = number(2.0**-steps.width), number(0.5)
    lines = [
        f"above = words ^ (words >> {steps.width - 1})",
        f"below = above ^ {(1 << (steps.width - 1)) - 1}",
        f"q = {_times(f'(above.to({real}) + {half})', unit)}",
        f"p = {_times(f'(below.to({real}) + {half})', unit)}",
        f"r = {number(0.180625)} - {_times('q', 'q')}",
        f"whole = p.to({whole}, bitcast=True)",
        f"k = (whole - {steps.root}) >> {steps.shift}",
        f"f = (whole - (k << {steps.shift})).to({real}, bitcast=True) - {number(1.0)}",
        f"s = f / (f + {number(2.0)})" if exact else f"s = tl.div_rn(f, f + {number(2.0)})",
        f"z = {_times('s', 's')}",
        *polynomial("series", steps.logarithm, "z"),
        f"series = {_times(_times('series', 'z'), 's')} + {_times('s', number(2.0))}",
        f"logarithm = {_times(f'k.to({real})', number(LOG_2))} + series",
        "t = tl.sqrt(-logarithm)" if exact else "t = tl.sqrt_rn(-logarithm)",
        f"u = t - {number(1.6)}",
        *rational("tail", steps.tail, "u"),
    ]
    if steps.far is not None:
        lines += [
            f"v = t - {number(5.0)}",
            *rational("far", steps.far, "v"),
            f"top_tail = tl.where(t > {number(5.0)}, top_far, top_tail)",
            f"bottom_tail = tl.where(t > {number(5.0)}, bottom_far, bottom_tail)",
        ]
    lines += [
        *rational("middle", steps.middle, "r"),
        f"top = tl.where(r >= {number(0.0)}, {_times('top_middle', 'q')}, top_tail)",
        f"bottom = tl.where(r >= {number(0.0)}, bottom_middle, bottom_tail)",
        "value = top / bottom" if exact else "value = tl.div_rn(top, bottom)",
        "return tl.where(words < 0, -value, value)",
    ]
    return "\n    ".join([f"\n@triton.jit\ndef {name}(words):", *lines, ""])


RANDOM_HELPERS = {
    "random_bits": BITS,
    "normal_single": _normal("normal_single", SINGLE),
    "normal_double": _normal("normal_double", DOUBLE),
}
