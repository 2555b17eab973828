"""Indices out of bounds: the device asserts, as in eager's kernels; nothing is returned, and no memory is written. Each
program runs in a process of its own, whose CUDA work ends there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.gpu.device import DEVICE

PROGRAMS = {
    "getitem": "lambda x, i: x[i] * 2",
    "gather": "lambda x, i: x.gather(0, i.view(-1, 1)) + 1",
    "index_select": "lambda x, i: x.index_select(0, i).exp()",
    "embedding": "lambda x, i: torch.nn.functional.embedding(i.abs(), x).sum(1)",
    "scatter": "lambda x, i: x.scatter(0, i.view(-1, 1), 1.0) * 2",
    "index_put": "lambda x, i: x.index_put((i,), x[:3] + 1)",
    "index_add": "lambda x, i: x.index_add(0, i, x[:3].sin())",
    "cross_entropy": "lambda x, i: torch.nn.functional.cross_entropy(x[:3], i.abs())",
}
SCRIPT = """
import sys, torch, stator
program = {program}
x = torch.randn(5, 4, device={device!r})
compiled = stator.compile(program)
compiled(x, torch.tensor([0, 1, 2], device={device!r}))
print("compiled", flush=True)
found = compiled(x, torch.tensor({indices}, device={device!r}))
print("returned", found.float().sum().item())
"""


@pytest.mark.parametrize("indices", ([0, 5, 1], [0, -6, 1], [0, 2**40, 1]), ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_out_of_bounds_is_an_error(name: str, indices: list[int]) -> None:
    script = SCRIPT.format(program=PROGRAMS[name], device=DEVICE, indices=indices)
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), timeout=120
    )
    assert "compiled" in answer.stdout, answer.stderr[-1000:]
    assert "returned" not in answer.stdout and answer.returncode != 0
    wanted = ("device-side assert",) if DEVICE == "cuda" else ("IndexError", "out of bounds", "out of range")
    assert any(text in answer.stderr for text in wanted), answer.stderr[-1000:]
