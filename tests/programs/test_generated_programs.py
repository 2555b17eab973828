"""Generated programs, compiled with graph breaks wherever they come, do exactly what plain Python does."""

from __future__ import annotations

import linecache
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

sys.path.insert(0, str(Path(__file__).parent))
from comparing import outcome
from generate import generate

SEEDS = {"eager": range(40), "aot_eager": range(40, 60)}


def load(seed: int) -> Any:
    """The generated function; its source can be shown in tracebacks."""
    source = generate(seed)
    filename = f"<generated program {seed}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {"__name__": f"generated_{seed}"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["program"]


@pytest.mark.parametrize(("backend", "seed"), [(backend, seed) for backend, seeds in SEEDS.items() for seed in seeds])
def test_generated_program(backend: str, seed: int) -> None:
    program = load(seed)
    x = torch.rand(2, 2, generator=torch.Generator().manual_seed(seed)) - seed % 2
    expected = outcome(program, x)
    before = counters.counts["dynamo.compiled_frames"]
    compiled = stator.compile(program, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert outcome(compiled, x) == expected, f"rerun: {generate.__module__}.generate({seed})"
    assert counters.counts["dynamo.compiled_frames"] > before
    stator.reset()
