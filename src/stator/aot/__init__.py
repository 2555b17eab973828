"""FX graphs of torch calls to functional ATen graphs, and the wrapper that replays mutation and aliasing."""

from stator.graph.recording import Keep

from .eager import keep_all, run_eagerly
from .grad import needs_grad
from .inference import CompileGraph, Rewrite, compile_inference
from .lazy_inputs import with_lazy_inputs
from .numbers import with_numbers
from .pieces import in_pieces
from .randomness import functionalize_random
from .segments import in_segments
from .sensitivity import amplifier_of
from .shared_memory import Otherwise, with_shared_memory
from .training import compile_training

__all__ = [
    "CompileGraph",
    "Keep",
    "Otherwise",
    "Rewrite",
    "amplifier_of",
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
