"""Pages of dead blocks for large results: which ones, and that it costs no memory and no value."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from handmade import Graph

from stator.base.errors import VerificationError
from stator.inductor.codegen.host import load, print_host
from stator.inductor.program import hand_over_pages, plan, predict_peak, take_over, verify
from stator.inductor.program.steps import Free, MovePages, Program
from stator.runtime import pages
from stator.runtime.build import build_kernels

aten = torch.ops.aten
COUNT = 1 << 18  # 1 MB of float32


def planned(graph: Graph, *outputs: str, held: tuple[str, ...] = ()) -> Program:
    """The program needs at its peak what it needs without moves."""
    program = take_over(plan(*graph.finish(*outputs), boxed=True, arena_share=0.0), held)
    moved = hand_over_pages(program, held)
    verify(moved)
    assert predict_peak(moved, held).bytes == predict_peak(program, held).bytes
    assert sum(isinstance(step, Free) for step in moved.steps) == sum(isinstance(step, Free) for step in program.steps)
    return moved


def moves(program: Program) -> list[tuple[str, str, int]]:
    return [(step.old, step.name, step.bytes >> 20) for step in program.steps if isinstance(step, MovePages)]


def step_like(*, end: int = 16) -> Graph:
    """Two blocks of 2 and 3 MB die, then a result of 4 MB comes, and something much larger at the end."""
    graph = Graph()
    graph.input("a", 2 * COUNT), graph.input("b", 3 * COUNT), graph.input("c", 4 * COUNT), graph.input("d", end * COUNT)
    graph.call(("small",), ((1,),), aten.sum.dim_IntList, "a", [0], True)
    graph.call(("other",), ((1,),), aten.sum.dim_IntList, "b", [0], True)
    graph.add("result", "c", "c")
    graph.add("large", "d", "d", shifted=True)
    return graph


RESULTS = ("small", "other", "result", "large")


def test_a_large_result_gets_pages_of_those_that_died_before() -> None:
    program = planned(step_like(), *RESULTS, held=("c", "d"))
    assert moves(program) == [("b", "result", 3), ("a", "result", 1)]


def test_what_others_hold_is_not_touched() -> None:
    assert moves(planned(step_like(), *RESULTS, held=("a", "c", "d"))) == [("b", "result", 3)]


def test_a_block_is_freed_rather_than_kept_over_the_peak() -> None:
    assert moves(planned(step_like(end=1), *RESULTS, held=("c", "d"))) == []


def test_intermediates_get_what_results_leave() -> None:
    graph = step_like()
    graph.add("second", "c", "c", shifted=True)
    graph.call(("last",), ((1,),), aten.sum.dim_IntList, "result", [0], True)  # which is no result here
    program = planned(graph, "small", "other", "last", "second", "large", held=("c", "d"))
    assert moves(program) == [("a", "result", 2), ("b", "large", 3)]


@pytest.mark.parametrize("kept", [False, True])
def test_values_are_right_and_tensors_that_a_caller_has_keep_theirs(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_resident", lambda address, size: 0)  # as if the result's memory never had pages
    program = planned(step_like(), *RESULTS)
    call = load(print_host(program), program, build_kernels(list(program.kernels.values())))
    for _ in range(3):
        inputs = [torch.randn(count * COUNT) for count in (2, 3, 4, 16)]
        before = [tensor.clone() for tensor in inputs]
        others = list(inputs) if kept else []
        small, other, result, large = call(inputs)
        torch.testing.assert_close(small, before[0].sum(0, keepdim=True), rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(other, before[1].sum(0, keepdim=True), rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(result, 2 * before[2], rtol=0, atol=0)
        torch.testing.assert_close(large, 2 * before[3], rtol=0, atol=0)
        for tensor, was in zip(others, before, strict=False):
            torch.testing.assert_close(tensor, was, rtol=0, atol=0)


@pytest.mark.parametrize("fault", ["read", "result", "bytes", "written", "twice"])
def test_the_verifier_refuses_pages_that_are_not_to_be_had(fault: str) -> None:
    program = planned(step_like(), *RESULTS, held=("c", "d"))
    steps = list(program.steps)
    at = next(at for at, step in enumerate(steps) if isinstance(step, MovePages))
    step = steps[at]
    free = next(at for at, step in enumerate(steps) if step == Free("b"))
    if fault == "read":
        steps[free] = next(step for step in steps if "'b'" in repr(step))  # the sum, once more
    elif fault == "result":
        program = dataclasses.replace(program, escaping=program.escaping | {"b"})
    elif fault == "bytes":
        steps[at] = dataclasses.replace(step, at=4)
    elif fault == "written":
        steps[at] = dataclasses.replace(step, name="small")
    else:
        steps.insert(free, Free("b"))
    with pytest.raises(VerificationError):
        verify(dataclasses.replace(program, steps=tuple(steps)))
