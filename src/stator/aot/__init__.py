"""FX graphs of torch calls to functional ATen graphs, and the wrapper that replays mutation and aliasing."""

from stator.graph.recording import Keep

from .eager import keep_all, run_eagerly
from .grad import needs_grad
from .inference import CompileGraph, compile_inference
from .training import compile_training

__all__ = ["CompileGraph", "Keep", "compile_inference", "compile_training", "keep_all", "needs_grad", "run_eagerly"]
