"""torch.optim groups tensors by device and dtype in captured code as in eager."""

from __future__ import annotations

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
