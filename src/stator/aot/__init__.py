"""FX graphs of torch calls to functional ATen graphs, and the wrapper that replays mutation and aliasing."""

from stator.graph.functionalization.functionalize import Keep

from .lazy_inputs import see_memory
from .number_inputs import carry_numbers
from .runtime.eager import keep_all, run_eagerly
from .runtime.shared_memory import Otherwise, with_shared_memory
from .split.split_graph import compile_around
from .trace.grad import needs_grad
from .trace.inference import CompileGraph, Rewrite, compile_inference
from .trace.randomness import functionalize_random
from .training import compile_training
from .wrappers import wrapped

__all__ = [
    "CompileGraph",
    "Keep",
    "Otherwise",
    "Rewrite",
    "carry_numbers",
    "compile_around",
    "compile_inference",
    "compile_training",
    "functionalize_random",
    "keep_all",
    "needs_grad",
    "run_eagerly",
    "see_memory",
    "with_shared_memory",
    "wrapped",
]
