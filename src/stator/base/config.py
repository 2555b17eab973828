"""What a user can choose: one small typed record, built from `mode` and `options`. No global switches, but for one that
only judges of capture turn."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import UsageError

# Not for users: code without operations on tensors is replaced all the same, so that tests without tensors judge what
# capture makes of it and not the interpreter. Read when a frame is compiled.
keep_empty_graphs: bool = os.environ.get("STATOR_KEEP_EMPTY_GRAPHS", "0") not in ("", "0")

MODES = ("default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one `stator.compile` call.

    recompile_limit: how many compiled versions one code object and instance may have before it runs eagerly.
    verify: run every intermediate representation's verifier between stages (on in our tests, costs compile time).
    fusion: allow kernels to be fused; off helps to find a wrong kernel.
    vectorize: use SIMD in generated C++.
    threads: most compiler processes at once; 0 means one per core.
    exact_random: draw random numbers as eager does, the same ones in the same order, by library calls; off, they are
        computed inside kernels from one number of torch's generator per call.
    exact_rounding: give eager's results and gradients to the last bit: kernels compute only operators whose bits IEEE
        754 fixes, and ATen is called for all others (docs/exactness.md).
    memory_budget: how much memory a training step may need at its peak, from 1 (what makes it fastest) to 0 (the
        least that computing parts of the forward again can give), linear in bytes of the predicted peak.
    unknown_sizes: keep operators whose result's size depends on data (`x[mask]`, `nonzero`, `unique`) and whole numbers
        that are read from tensors in the graph; off, the graph ends there (docs/graph-breaks.md). For backends that
        need every size to be known.
    guard_filter_fn: `f(records) -> list of bool`, given a record of every guard of a compiled version; those with
        False are dropped. At your own risk: compiled code then relies on what it does not check (docs/control.md).
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
    guard_filter_fn: Callable[[Sequence[Any]], Sequence[bool]] | None = None


# options of what comes before a backend: they mean the same with every backend
FRONT_END = ("guard_filter_fn", "unknown_sizes")


def make_options(mode: str | None, options: Mapping[str, object] | None) -> Options:
    """Check and combine `mode` and `options`. Raises UsageError that lists what is known."""
    if mode is not None and mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; known modes: {', '.join(MODES)}")
    fields = {field.name: field for field in dataclasses.fields(Options) if field.name != "mode"}
    for name, value in (options or {}).items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
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
