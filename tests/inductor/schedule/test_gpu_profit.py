"""Which loops become one kernel on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.inductor.all_sizes import symbolic_fakes
from tests.inductor.claimed_gpu import lowered_on_gpu

from stator.inductor.schedule import schedule
from stator.shapes.environment import Environment

aten = torch.ops.aten


def kernels(function: Callable[..., Any], *tensors: torch.Tensor) -> int:
    fakes = symbolic_fakes(list(tensors), [()] * len(tensors), Environment())
    return len(schedule(lowered_on_gpu(function, fakes)).steps)


def test_a_sum_of_rows_reads_beside_copies_along_its_rows_alone() -> None:
    x = torch.empty(16, 196, 768, dtype=torch.bfloat16)
    assert kernels(lambda x: (x * 2.0, x.sum((0, 2))), x) == 1
    assert kernels(lambda x: (x.transpose(1, 2).contiguous(), x.sum((0, 2))), x) == 2


def test_much_work_for_each_element_is_done_in_front_of_few_rows() -> None:
    def pooled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = aten.avg_pool2d_backward.default(x, x, [3, 3], [1, 1], [1, 1], False, False, None)
        return made, made.sum((1, 2, 3))

    def grown(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x.exp()
        return made, made.sum((1, 2, 3))

    few, many = torch.empty(16, 32, 14, 14), torch.empty(4096, 32, 14, 14)
    assert kernels(pooled, few) == kernels(pooled, many) + 1
    assert kernels(grown, few) == 1
