"""Deviations of long rows are measured from the mean of a part of the row, so that memory is read once less.

Squared deviations d from any pivot p give those from the mean: their sum less the square of the sum of d over the
number of elements. Rounding errors grow by (p - mean)^2 / variance. Of the mean of a share s of the elements this is at
most 1 / s, whatever the elements are, because those alone contribute s * (p - mean)^2 to the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from stator.inductor.loops.body import Ref
from stator.shapes.expr import Expr

from .kernel import Kernel, KernelValue

_SHARE = 16  # one of so many elements is in the part
_LONG = 4096  # elements of a row: shorter ones are read again as quickly


def sample_means(kernel: Kernel, lanes: int | None, step: int) -> None:
    """Replace the sums of pivots by sums over a part of the longest inner loop, where these have a run of their own.
    The third argument of such a sum is that loop and the end of the part. lanes: the loop of the vector lanes, along
    which parts are whole steps."""
    inner = kernel.sizes[kernel.outer :]
    if not kernel.pivots or not kernel.outer or lanes is None or lanes < kernel.outer or kernel.scans:
        return
    elements = prod(kernel.typical[kernel.outer :])
    if any(isinstance(size, Expr) for size in inner) or elements < _LONG:
        return
    users = _users(kernel)
    pivots = {pivot.total: pivot for pivot in kernel.pivots if pivot.total in users}
    if any(not users[at] <= allowed for pivot in pivots.values() for at, allowed in pivot.users.items()):
        return
    runs = {kernel.values[total].phase for total in pivots}
    others = [kernel.values[at].phase for at in users if kernel.values[at].name == "reduce" and at not in pivots]
    stored = [store.phase + 1 for store in kernel.stores if store.loops & kernel.inner_bits]
    if not runs.isdisjoint((*others, *stored)):
        return
    loop = max(range(kernel.outer, len(kernel.loops)), key=lambda loop: (kernel.typical[loop], loop == lanes))
    step = step if loop == lanes else 1
    part = min(-(-kernel.typical[loop] // (_SHARE * step)) * step, kernel.typical[loop])
    for total, pivot in pivots.items():
        value, mean = kernel.values[total], kernel.values[pivot.mean]
        kernel.values[total] = replace(value, args=(*value.args, (loop, part)))
        kernel.values[pivot.mean] = replace(mean, args=(Ref(total), Ref(len(kernel.values))))
        count = float(elements // kernel.typical[loop] * part)
        kernel.values.append(KernelValue("constant", (count, value.dtype), value.dtype, 0, 0))


def sampled(kernel: Kernel, reduces: Sequence[int]) -> tuple[int, str, str] | None:
    """The loop of which a run with these reductions covers a part, and the bounds of the part."""
    parts = [kernel.values[position].args[2] for position in reduces if len(kernel.values[position].args) > 2]
    return (parts[0][0], "0", str(parts[0][1])) if parts else None


def _users(kernel: Kernel) -> dict[int, set[int]]:
    """The values that read each live value, and -1 for stores."""
    live = kernel.live_values()
    users: dict[int, set[int]] = {at: set() for at in live}
    for at in live:
        for position in kernel.operands(kernel.values[at].args):
            users[position].add(at)
    for store in kernel.stores:
        for position in kernel.store_operands(store):
            users[position].add(-1)
    return users
