"""The user's choices: one typed record, built from `mode` and `options`. The only global switch concerns tests."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import UsageError

# For tests only: replace code without tensor operations as well, so that tests without tensors exercise capture. Read
# when a frame is compiled.
keep_empty_graphs: bool = os.environ.get("STATOR_KEEP_EMPTY_GRAPHS", "0") not in ("", "0")

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one `stator.compile` call.

    recompile_limit: compiled versions per code object and instance before it runs eagerly.
    verify: run the verifier of every intermediate representation between stages (on in stator's tests; costs compile
        time).
    fusion: allow kernels to be fused; turning it off helps to find a wrong kernel.
    vectorize: use SIMD in generated C++.
    threads: the number of parallel compiler processes; 0 means one per core.
    exact_random: draw eager's random numbers, in eager's order, by library calls. Otherwise kernels compute random
        numbers from one number of torch's generator per call.
    exact_rounding: give eager's results and gradients to the last bit: kernels compute only operators whose bits IEEE
        754 fixes, and ATen is called for all others (docs/exactness.md).
    memory_budget: the peak memory of a training step, from 1 (fastest) to 0 (the least that recomputation can reach),
        linear in bytes of the predicted peak.
    unknown_sizes: keep operators with data-dependent result sizes (`x[mask]`, `nonzero`, `unique`), and integers read
        from tensors, in the graph. Otherwise the graph ends there (docs/graph-breaks.md). Turn it off for backends that
        need every size.
    freezing: make constants of parameters and buffers in code that computes no gradients, so that work on them is done
        once (docs/freezing.md). A guard finds most changes of their data; the code is then compiled anew.
    free_parameters: for `stator.freeze`: the first call frees the memory of parameters and buffers that became
        constants (docs/freezing.md).
    program_cache: keep compiled programs on disk, so that a new process finds them (docs/runtime.md). Kernels are kept
        in any case.
    guard_filter_fn: `f(records) -> list of bool`, given a record of every guard of a compiled version; those with False
        are dropped, at your own risk: compiled code then relies on unchecked assumptions (docs/control.md).
    """

    mode: str = "default"
    recompile_limit: int = 8
    verify: bool = False
    fusion: bool = True
    vectorize: bool = True
    threads: int = 0
    exact_random: bool = False
    exact_rounding: bool = False
    memory_budget: float = 1.0
    unknown_sizes: bool = True
    freezing: bool = False
    free_parameters: bool = False
    program_cache: bool = True
    guard_filter_fn: Callable[[Sequence[Any]], Sequence[bool]] | None = None

    @property
    def records(self) -> bool:
        """Whether programs on GPUs are recorded as CUDA graphs."""
        return self.mode in ("reduce-overhead", "max-autotune")

    @property
    def tunes(self) -> bool:
        """Whether kernels for GPUs, and libraries for products on CPUs, are chosen by timing the graph's sizes."""
        return self.mode.startswith("max-autotune")


# options of capture, which mean the same with every backend
FRONT_END = ("guard_filter_fn", "unknown_sizes")


def make_options(mode: str | None, options: Mapping[str, object] | None) -> Options:
    """Check and combine `mode` and `options`. Raises UsageError that lists the known ones."""
    if mode is not None and mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; known modes: {', '.join(MODES)}")
    fields = {field.name: field for field in dataclasses.fields(Options) if field.name != "mode"}
    for name, value in (options or {}).items():
        if name not in fields:
            close = difflib.get_close_matches(str(name), fields, n=1)
            guess = f" (did you mean {close[0]!r}?)" if close else ""
            raise UsageError(f"unknown option {name!r}{guess}; known options: {', '.join(sorted(fields))}")
        if name == "guard_filter_fn":
            if value is not None and not callable(value):
                raise UsageError(f"option {name!r} must be a function, not {type(value).__name__}: {value!r}")
            continue
        expected = type(fields[name].default)
        if type(value) is not expected and not (expected is float and type(value) is int):
            raise UsageError(f"option {name!r} must be {expected.__name__}, not {type(value).__name__}: {value!r}")
    made = Options(mode=mode or "default", **(options or {}))  # type: ignore[arg-type]
    if not 0.0 <= made.memory_budget <= 1.0:
        raise UsageError(f"option 'memory_budget' must lie between 0 and 1, not {made.memory_budget}")
    return made
