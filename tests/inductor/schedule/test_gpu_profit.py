"""Which loops become one kernel on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.inductor.all_sizes import symbolic_fakes
from tests.inductor.claimed_gpu import lowered_on_gpu

from stator.inductor.buffers import Extern
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


def test_depthwise_kernels_of_up_to_49_taps_are_loops() -> None:
    def calls(images: int, size: int, dtype: torch.dtype = torch.bfloat16) -> int:
        x = torch.empty(images, 96, 56, 56, dtype=dtype).to(memory_format=torch.channels_last)
        weight = torch.empty(96, 1, size, size, dtype=dtype)
        fakes = symbolic_fakes([x, weight], [(), ()], Environment())
        lowered = lowered_on_gpu(lambda x, w: F.conv2d(x, w, None, 1, size // 2, 1, 96).relu(), fakes)
        return sum(isinstance(node, Extern) for node in lowered.nodes)

    assert [calls(1, 7), calls(16, 7), calls(16, 5), calls(16, 7, torch.float32), calls(1, 9)] == [0, 0, 0, 0, 1]
