"""Decomposed to primitives, no sample of torch's database leaves a canonical operator behind; graphs equal eager."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from compiled import NOT_REPEATABLE, Case, eager, function_of, inputs
from recorder import value_differences
from samples import IDENTIFIERS, OPERATORS, samples
from torch.utils import _pytree as pytree

import stator
from stator.graph.tracing.tracer import trace
from stator.prims.record import record

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
PART = 70
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]


def found(part: list[tuple[str, Any]], count: int) -> list[Case]:
    cases = [Case(name, op, sample) for name, op in part for sample in samples(op, count, DTYPES)]
    return [case for case in cases if all(tensor.layout is torch.strided for tensor in case.tensors)]


def left_behind(case: Case) -> list[str]:
    """Canonical operators, not primitives, in the graph at the level of primitives. [] for what cannot be traced."""
    try:
        graph = trace(function_of([case]), inputs([case]), keep=lambda target: record(target).level == "prims").graph
    except (stator.StatorError, RuntimeError, ValueError, TypeError, IndexError):
        return []
    targets = [node.target for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return [str(target) for target in targets if record(target).level == "aten"]


@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_canonical_operators_decompose_to_primitives(part: list[tuple[str, Any]]) -> None:
    torch.manual_seed(0)
    problems: Counter[str] = Counter()
    for case in found(part, 2):
        for target in left_behind(case):
            problems[f"{target} in {case.describe()}"] += 1
    assert not problems


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_graphs_of_primitives_equal_eager(part: list[tuple[str, Any]]) -> None:
    torch.manual_seed(0)
    problems = []
    for case in found(part, 6):
        if any(word in case.name for word in NOT_REPEATABLE) or left_behind(case):
            continue
        try:
            expected = eager([case])
            graph = stator.decompose(lambda *tensors, case=case: case.call(iter(tensors)), inputs([case]), to="prims")
        except (stator.StatorError, RuntimeError, ValueError, TypeError, IndexError):
            continue
        result = graph(*inputs([case]))
        values = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        wanted = [leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, torch.Tensor)]
        if len(values) == len(wanted):  # else it writes to its input, which comes back too
            problem = value_differences(values, wanted)
            if problem:
                problems.append(f"{case.describe()}: {problem}")
    assert not problems, "\n".join(problems)
