"""Rewrites of ATen graphs before lowering: `run_passes`, and the list of passes in their order."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from stator.graph.ir.cleanup import remove_dead

from .accumulation import accumulate_into_sums, accumulate_products
from .batch_norm import fold_batch_norms
from .common_subexpressions import merge_common_subexpressions
from .constants import fold_constants
from .devices import move_to_device
from .frozen_inputs import FrozenTensors, freeze_inputs
from .integer_products import multiply_integers
from .merged_products import merge_products
from .no_ops import drop_no_ops
from .shared_heads import share_heads
from .single_batches import multiply_single_batches
from .symbolic_sizes import with_expressions

Pass = Callable[[fx.GraphModule], fx.GraphModule]

# Order matters: dropping no-ops exposes equal nodes, and merging equal nodes leaves fewer constants to compute.
PASSES: tuple[Pass, ...] = (
    drop_no_ops,
    merge_common_subexpressions,
    accumulate_into_sums,
    accumulate_products,
    multiply_single_batches,
    fold_batch_norms,
    multiply_integers,
    share_heads,
    fold_constants,
    merge_products,
    move_to_device,
)

# The passes that change the rounding of results
ROUNDING = frozenset(
    (
        accumulate_into_sums,
        accumulate_products,
        multiply_single_batches,
        fold_batch_norms,
        multiply_integers,
        share_heads,
        merge_products,
    )
)


def run_passes(gm: fx.GraphModule, exact: bool = False) -> fx.GraphModule:
    """Apply every pass, in place, and drop dead code. The result computes the same outputs from the same inputs.

    exact: keep every bit.
    """
    for apply in PASSES:
        if not (exact and apply in ROUNDING):
            gm = apply(gm)
    remove_dead(gm.graph)
    return gm
