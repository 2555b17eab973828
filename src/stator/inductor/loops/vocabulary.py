"""The vocabulary of loop bodies: every operation's name, arity, dtype rule and meaning. Data only.

Conventions of every printer:
- Operands of an elementwise operation have one dtype (except `where`'s condition); lowering inserts `to_dtype`.
- float16 and bfloat16 exist only between a load and a `to_dtype`, or a `to_dtype` and a store. Arithmetic is done in
  float32. Values are rounded where eager would have written memory at the end of the fused chain, and nowhere else.
- Floats are IEEE: NaN propagates through arithmetic, `maximum`, `minimum`; comparisons with NaN are false (`ne` true).
- Signed integers wrap around. No integer is divided by zero: lowering makes no loop where eager may raise for that.
- Booleans are 0 or 1; `add` on bool is or, `mul` and `minimum` are and, `maximum` is or.
- Converting float to integer truncates; out-of-range and NaN inputs give an unspecified integer. To bool: `!= 0`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class OpInfo:
    """`result`: "same" (dtype of the operands), "bool", or "special" (decided by the arguments; see loops/body.py).
    `domain`: the operand dtypes that make sense: "float", "int" (bool included), "number" (all but bool), "any".
    """

    name: str
    arity: int
    result: str
    domain: str
    meaning: str


_TABLE = """
neg          1 same number  -x
abs          1 same number  |x|
sign         1 same number  -1, 0 or 1; NaN gives 0
exp          1 same float   e**x
exp2         1 same float   2**x
expm1        1 same float   e**x - 1, accurate near 0
log          1 same float   natural logarithm; log(0) is -inf, of a negative NaN
log2         1 same float   base-2 logarithm
log10        1 same float   base-10 logarithm
log1p        1 same float   log(1 + x), accurate near 0
sqrt         1 same float   correctly rounded square root; NaN for negatives
rsqrt        1 same float   1 / sqrt(x), both steps rounded
reciprocal   1 same float   1 / x, correctly rounded
sin          1 same float   sine
cos          1 same float   cosine
tan          1 same float   tangent
asin         1 same float   arc sine
acos         1 same float   arc cosine
atan         1 same float   arc tangent
sinh         1 same float   hyperbolic sine
cosh         1 same float   hyperbolic cosine
tanh         1 same float   hyperbolic tangent
asinh        1 same float   inverse hyperbolic sine
acosh        1 same float   inverse hyperbolic cosine
atanh        1 same float   inverse hyperbolic tangent
erf          1 same float   error function
erfc         1 same float   1 - erf(x), accurate in the tail
sigmoid      1 same float   1 / (1 + e**-x)
lgamma       1 same float   log of |gamma(x)|
floor        1 same float   largest integer not above x
ceil         1 same float   smallest integer not below x
trunc        1 same float   x without its fraction
round        1 same float   nearest integer, ties to even
isnan        1 bool float   is x NaN
isinf        1 bool float   is x +inf or -inf
logical_not  1 bool any     x == 0
bitwise_not  1 same int     ~x; on bool: not
add          2 same any     x + y
sub          2 same number  x - y
mul          2 same any     x * y
div          2 same float   x / y, correctly rounded
floor_div    2 same int     integer quotient rounded towards minus infinity (Python's //)
trunc_div    2 same int     integer quotient rounded towards zero (C's /)
mod          2 same number  remainder with the sign of y (Python's %); for floats fmod(x, y), plus y when signs differ
fmod         2 same number  remainder with the sign of x (C's % and fmod)
pow          2 same number  x ** y; for integers y >= 0
atan2        2 same float   angle of the point (y, x): atan2(first, second)
hypot        2 same float   sqrt(x*x + y*y)
copysign     2 same float   magnitude of x with the sign of y
nextafter    2 same float   next representable value after x towards y
maximum      2 same any     larger; NaN if either is NaN
minimum      2 same any     smaller; NaN if either is NaN
fmax         2 same float   larger; a NaN operand is ignored
fmin         2 same float   smaller; a NaN operand is ignored
gcd          2 same int     greatest common divisor, not negative; gcd(0, y) is |y|
zeta         2 same float   Hurwitz's zeta: the sum of (y + k) ** -x over k >= 0
hermite_h    2 same float   Hermite polynomial of degree trunc(y) at x, in the physicists' convention
hermite_he   2 same float   the same, in the probabilists' convention
laguerre_l   2 same float   Laguerre polynomial of degree trunc(y) at x
legendre_p   2 same float   Legendre polynomial of degree trunc(y) at x
bitwise_and  2 same int     x & y; on bool: and
bitwise_or   2 same int     x | y; on bool: or
bitwise_xor  2 same int     x ^ y; on bool: xor
lshift       2 same int     x << y
rshift       2 same int     x >> y, arithmetic for signed
eq           2 bool any     x == y
ne           2 bool any     x != y
lt           2 bool any     x < y
le           2 bool any     x <= y
gt           2 bool any     x > y
ge           2 bool any     x >= y
fma          3 same float   x * y + z, rounded once
where        3 same any     y if the bool x else z; x may be any bool, y and z have one dtype
load         4 special any  load(buffer, index, mask, other)
store        5 special any  store(buffer, index, value, mode, mask)
reduce       2 special any  reduce(kind, value): over all reduction loops
scan         2 special number  scan(kind, value): over all iterations of the reduction loops up to this one
welford      1 special float  mean, sum of squared deviations and count of value, over all reduction loops
get          2 special any  get(value, i): component of a multi-valued result
constant     2 special any  constant(number, dtype)
index_value  2 special any  index_value(index, dtype): an index expression as a number
to_dtype     2 special any  to_dtype(value, dtype)
bitcast      2 special any  bitcast(value, dtype): same bits, same width
indirect     4 special int  indirect(value, size, check, wraps): the value as an index
step         1 special int  step(count): the number of an iteration of a loop of its own, for `total`
total        2 special float  total(step, value): the sum of value over all iterations of step
random       4 special int  random(seed, stream, draw, index): 32 random bits (int32), see prims/operators/random.py
normal       1 special int  standard normal number from random bits: int32 gives float32, int64 gives float64
"""


def _parse(table: str) -> dict[str, OpInfo]:
    found = {}
    for line in table.strip().splitlines():
        name, arity, result, domain, meaning = line.split(None, 4)
        found[name] = OpInfo(name, int(arity), result, domain, meaning)
    return found


VOCABULARY = _parse(_TABLE)

ELEMENTWISE = frozenset(name for name, info in VOCABULARY.items() if info.result != "special")

# Dearer than a handful of multiplications: recomputing such a value costs more than reading a stored value.
_HEAVY = """
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
    sigmoid lgamma pow atan2 hypot fmod mod floor_div trunc_div gcd zeta hermite_h hermite_he laguerre_l
    legendre_p random normal
"""
HEAVY = frozenset(_HEAVY.split())

REDUCTIONS = {
    "sum": "sum; integers wrap; float16/bfloat16 are summed in float32",
    "prod": "product",
    "max": "largest; NaN if any is NaN",
    "min": "smallest; NaN if any is NaN",
    "any": "bool: is any true",
    "all": "bool: are all true",
    "xor_sum": "exclusive or of the bits",
    "argmax": "int64: position of the first largest in the flattened reduction loops; a NaN counts as largest",
    "argmin": "int64: position of the first smallest in the flattened reduction loops; a NaN counts as smallest",
}

SCANS = {
    "sum": "as the reduction",
    "prod": "as the reduction",
    "max": "as the reduction",
    "min": "as the reduction",
    "logsumexp": "logarithm of the sum of powers of e; of floats",
}

# the dtype of `normal(bits)` by the dtype of the bits
NORMAL_DTYPES = {torch.int32: torch.float32, torch.int64: torch.float64}

# These loop for a number of steps that depends on their operands. Only kernels for CPUs have them.
ITERATIVE = frozenset(("gcd", "zeta", "hermite_h", "hermite_he", "laguerre_l", "legendre_p"))

# How a store combines with an element that is written more than once. None: no element may be. "last": the loops run in
# order, and the last iteration wins; on a GPU any one wins. The others combine the value with the memory's content.
STORE_MODES = (None, "add", "max", "min", "mul", "last", "row_sum")
ORDERED_STORE_MODES = ("max", "min", "mul", "last")  # printers without an atomic form of these run the loops in order
# Stores that GPUs combine atomically. Those of floats lose a NaN in `max` and `min`.
ATOMIC_STORES = frozenset((
    *(("add", dtype) for dtype in (torch.float32, torch.float64, torch.int32, torch.int64)),
    *((mode, dtype) for mode in ("max", "min") for dtype in (torch.int32, torch.int64)),
))  # fmt: skip


def reduction_dtype(kind: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of `reduce(kind, value)` for a value of `dtype`."""
    if kind in ("argmax", "argmin"):
        return torch.int64
    return torch.bool if kind in ("any", "all") else dtype
