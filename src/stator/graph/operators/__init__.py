"""Operators with special handling while tracing. Importing any module of the package registers all
handlers."""

from . import (
    autograd_formulas,
    data_dependent_functions,
    fused_optimizers,
    gpu_operators,
    known_masks,
    masked_writes,
    mutation,
    number_forms,
    number_functions,
    recurrent_layers,
    rng_comparisons,
    symbolic_composites,
    symbolic_einsum,
    symbolic_layouts,
)
