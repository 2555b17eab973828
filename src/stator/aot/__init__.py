"""Compiles FX graphs of torch calls as functional ATen graphs, and replays mutation, aliasing and gradients around
these."""

from stator.graph.functionalization.functionalize import Keep

from .runtime.eager import keep_all, python_function, run_eagerly
from .runtime.number_inputs import carry_numbers
from .runtime.overlap_check import OverlappingInputs
from .runtime.wrapper_subclasses import with_inner_tensors
from .trace.attention_gradients import shorten_attention_gradients
from .trace.fused_attention import GpuRules, fuse_attention
from .trace.inference import CompileGraph, Rewrite, compile_inference
from .trace.needs_grad import needs_grad
from .trace.pooling_places import narrow_pooling_places
from .trace.randomness import functionalize_random
from .training import compile_training
