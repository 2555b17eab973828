"""The operator set: one record per operator, for queries and extension. Importing this package fills the records."""

from . import decompositions, levels, shape_rules
from .extend import decomposition, lowering, operator, shape_rule
from .operators import (
    attention_gradients,
    checks,
    ctc_loss,
    histogram,
    mask_indices,
    pooling_places,
    random,
    recurrent_layer,
)
from .query import is_lowered, lookup, operators
from .record import OpRecord, TensorMeta

__all__ = [
    "OpRecord",
    "TensorMeta",
    "checks",
    "ctc_loss",
    "decomposition",
    "decompositions",
    "is_lowered",
    "levels",
    "lookup",
    "lowering",
    "operator",
    "operators",
    "random",
    "recurrent_layer",
    "shape_rule",
    "shape_rules",
]
