"""Programs whose sizes change from call to call: equal to eager at every size, by code compiled a few times only."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from benchmarks.dynamic.measure import copied, difference
from benchmarks.dynamic.program import Program, Size, programs
from tests.differential import Counts

import stator

TOLERANCE = 1e-4  # of the largest magnitude in each result; ids and indices are equal

# the quick ones; the others are slow
_QUICK = ("gcn", "packed_tokens", "mixture_of_experts", "lstm", "recommender", "ragged_embeddings")
_CASES = [
    pytest.param(name, mode, id=f"{name}-{mode}", marks=[] if name in _QUICK else pytest.mark.slow)
    for name, program in programs().items()
    for mode in program.modes
]


@pytest.fixture(autouse=True)
def fresh():
    yield
    stator.reset()


@pytest.mark.parametrize(("name", "mode"), _CASES)
def test_equal_to_eager_at_every_size_by_few_compilations(name: str, mode: str) -> None:
    if name.startswith("geometric"):
        pytest.importorskip("torch_geometric")
    check(programs()[name], mode)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [((2, 6, 30), (1, 7, 9), (4, 40, 9), (8, 1, 9)), ((1, 1, 30), (5, 25, 9), (3, 23, 9), (8, 1, 9))]
)
def test_a_window_needs_four_versions_for_prompts_without_padding(sizes) -> None:
    """Prompts within the window and beyond it, and the next token below and above it, in whatever order."""
    padded, rows = programs()["mistral_sliding_window"], programs()["llama_greedy"]
    check(dataclasses.replace(padded, inputs=rows.inputs, few=sizes, compilations=4), "inference")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_static_cache", "mistral_static_cache", "llama_padded"])
@pytest.mark.parametrize("first", [(1, 1, 30), (1, 40, 9)], ids=["one_token", "one_row"])
def test_generation_that_begins_with_a_size_of_one_needs_no_further_version(name: str, first: Size) -> None:
    program = programs()[name]
    check(dataclasses.replace(program, few=(first, *program.few)), "inference")


def check(program: Program, mode: str) -> None:
    counts = Counts()
    with torch.set_grad_enabled(mode == "training"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = program.step(mode, program.model(mode), lambda target: target)
        step = program.step(mode, program.model(mode), stator.compile)
        for size in program.few:
            expected = copied(eager(program.arguments(size)))
            found = difference(copied(step(program.arguments(size))), expected, mode)
            assert found < TOLERANCE, f"{program.name} at {size}: {found}"
        compiled = counts.compilations
        for size in program.few:
            step(program.arguments(size))
    assert counts.compilations == compiled, "a size that was met before was compiled again"
    assert compiled <= program.compilations
    assert counts["dynamo.failed_frames"] == counts["dynamo.refused_symbols"] == 0
