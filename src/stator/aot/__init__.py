"""FX graphs of torch calls to functional ATen graphs, and the wrapper that replays mutation and aliasing."""

from stator.graph.functionalization.functionalize import Keep

from .lazy_inputs import with_lazy_inputs
from .number_inputs import with_numbers
from .runtime.eager import keep_all, run_eagerly
from .runtime.shared_memory import Otherwise, with_shared_memory
from .split.split_data_dependent import in_segments
from .split.split_untraceable import in_pieces
from .trace.grad import needs_grad
from .trace.inference import CompileGraph, Rewrite, compile_inference
from .trace.randomness import functionalize_random
from .training import compile_training

__all__ = [
    "CompileGraph",
    "Keep",
    "Otherwise",
    "Rewrite",
    "compile_inference",
    "compile_training",
    "functionalize_random",
    "in_pieces",
    "in_segments",
    "keep_all",
    "needs_grad",
    "run_eagerly",
    "with_lazy_inputs",
    "with_numbers",
    "with_shared_memory",
]
