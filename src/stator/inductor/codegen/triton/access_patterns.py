"""Which elements of memory the iterations of a kernel touch side by side. Decides nothing and prints nothing."""

from __future__ import annotations

import itertools
from collections import defaultdict

from stator.inductor.codegen.kernel import Kernel
from stator.shapes.expr import Expr

_SHORTEST_SIDE = 16  # of a tile


def accesses(kernel: Kernel) -> list[tuple[Expr, int]]:
    """(index, positions of the value that is loaded or stored) of all accesses to memory."""
    loads = [(value.args[1], at) for at, value in enumerate(kernel.values) if value.name == "load"]
    return loads + [(store.index, store.value) for store in kernel.stores]


def narrowest(kernel: Kernel) -> int:
    """Bytes of the narrowest element that every iteration loads or stores."""
    every = (1 << len(kernel.loops)) - 1
    found = [kernel.values[at].dtype.itemsize for index, at in accesses(kernel) if kernel.loops_of(index) == every]
    return min(found, default=4)


def inner_loads(kernel: Kernel) -> int:
    return len({v.args[0] for v in kernel.values if v.name == "load" and v.loops & kernel.inner_bits})


def inner_reads(kernel: Kernel) -> int:
    """Loads for each iteration of the inner loops, also of several places of one buffer."""
    return sum(value.name == "load" and value.loops & kernel.inner_bits != 0 for value in kernel.values)


def crossing_loops(kernel: Kernel) -> tuple[int, int] | None:
    """Two long loops of which some buffers that both walk through are contiguous along one, others along the other."""
    along: dict[int, int] = defaultdict(int)  # a loop -> all loops of accesses that are contiguous along it
    for index, _ in accesses(kernel):
        for at in range(kernel.outer):
            if index.coefficient(kernel.loops[at]) == 1:
                along[at] |= kernel.loops_of(index)
    long = sorted(at for at in along if kernel.typical[at] >= _SHORTEST_SIDE)
    pairs = itertools.combinations(long, 2)
    return max(((a, b) for a, b in pairs if along[a] >> b & along[b] >> a & 1), default=None)


def neighbours_are_outer(kernel: Kernel) -> bool:
    """True if most accesses touch neighbouring elements along the last shared loop, not along the last inner loop."""
    if not kernel.outer:
        return False
    shared, inner = kernel.loops[kernel.outer - 1], kernel.loops[-1]
    votes = 0
    for index, _ in accesses(kernel):
        if shared in index.symbols and inner in index.symbols:
            votes += (index.coefficient(shared) == 1) - (index.coefficient(inner) == 1)
    return votes > 0
