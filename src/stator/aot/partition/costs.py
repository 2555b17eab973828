"""What computing a node again costs, and what keeping its result costs: rough numbers, in bytes of memory traffic.

Only the order of the numbers matters. Compute counts as the bytes that a core could have moved meanwhile.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from torch import fx
from torch._ops import OpOverload

from stator.graph.ir.schema import SchemaFacts, has_effects, op_info
from stator.prims.record import TensorMeta

# Arithmetic that costs next to nothing beside the memory that it reads or writes
_CHEAP_NAMES = """
    abs add sub rsub mul neg square reciprocal relu clamp clamp_min clamp_max maximum minimum fmax fmin where eq ne lt
    le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor sign
    threshold threshold_backward masked_fill addcmul lerp div sqrt rsqrt copysign isnan isinf hardtanh leaky_relu
    hardsigmoid hardswish hardtanh_backward leaky_relu_backward hardsigmoid_backward hardswish_backward fill
"""
CHEAP = frozenset(_CHEAP_NAMES.split())
# Reductions that loops do in one or two passes; others (sorting, scanning, pooling) count as library calls
PASSES = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "any", "all", "linalg_vector_norm", "norm"), 1.0),
    **dict.fromkeys(("var_mean", "var", "std", "std_mean", "logsumexp"), 1.5),
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "_fused_rms_norm"), 1.0),
    "native_group_norm": 1.0,
}
_EXACT = frozenset(("amax", "amin", "any", "all"))
MOVES = frozenset(("clone", "_to_copy", "copy", "cat", "stack", "constant_pad_nd", "roll", "flip", "repeat"))

CHEAP_PER_BYTE = 0.1
FUNCTION_PER_BYTE = 0.5  # exponentials, roots of polynomials
MOVE_PER_BYTE = 0.3
GATHER_PER_BYTE = 1.0
NUMBER = 8  # a random number computed from a seed
OPERATION = 512  # an operation more in a kernel
TENSOR = 4096  # one tensor more to allocate, hand over and free
FLOATING_OPERATIONS_PER_BYTE = 8  # of products and convolutions


def bytes_of(node: fx.Node) -> int:
    """Bytes of a tensor, or of all tensors of a tuple."""
    return _bytes(node.meta.get("val"))


def _bytes(meta: Any) -> int:
    if isinstance(meta, TensorMeta):
        sizes = [
            _hint(size)
            for size, stride in zip(meta.shape, meta.stride, strict=True)
            if _hint(stride) or not _hint(size)
        ]
        return math.prod(sizes) * meta.dtype.itemsize
    if isinstance(meta, (tuple, list)):
        return sum(map(_bytes, meta))
    return 0


def _hint(size: Any) -> int:
    """The size in the example, on which the code does not rely."""
    if type(size) is int:
        return size
    return size.node.hint if size.node.has_hint() else 64  # type: ignore[no-any-return]


def is_library_call(node: fx.Node) -> bool:
    """Whether the node runs as a kernel of its own, with operands and results in memory."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    info = op_info(target)
    return not info.is_view and (not _runs_in_loops(info) or has_effects(target, node.args, node.kwargs))


def _runs_in_loops(info: SchemaFacts) -> bool:
    return info.name in MOVES or info.name in PASSES or not _LOOPS.isdisjoint(info.record.tags)


_LOOPS = frozenset(("pointwise", "creation", "index"))


def computing_cost(node: fx.Node) -> int | None:
    """The cost of computing a node again next to its use; None for nodes that run as kernels of their own."""
    if node.target is operator.getitem or node.op == "get_attr":
        return 0
    assert isinstance(node.target, OpOverload)
    info = op_info(node.target)
    if info.is_view:
        return 0
    if not _runs_in_loops(info) or has_effects(node.target, node.args, node.kwargs):
        return None
    tags, name, size = info.record.tags, info.name, bytes_of(node)
    if name in MOVES:
        return OPERATION + int(MOVE_PER_BYTE * size)
    if name in PASSES:
        return OPERATION + int(PASSES[name] * sum(map(bytes_of, node.all_input_nodes)))
    if "pointwise" in tags:
        return OPERATION + int((CHEAP_PER_BYTE if name in CHEAP else FUNCTION_PER_BYTE) * size)
    if "creation" in tags:
        return OPERATION
    return OPERATION + int(GATHER_PER_BYTE * size)


def rounds(node: fx.Node) -> bool:
    """Whether the loops of a node add numbers up, in an order of their own in each kernel."""
    name = op_info(node.target).name if isinstance(node.target, OpOverload) else ""
    return name in PASSES and name not in _EXACT


def library_cost(node: fx.Node) -> int:
    """The cost of calling a library operator again: its memory traffic, or its arithmetic where that is more."""
    traffic = bytes_of(node) + sum(map(bytes_of, node.all_input_nodes))
    return OPERATION + max(2 * traffic, _floating_operations(node) // FLOATING_OPERATIONS_PER_BYTE)


def _floating_operations(node: fx.Node) -> int:
    """Of products (result elements times the inner size), convolutions (times the window) and attention."""
    assert isinstance(node.target, OpOverload)
    tags = op_info(node.target).record.tags
    metas = [used.meta.get("val") for used in node.all_input_nodes]
    shapes = [[_hint(size) for size in meta.shape] for meta in metas if isinstance(meta, TensorMeta)]
    own = node.meta.get("val")
    result = own[0] if isinstance(own, (tuple, list)) and own else own
    if not shapes or not isinstance(result, TensorMeta):
        return 0
    elements = math.prod(map(_hint, result.shape))
    if "matmul" in tags:
        inner = next((shape[-1] for shape in shapes[-2:] if shape), 1)  # addmm's first operand is the bias
        return 2 * elements * inner
    if "conv" in tags and len(shapes) > 1:
        return 2 * elements * math.prod(shapes[1][1:])
    if "attention" in tags and len(shapes) > 1 and len(shapes[1]) > 1:
        return 4 * elements * shapes[1][-2]
    return 0
