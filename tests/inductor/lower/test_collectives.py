"""Collectives run beside the program: their operands keep their memory until the wait, and none is left running."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives  # registers how collectives run on tensors without data
from lowering_oracle import library_calls, lowered_of

from stator.base.config import Options
from stator.inductor.buffers import Extern, Lowered
from stator.inductor.program.aliases import reads_of
from stator.inductor.schedule import schedule

c10d = torch.ops._c10d_functional


def calls(lowered: Lowered) -> list[Extern]:
    return [call for call in library_calls(lowered) if str(call.target).startswith("_c10d_functional")]


def test_a_wait_reads_the_operands_of_its_collective() -> None:
    def function(x: torch.Tensor) -> Any:
        gathered = c10d.all_gather_into_tensor(x + 1, 2, "group")
        other = (x * 2).exp()
        return c10d.wait_tensor(gathered) * 2, other.sum()

    lowered = lowered_of(function, [torch.randn(8)])
    gather, wait = calls(lowered)
    assert gather.args[0] in wait.keeps
    assert set(wait.keeps) | {gather.outputs[0]} == set(reads_of(wait, lowered.buffers))


def test_a_collective_without_a_wait_gets_one() -> None:
    def function(x: torch.Tensor) -> Any:
        parts = c10d.reduce_scatter_tensor_coalesced([x + 1, x + 2], "sum", 2, "group")
        return c10d.all_to_all_single(x + 3, [4, 4], [4, 4], "group"), c10d.wait_tensor(parts[0]), parts[1]

    found = calls(lowered_of(function, [torch.randn(8)]))
    waits = [call for call in found if call.target is c10d.wait_tensor.default]
    started = {name for call in found if call not in waits for name in call.outputs}
    assert started <= {call.args[0] for call in waits}


def test_the_order_of_collectives_is_that_of_the_program() -> None:
    def function(x: torch.Tensor) -> Any:
        results = [c10d.wait_tensor(c10d.all_reduce(x + at, "sum", f"group{at}")) for at in range(6)]
        c10d.all_reduce(x, "max", "unused")
        return [result.exp() for result in reversed(results)]

    lowered = lowered_of(function, [torch.randn(8)])
    steps = schedule(lowered, Options()).steps
    groups = [call.args[2] for call in steps if isinstance(call, Extern) and call.target is c10d.all_reduce.default]
    assert groups == [*[f"group{at}" for at in range(6)], "unused"]
