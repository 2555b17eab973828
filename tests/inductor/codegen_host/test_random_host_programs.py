"""Random fused graphs through schedule, kernels, memory plan and host, against the reference evaluator.

What this pins: reuse of memory, in place or not, never changes a result, in the first call or a later one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_harness import assert_close, run_reference
from random_graphs import Generator

from stator.base.config import Options
from stator.inductor.codegen.cpp import print_kernel
from stator.inductor.codegen.host import build_cpu_kernels, load, print_host
from stator.inductor.program import plan, print_program, verify_program
from stator.inductor.program.steps import Program, Reuse
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Group

SEEDS = range(24)


def make_graph(seed: int):
    """A longer graph than the generator's own, of which only the last results leave."""
    generator = Generator(seed)
    for _ in range(8):
        generator.rng.choice([generator.pointwise, generator.pointwise, generator.reduction, generator.transposed])()
    graph = generator.build()
    graph.outputs = [node.outputs[0] for node in graph.nodes[-2:]]
    return graph


def make_program(graph, fusion: bool) -> Program:
    written = {name for node in graph.nodes for name in node.outputs}
    graph.outputs = [
        name for name in graph.outputs if name in written
    ]  # the generator also draws buffers it never used
    lowered = graph.lowered()
    scheduled = schedule(lowered, Options(fusion=fusion))
    groups = [step for step in scheduled.steps if isinstance(step, Group)]
    program = plan(lowered, scheduled, {group.name: print_kernel(group, lowered.buffers) for group in groups})
    verify_program(program)
    return program


@pytest.fixture(scope="module")
def programs():
    graphs = {seed: make_graph(seed) for seed in SEEDS}
    made = {seed: (graph, make_program(graph, fusion=seed % 3 == 0)) for seed, graph in graphs.items()}
    kernels = {symbol: kernel for _, program in made.values() for symbol, kernel in program.kernels.items()}
    addresses = build_cpu_kernels(list(kernels.values()))
    return {seed: (graph, program, load(print_host(program), addresses)) for seed, (graph, program) in made.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_give_what_the_loops_say(programs, seed: int) -> None:
    graph, program, function = programs[seed]
    # In any order of tests: of other draws, a few have sums beside a boundary of the bfloat16 that they are stored in.
    torch.manual_seed(seed)
    kept = []
    for _ in range(3):
        graph.inputs = {name: torch.randn_like(tensor) for name, tensor in graph.inputs.items()}
        expected = run_reference(graph)
        actual = dict(zip(graph.outputs, function(*graph.inputs.values()), strict=True))
        kept.append((actual, expected))
    for actual, expected in kept:  # after all calls: none may have overwritten an earlier one's results
        assert_close(actual, expected, print_program(program))


def test_memory_was_reused_in_some(programs) -> None:
    reuses = [step for _, program, _ in programs.values() for step in program.steps if isinstance(step, Reuse)]
    assert len(reuses) >= 10
