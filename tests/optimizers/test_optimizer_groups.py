"""torch.optim groups tensors and prepares its state in captured code as in eager, also beside torch.compile."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import stator

MIXED = (torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float64)


def grouped(lists: list[list[torch.Tensor]], with_indices: bool) -> Any:
    groups = torch.optim.Optimizer._group_tensors_by_device_and_dtype(lists, with_indices)
    return [(device, dtype, found) for (device, dtype), (found, _) in groups.items()]


@pytest.mark.parametrize("dtypes", [(torch.float64,) * 3, MIXED], ids=["one dtype", "several dtypes"])
@pytest.mark.parametrize("with_indices", [False, True])
def test_groups_are_eagers(dtypes: tuple[torch.dtype, ...], with_indices: bool) -> None:
    lists = [[torch.full((2,), float(at), dtype=dtype) for at, dtype in enumerate(dtypes)] for _ in range(2)]
    expected = grouped(lists, with_indices)
    found = stator.compile(lambda: grouped(lists, with_indices), backend="eager", fullgraph=True)()
    assert {(device, dtype) for device, dtype, _ in found} == {(device, dtype) for device, dtype, _ in expected}
    by_kind = {(device, dtype): tensors for device, dtype, tensors in expected}
    for device, dtype, tensors in found:
        assert [[float(one[0]) for one in part] for part in tensors] == [
            [float(one[0]) for one in part] for part in by_kind[device, dtype]
        ]


BESIDE_TORCH_COMPILE = """
import torch
before = {before}
if before:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
import stator
if not before:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
for name, options in (("Adam", {{}}), ("SGD", {{}}), ("Adam", {{"fused": True}})):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = getattr(torch.optim, name)([parameter], lr=0.5, **options)
    stator.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.5))
"""


@pytest.mark.parametrize("before", [False, True])
def test_steps_are_whole_after_torch_compile_was_used(before: bool) -> None:
    """Its first use disables the optimizers' own preparation, for itself."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BESIDE_TORCH_COMPILE.format(before=before)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
