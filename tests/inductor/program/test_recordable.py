"""Which programs can be recorded, and what recording is told about their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator import pipeline
from stator.inductor.program import recordable
from stator.inductor.program.recordable import describe_inputs, why_not_recorded
from stator.inductor.program.steps import Program

CPU = torch.device("cpu")


def program_of(
    function: Callable[..., Any], *inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Program:
    found: list[Program] = []
    monkeypatch.setattr(pipeline, "_recording", lambda program, gm: found.append(program))
    stator.compile(function, mode="reduce-overhead", **options)(*inputs)
    (program,) = found
    return program


@pytest.mark.fixed_sizes
def test_written_inputs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(2).add_(x)
        return x + 1

    program = program_of(step, torch.ones(4), torch.ones(4), monkeypatch=monkeypatch)
    described = describe_inputs(program)
    assert described.written == {0} and described.tensors == (0, 1) and not described.boxed and not described.sizes
    assert why_not_recorded(program, CPU, {}) is None


def test_sizes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(lambda x: x.sin() * 2, torch.ones(4, 3), monkeypatch=monkeypatch, dynamic=True)
    described = describe_inputs(program)
    given = [torch.ones(5, 7) if name in program.buffers else 5 for name in program.inputs]
    assert set(described.sizes_in(given)) == {5, 7}


def test_tensors_of_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(lambda x: x.sin() * 2, torch.ones(4), monkeypatch=monkeypatch)
    assert "is on cpu" in str(why_not_recorded(program, torch.device("cuda", 0), {}))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.nonzero() * 2, "waits for data"),
        (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * 2, "chooses on the host"),
    ],
    ids=["sizes", "branches"],
)
def test_what_data_decides_is_refused(
    function: Callable[..., Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Program] = []
    monkeypatch.setattr(pipeline, "_recording", lambda program, gm: found.append(program))
    stator.compile(function, mode="reduce-overhead")(torch.ones(4))
    assert any(reason in str(why_not_recorded(program, CPU, {})) for program in found)


@pytest.mark.fixed_sizes
def test_products_of_groups_are_refused_where_the_library_reads_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([2, 8], dtype=torch.int32)
    x, weight = torch.ones(8, 16).half(), torch.ones(2, 16, 8).half()
    groups = program_of(lambda x, w: torch._grouped_mm(x, w, offs=ends) * 2, x, weight, monkeypatch=monkeypatch)
    assert why_not_recorded(groups, CPU, {}) is None
    monkeypatch.setattr(recordable, "library_reads_ends", lambda dtype, device: True)
    assert "waits for data" in str(why_not_recorded(groups, CPU, {}))
    batch = program_of(lambda x, w: torch._grouped_mm(x, w) * 2, x.view(2, 4, 16), weight, monkeypatch=monkeypatch)
    assert why_not_recorded(batch, CPU, {}) is None
