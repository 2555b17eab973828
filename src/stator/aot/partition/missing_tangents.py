"""What the forward has to save for a backward to which some tangents are missing, where functions of the program's are
told so and compute something else then. How values are saved is decided in partition.py.
"""

from __future__ import annotations

import itertools

from stator.aot.trace.joint import Joint
from stator.aot.trace.retrace import RetraceableProgram
from stator.base.errors import Unsupported

from .forward_backward_sets import divide
from .partition import Partition, saved_names, split

_MOST_TANGENTS = 5


def saved_otherwise(program: RetraceableProgram, joint: Joint, parts: Partition) -> frozenset[str]:
    """Names of what the backward for some of the tangents needs, and `parts`, which is made for all of them, lacks.

    Raises Unsupported where the forward does not compute it, or where there are too many tangents to try.
    """
    if len(joint.tangents) > _MOST_TANGENTS:
        raise Unsupported("custom-function", "set_materialize_grads(False) in a graph of many results")
    known = frozenset(saved_names(parts))
    more: set[str] = set()
    for count in range(1, len(joint.tangents)):
        for positions in itertools.combinations(joint.tangents, count):
            other = program.trace(positions)
            sides = divide(other)
            found = split(other, sides, [node for node in sides.nodes if f"saved_{node.name}" in known | more])
            more.update(set(saved_names(found)) - known)
    lacking = more - {f"saved_{node.name}" for node in joint.graph.graph.nodes}
    if lacking:
        raise Unsupported("custom-function", "a backward that needs other values where a result has no gradient")
    return frozenset(more)
