"""Small kernels side by side in one launch: parts run in any order, and what needs what still holds."""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_harness import Graph, assert_close, fresh_memory, run_reference, view
from loop_evaluator import interpret
from random_graphs import Generator

from stator.base.config import Options
from stator.base.errors import VerificationError
from stator.inductor import devices
from stator.inductor.program.combine import combine_groups
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Combination, Schedule
from stator.inductor.schedule.verifier import verify_schedule


@pytest.fixture(autouse=True)
def costly_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.TRAITS, "cpu", devices.GPU)


def combined(graph: Graph, fusion: bool = False) -> Schedule:
    lowered = graph.lowered()
    found = combine_groups(schedule(lowered, Options(fusion=fusion)), lowered)
    verify_schedule(found, lowered)
    return found


def run_in_any_order(graph: Graph, found: Schedule, seed: int) -> dict[str, torch.Tensor]:
    memory = fresh_memory(graph)
    for step in found.steps:
        parts = list(step.parts) if isinstance(step, Combination) else [step]
        random.Random(seed).shuffle(parts)
        for part in parts:
            for member in part.members:
                interpret(member.body, memory)
    return {name: view(graph, memory, name) for name in graph.outputs}


def test_random_graphs_give_their_results_whatever_part_runs_first() -> None:
    launches = groups = 0
    for seed in range(60):
        graph = Generator(seed).build()
        found = combined(graph, fusion=seed % 2 == 0)
        assert_close(run_in_any_order(graph, found, seed), run_reference(graph), f"seed {seed}", rounded=True)
        launches += len(found.steps)
        groups += sum(len(step.parts) if isinstance(step, Combination) else 1 for step in found.steps)
    assert launches < 0.8 * groups


def chain(graph: Graph, source: str, size: int, target: str | None = None) -> str:
    """A node of its own, which adds 1."""
    target = target or graph.buffer([size], torch.float32)
    graph.node(
        [target],
        lambda ops, index, _: ops.store(
            target,
            index[0] + 0,
            ops.add(ops.load(source, index[0] + 0), ops.constant(1.0, torch.float32)),
        ),
        [size],
    )
    return target


def shape(found: Schedule) -> list[int]:
    """The number of parts of each launch."""
    return [len(step.parts) if isinstance(step, Combination) else 1 for step in found.steps]


def test_a_reader_of_a_waiting_result_starts_another_launch() -> None:
    graph = Graph()
    one, other = (graph.input(torch.randn(size)) for size in (8, 9))
    first, second = chain(graph, one, 8), chain(graph, other, 9)
    graph.outputs = [chain(graph, first, 8), chain(graph, second, 9)]
    assert shape(combined(graph)) == [2, 2]


def test_what_a_waiting_group_reads_is_not_overwritten_beside_it() -> None:
    graph = Graph()
    given, values = graph.input(torch.randn(8)), graph.input(torch.randn(8))
    result = chain(graph, given, 8)
    written = graph.buffer([8], torch.float32, value=given)
    graph.outputs = [result, chain(graph, values, 8, written)]
    assert shape(combined(graph)) == [1, 1]


def test_large_groups_are_launched_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.TRAITS, "cpu", dataclasses.replace(devices.GPU, combined_bytes=8 * 100))
    graph = Graph()
    sizes = (100, 101, 50, 51)
    graph.outputs = [chain(graph, graph.input(torch.randn(size)), size) for size in sizes]
    assert sorted(shape(combined(graph))) == [1, 3]


def test_a_combination_whose_parts_meet_is_refused() -> None:
    graph = Graph()
    first = chain(graph, graph.input(torch.randn(8)), 8)
    graph.outputs = [chain(graph, first, 8)]
    lowered = graph.lowered()
    parts = schedule(lowered, Options(fusion=False)).steps
    with pytest.raises(VerificationError, match="which other parts use"):
        verify_schedule(Schedule((Combination("both", parts),)), lowered)  # type: ignore[arg-type]
