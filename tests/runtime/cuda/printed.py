"""A printed module, as small as such modules are."""

from __future__ import annotations

from types import SimpleNamespace

TEXT = """\
import triton
import triton.language as tl


@triton.jit(do_not_specialize=['s0'])
def {symbol}(in0, out0, s0, XBLOCK: tl.constexpr, INDEX: tl.constexpr):
    s0 = s0.to(INDEX)
    x = tl.program_id(0).to(INDEX) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = x < s0 * 1024
    t0 = tl.load(in0 + x)
    tl.device_assert(t0 >= 0, "index out of bounds for dimension with size {{s0}}")
    tl.store(out0 + x, t0 + {amount}, xmask)


SIGNATURE = {{'in0': '*fp32', 'out0': '*fp32', 's0': 'i32', 'XBLOCK': 'constexpr', 'INDEX': 'constexpr'}}
BLOCKS = {{'XBLOCK': 1024}}
WARPS = 4


def launch(s0):
    return (s0,), tl.int64 if s0 >= 2097152 else tl.int32
"""


def printed(symbol: str = "kernel_a", amount: str = "1.0") -> SimpleNamespace:
    """A kernel that adds `amount` to s0 rows of 1024 numbers; indices have 64 bits from 2**21 rows on."""
    return SimpleNamespace(symbol=symbol, source=TEXT.format(symbol=symbol, amount=amount))
