"""Texts about the sizes of a kernel's loops: work, tails, parts. Constants stay constants; symbolic sizes are computed
when the kernel runs. Prints no loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.loops.vocabulary import HEAVY
from stator.inductor.sizes import product
from stator.shapes.expr import Expr, as_expr

# With fewer elements of simple work than this, one thread is faster: a parallel region costs some microseconds
_SERIAL_WORK = 32768
_PLENTY = 64  # iterations of a loop that give every thread work


def is_symbolic(kernel: Kernel) -> bool:
    return any(isinstance(size, Expr) for size in kernel.sizes)


def _work_of_iteration(kernel: Kernel) -> int:
    each = sum(8 if value.name in HEAVY else 1 for value in kernel.values if value.name != "constant")
    return max(1, each // 4)


def example_work(kernel: Kernel) -> int:
    """The elements of simple work in the example."""
    return math.prod(kernel.typical) * _work_of_iteration(kernel)


def suits_threads(kernel: Kernel) -> bool:
    """True if the example has enough work for several threads."""
    return example_work(kernel) > _SERIAL_WORK


def may_suit_threads(kernel: Kernel) -> bool:
    """True if some sizes have enough work for several threads; the kernel finds out when it runs."""
    return is_symbolic(kernel) or suits_threads(kernel)


def shared_loop(kernel: Kernel, loops: Sequence[int], steps: Sequence[int]) -> int | None:
    """The position of the loop that threads share: the first with plenty of iterations, each as long as its step. Where
    the example is too small for threads, and no loop of constant size has plenty, the sizes for which threads pay are
    those with many iterations of loops over symbols."""
    counts = [math.ceil(kernel.typical[loop] / step) for loop, step in zip(loops, steps, strict=True)]
    symbolic = [isinstance(kernel.sizes[loop], Expr) for loop in loops]
    certain = max((count for count, varies in zip(counts, symbolic, strict=True) if not varies), default=0)
    if not suits_threads(kernel) and certain < _PLENTY:
        counts = [max(count, _PLENTY) if varies else count for count, varies in zip(counts, symbolic, strict=True)]
    for at, count in enumerate(counts):
        if count >= _PLENTY:
            return at
    best = max(range(len(counts)), key=lambda at: (counts[at], -at))
    return best if counts[best] > 1 else None


def work(kernel: Kernel) -> str:
    """The elements of simple work, the argument of `threads_for`."""
    if not is_symbolic(kernel):
        return kernel.indices.bound(example_work(kernel))
    return kernel.text(as_expr(product(kernel.sizes)) * _work_of_iteration(kernel))


def rest(kernel: Kernel, loop: int) -> str:
    """The declaration of `n`, the number of lanes behind the whole vectors of a loop."""
    size = kernel.size(loop)
    if isinstance(kernel.sizes[loop], Expr):
        return f"const int n = (int)({size} % LANES)"
    return f"constexpr int n = {size} % LANES"


def parts(kernel: Kernel, loop: int, count: int, grain: int) -> tuple[str, int]:
    """(length, number) of the at most `count` parts of a loop, multiples of `grain` long. Parts of symbolic loops may
    be empty."""
    size = kernel.sizes[loop]
    if isinstance(size, Expr):
        step = count * grain
        return f"(({kernel.text(size)} + {step - 1}) / {step} * {grain})", count
    chunk = math.ceil(math.ceil(size / count) / grain) * grain
    return str(chunk), math.ceil(size / chunk)


def part_bounds(kernel: Kernel, loop: int, chunk: str) -> list[str]:
    """The declarations of `begin` and `end` of a part."""
    size, begin = kernel.size(loop), f"part * {chunk}"
    if isinstance(kernel.sizes[loop], Expr):
        begin = f"{begin} < {size} ? {begin} : {size}"
    return [
        f"const int64_t begin = {begin};",
        f"const int64_t end = begin + {chunk} < {size} ? begin + {chunk} : {size};",
    ]
