"""Optimizers that a program makes and steps before its first compilation, which imports the compiler."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys, torch, stator
assert not any(name.startswith("stator.dynamo") for name in sys.modules)
weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and kind.__name__ in sys.argv[1:]]
pairs = [[kind([weight], lr=0.1) for weight in weights] for kind in kinds]
assert len(kinds) == len(sys.argv) - 1
def step(optimizer, weight):
    optimizer.zero_grad()
    (weight * weight).sum().backward()
    optimizer.step()
step(pairs[0][0], weights[0])
step(pairs[0][1], weights[1])
compiled = stator.compile(step, backend="eager")
for eager, other in pairs:
    for _ in range(2):
        step(eager, weights[0])
        compiled(other, weights[1])
torch.testing.assert_close(*weights)
"""


def test_classes_that_inherit_their_step() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "AdamW", "Adam", "SGD"], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
