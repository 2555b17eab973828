"""Finds reductions that one accumulation computes together. Prints nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stator.inductor.codegen.kernel import Kernel
from stator.inductor.loops.body import Ref


def sums_with_maxima(kernel: Kernel, reduces: Sequence[int], behind: Sequence[int]) -> dict[int, int]:
    """For maxima among `reduces`, the sums of exponentials of the distances from them, which run over the row in the
    same loop: where the maximum grows, the sum so far shrinks (M. Milakov and N. Gimelshein, 2018). Empty unless all
    reductions of the next phase, `behind`, are such sums: else that phase needs its loop anyway."""
    found: dict[int, int] = {}
    for total in behind:
        largest = _maximum_below(kernel, total)
        if largest not in reduces or largest in found:
            return {}
        found[largest] = total
    return found


def _maximum_below(kernel: Kernel, total: int) -> int:
    """The maximum in sum(exp(x - max(x))), or -1."""
    kind, exponential = kernel.values[total].args
    if kind != "sum" or kernel.values[exponential.position].name != "exp":
        return -1
    distance = kernel.values[kernel.values[exponential.position].args[0].position]
    if distance.name != "sub" or distance.dtype is not torch.float32:
        return -1
    value, largest = distance.args
    reduce = kernel.values[largest.position]
    return largest.position if reduce.name == "reduce" and reduce.args == ("max", Ref(value.position)) else -1


def extrema_with_positions(kernel: Kernel, reduces: Sequence[int]) -> dict[int, int]:
    """For extrema whose positions are computed, too, the reductions to these positions."""
    positions = {kernel.values[at].args: at for at in reduces}
    return {
        at: positions[f"arg{kind}", source]
        for (kind, source), at in positions.items()
        if (f"arg{kind}", source) in positions
    }
