"""Fused kernels compute what unfused ones and the reference evaluator compute, on random graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from kernel_harness import Compiled, assert_close, run_reference
from random_graphs import Generator

from stator.base.config import Options
from stator.inductor.codegen.cpp import loop_sizes
from stator.inductor.schedule.groups import Group


@pytest.mark.parametrize("batch", range(4))
def test_fused_unfused_and_reference_agree(batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    compiled = Compiled()
    graphs = {seed: Generator(seed).build() for seed in range(batch * 25, batch * 25 + 25)}
    fused = {seed: compiled.add(graph, Options(verify=True)) for seed, graph in graphs.items()}
    apart = {seed: compiled.add(graph, Options(fusion=False)) for seed, graph in graphs.items() if seed % 5 == 0}
    compiled.build()
    for seed, graph in graphs.items():
        expected = run_reference(graph)
        assert_close(compiled.run(fused[seed]), expected, f"seed {seed}, fused", rounded=True)
        if seed in apart:
            assert_close(compiled.run(apart[seed]), expected, f"seed {seed}, unfused", rounded=True)
    kernels = sum(isinstance(step, Group) for job in fused.values() for step in compiled.jobs[job][1].steps)
    assert kernels < sum(len(graph.nodes) for graph in graphs.values())


@pytest.mark.parametrize("batch", range(2))
def test_threads_share_every_loop_without_harm(batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with every kernel made parallel, however small its work."""
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(loop_sizes, "example_work", lambda kernel: 10**7)
    compiled = Compiled()
    graphs = {seed: Generator(seed).build() for seed in range(2000 + batch * 15, 2015 + batch * 15)}
    jobs = {seed: compiled.add(graph, Options(verify=True)) for seed, graph in graphs.items()}
    compiled.build()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for seed, graph in graphs.items():
            assert_close(compiled.run(jobs[seed]), run_reference(graph), f"seed {seed}", rounded=True)
    finally:
        torch.set_num_threads(threads)
