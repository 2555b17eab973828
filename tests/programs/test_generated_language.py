"""Generated programs out of generators, classes, patterns, closures and `finally`, whose frames break everywhere, do
exactly what plain Python does: with code replaced everywhere, and as users get it.
"""

from __future__ import annotations

import gc
import linecache
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.differential import observe

import stator
from stator.base import config

sys.path.insert(0, str(Path(__file__).parent))
from generate_language import generate_language

QUICK, WITH_AUTOGRAD, SLOW = range(10), range(10, 16), range(16, 200)


def load(seed: int) -> Any:
    """The generated function; its source can be shown in tracebacks."""
    source = generate_language(seed)
    filename, name = f"<generated language {seed}>", f"generated_language_{seed}"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    sys.modules[name] = types.ModuleType(name)  # dataclasses look there
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["program"]


def outcome(program: Any, x: torch.Tensor, *, collected: bool) -> Any:
    """`collected`: what cycles held has been closed when the log is read."""
    seen = observe(program, (x.clone(), []))
    if collected:
        gc.collect()
    assert all("recompile_limit" in warning for warning in seen.said)
    return seen.data()


CASES: list[Any] = [(seed, replaced, "eager") for seed in QUICK for replaced in (True, False)]
CASES += [(seed, True, "aot_eager") for seed in WITH_AUTOGRAD]
CASES += [pytest.param(seed, seed % 2 == 0, "eager", marks=pytest.mark.slow) for seed in SLOW]


@pytest.mark.parametrize(("seed", "replaced", "backend"), CASES)
def test_generated_program(seed: int, replaced: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", replaced)
    program = load(seed)
    x = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed)) - seed % 2
    expected = outcome(program, x, collected=True)
    # On CPython 3.12 an exception that left a managed block may stay in a cycle with the frame, and what the frame
    # holds is closed by the collector: compiled code has no such frame and may close it at once.
    in_a_cycle = outcome(program, x, collected=False) != expected
    compiled = stator.compile(program, backend=backend)
    for _ in range(2):
        found = outcome(compiled, x, collected=in_a_cycle)
        gc.collect()
        assert found == expected, f"rerun: generate_language({seed})"
    stator.reset()
