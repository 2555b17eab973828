"""The same program gives the same source in each process: nothing depends on the order of a set of strings or on
addresses, which differ from one process to the next. Otherwise nothing compiled in one would be found again in another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch
from torch import nn
import stator

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 16)
        self.projections = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        q, k, v = (projection(self.norm(x)).view(2, 6, 4, 4).transpose(1, 2) for projection in self.projections)
        x = x + self.out(((q @ k.mT) / 2).softmax(-1).matmul(v).transpose(1, 2).reshape(2, 6, 16))
        return (x + self.down(nn.functional.gelu(self.up(x)))).square().mean()

class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU()) for _ in range(3)
        )

    def forward(self, x):
        kept = []
        for block in self.blocks:
            x = block(x)
            kept.append(x)
        return torch.cat([one * one.sigmoid() for one in kept], 1).amax((2, 3)).sum() + sum(one.std() for one in kept)

class Siblings(nn.Module):
    def forward(self, *inputs):  # which of the sums is made with the last one is a choice among equals
        product = inputs[0]
        for one in inputs[1:]:
            product = product * one
        sums = [one.exp().sum(1) for one in inputs]
        return torch.stack([*sums, product.sum(1)]).square().mean()

torch.set_num_threads(1)
for model, shape, count in ((Attention(), (2, 6, 16), 1), (Convolutions(), (2, 4, 8, 8), 1), (Siblings(), (16, 24), 6)):
    for exact in (False, True):
        compiled = stator.compile(model, options={"exact_rounding": exact})
        compiled(*[torch.rand(shape, requires_grad=True) for _ in range(count)]).backward()
"""


def written(folder: Path, seed: int) -> dict[str, str]:
    """All that is made from the captured graph on, by the name of the file."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "STATOR_DUMP": str(folder), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=300)
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name >= "10" and "bytecode" not in path.name
    ]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_nothing_depends_on_the_order_of_sets(tmp_path: Path) -> None:
    first = written(tmp_path / "1", 1)
    assert (
        sum(name.endswith("60_code.cpp") for name in first) == 12
    )  # forward and backward of three models, each in two ways
    for seed in (2, 3):
        other = written(tmp_path / str(seed), seed)
        assert list(other) == list(first)
        assert [name for name, text in first.items() if other[name] != text] == []
