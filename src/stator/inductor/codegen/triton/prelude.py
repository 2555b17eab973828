"""Helper functions for generated kernels, as Triton text. A kernel's module contains the helpers that it calls."""

from __future__ import annotations

import re

from .random_helpers import RANDOM_HELPERS

HEAD = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""

HELPERS = {
    **RANDOM_HELPERS,
    "floor_div": """
@triton.jit
def floor_div(x, y):
    quotient = x // y  # rounds towards zero, as C does
    return quotient - ((x % y != 0) & ((x < 0) != (y < 0))).to(quotient.dtype)
""",
    "floor_mod": """
@triton.jit
def floor_mod(x, y):
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
""",
    "float_mod": """
@triton.jit
def float_mod(x, y):
    rest = libdevice.fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
""",
    "int_pow": """
@triton.jit
def int_pow(x, y):
    x = x + (y & 0)  # one base for each exponent: a loop may not change the shape of what it carries
    result = x * 0 + 1
    for _ in range(x.dtype.primitive_bitwidth):  # a step for each bit of the exponent
        result = tl.where((y & 1) != 0, result * x, result)
        x = x * x
        y = y >> 1
    return result
""",
    "sign": """
@triton.jit
def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
""",
    # Polynomials for erf(x) / x - 1 in x * x, and for log2(1 - erf(x)) / x in x, whose largest relative errors are
    # smallest. One selection takes less time than that of each coefficient in the device library.
    "error_function": """
@triton.jit
def error_function(x):  # of float32
    size, square = tl.abs(x), x * x
    near = tl.fma(square, 7.85390438977629e-05, -0.0008010207675397396)
    near = tl.fma(near, square, 0.005188329610973597)
    near = tl.fma(near, square, -0.026853812858462334)
    near = tl.fma(near, square, 0.1128358542919159)
    near = tl.fma(near, square, -0.3761262595653534)
    near = tl.fma(near, square, 0.12837916612625122)
    far = tl.fma(size, -1.925327342178207e-05, 0.0004966111737303436)
    far = tl.fma(far, size, -0.005382295232266188)
    far = tl.fma(far, size, 0.03455463796854019)
    far = tl.fma(far, size, -0.15358959138393402)
    far = tl.fma(far, size, -0.9161315560340881)
    far = 1.0 - libdevice.exp2(tl.fma(far, size, -1.628345251083374) * size)
    return libdevice.copysign(tl.where(size < 1.0, tl.fma(near, size, size), far), x)
""",
    # As above, for tanh(x) / x - 1 in x * x. Without branches, which the lanes of a warp seldom take together.
    "hyperbolic_tangent": """
@triton.jit
def hyperbolic_tangent(x):  # of float32
    size, square = tl.abs(x), x * x
    near = tl.fma(square, -0.005895155947655439, 0.020795969292521477)
    near = tl.fma(near, square, -0.053783830255270004)
    near = tl.fma(near, square, 0.13331924378871918)
    near = tl.fma(near, square, -0.33333298563957214)
    power = libdevice.exp2(size * 2.885390081777927)
    far = 1.0 - libdevice.fast_dividef(tl.full([], 2.0, tl.float32), power + 1.0)
    return tl.where(size < 0.6, tl.fma(near, square, 1.0) * x, tl.where(x < 0.0, -far, far))
""",
    "wrap_index": """
@triton.jit
def wrap_index(index, size):
    return tl.where(index < 0, index + size, index)
""",
    "combine_sum": """
@triton.jit
def combine_sum(x, y):
    return x + y
""",
    "combine_prod": """
@triton.jit
def combine_prod(x, y):
    return x * y
""",
    # The logarithm of e**x + e**y. Infinities of one sign are at no distance from each other.
    "combine_logsumexp": """
@triton.jit
def combine_logsumexp(x, y):
    low = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    high = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    sum = high + libdevice.log1p(tl.exp(low - high))
    return tl.where((low == high) & (tl.abs(high) == float("inf")), high, sum)
""",
    "combine_xor_sum": """
@triton.jit
def combine_xor_sum(x, y):
    return x ^ y
""",
    "combine_any": """
@triton.jit
def combine_any(x, y):
    return x | y
""",
    "combine_all": """
@triton.jit
def combine_all(x, y):
    return x & y
""",
    "combine_max": """
@triton.jit
def combine_max(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "combine_min": """
@triton.jit
def combine_min(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "combine_sum_and_sum": """
@triton.jit
def combine_sum_and_sum(x, second_x, y, second_y):
    return x + y, second_x + second_y
""",
    "combine_argmax": """
@triton.jit
def combine_argmax(x, at_x, y, at_y):
    same = (x == y) | ((x != x) & (y != y))
    first = (at_y < 0) | ((at_x >= 0) & ((same & (at_x < at_y)) | (~same & ((x > y) | (x != x)))))
    return tl.where(first, x, y), tl.where(first, at_x, at_y)
""",
    "combine_argmin": """
@triton.jit
def combine_argmin(x, at_x, y, at_y):
    same = (x == y) | ((x != x) & (y != y))
    first = (at_y < 0) | ((at_x >= 0) & ((same & (at_x < at_y)) | (~same & ((x < y) | (x != x)))))
    return tl.where(first, x, y), tl.where(first, at_x, at_y)
""",
    "append_argmax": """
@triton.jit
def append_argmax(x, at_x, y, at_y):  # at_y is behind at_x
    better = ((y > x) | (y != y)) & (x == x)
    return tl.where(better, y, x), tl.where(better, at_y, at_x)
""",
    "append_argmin": """
@triton.jit
def append_argmin(x, at_x, y, at_y):
    better = ((y < x) | (y != y)) & (x == x)
    return tl.where(better, y, x), tl.where(better, at_y, at_x)
""",
    # The largest element and the sum of exp(element - largest), where powers below the smallest normal number add
    # nothing. A sum of 0: there was no element, or only -inf.
    "append_largest_and_total": """
@triton.jit
def append_largest_and_total(largest, total, x):
    distance = x - largest
    factor = libdevice.exp2(tl.abs(distance) * -1.4426950408889634)
    total = tl.where(distance > 0, tl.fma(total, factor, 1.0), total + factor)
    return tl.maximum(largest, x, propagate_nan=tl.PropagateNan.ALL), total
""",
    # The same for groups of neighbours that one thread has, [rows, groups, neighbours]: one new maximum for each group.
    "append_groups_to_largest_and_total": """
@triton.jit
def append_groups_to_largest_and_total(largest, total, x):
    new = tl.maximum(largest, tl.reduce(x, 2, combine_max), propagate_nan=tl.PropagateNan.ALL)
    total *= libdevice.exp2((largest - new) * 1.4426950408889634)
    powers = libdevice.exp2((x - new[:, :, None]) * 1.4426950408889634)
    return new, total + tl.reduce(powers, 2, combine_sum)
""",
    "combine_largest_and_total": """
@triton.jit
def combine_largest_and_total(x, total_x, y, total_y):
    largest = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    total_x *= libdevice.exp2((x - largest) * 1.4426950408889634)
    return largest, total_x + total_y * libdevice.exp2((y - largest) * 1.4426950408889634)
""",
    "finish_largest_and_total": """
@triton.jit
def finish_largest_and_total(largest, total):  # the distance of an infinity from itself is NaN
    infinite = (tl.abs(largest) == float("inf")) | (total == 0)
    return tl.where(total == 0, float("-inf"), largest), tl.where(infinite, float("nan"), total)
""",
}


def joint_name(first: str, second: str) -> str:
    """The name of the helper that combines two reductions at once; there is one where kernels often need it."""
    return f"combine_{first}_and_{second}"


def helpers_for(text: str) -> str:
    """The text of the helpers that `text` calls, and of those that these call."""
    called: set[str] = set()
    while found := _called(text) - called:
        called |= found
        text = "".join(HELPERS[name] for name in found)
    return "\n".join(helper for name, helper in HELPERS.items() if name in called)


def _called(text: str) -> set[str]:
    return HELPERS.keys() & set(re.findall(r"\b[a-z_]+\b", text))
