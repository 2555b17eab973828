"""Dead blocks that the next buffer of their size takes over: which ones, and that it costs no memory and no value."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from handmade import Graph

from stator.base.errors import VerificationError
from stator.inductor.codegen.host import build_cpu_kernels, load, print_host
from stator.inductor.program import plan, predict_peak, reuse_dead_memory, verify_program
from stator.inductor.program.steps import Free, Program, ReuseIfUnshared

aten = torch.ops.aten
COUNT = 1 << 16  # 256 KB of float32


def planned(graph: Graph, *outputs: str, held: tuple[str, ...] = ()) -> Program:
    """The program with and without take-overs needs the same at its peak."""
    program = plan(*graph.finish(*outputs), boxed=True, arena_share=0.0)
    taken = reuse_dead_memory(program, held)
    verify_program(taken)
    assert predict_peak(taken, held).bytes == predict_peak(program, held).bytes
    return taken


def pairs(program: Program) -> dict[str, str]:
    return {step.name: step.old for step in program.steps if isinstance(step, ReuseIfUnshared)}


def tower(length: int) -> Graph:
    graph = Graph()
    previous = graph.input("x", COUNT)
    graph.input("y", COUNT)
    for number in range(length):
        previous = graph.add(f"b{number}", "y", previous, shifted=True)
    return graph


def test_a_dead_input_and_dead_intermediates_are_taken_over() -> None:
    assert pairs(planned(tower(4), "b3")) == {"b1": "x", "b2": "b0", "b3": "b1"}


def test_an_input_that_others_hold_is_not() -> None:
    assert pairs(planned(tower(4), "b3", held=("x",))) == {"b2": "b0", "b3": "b1"}


def test_blocks_of_another_size_are_not() -> None:
    graph = Graph()
    graph.input("x", COUNT), graph.input("y", 2 * COUNT)
    graph.add("b0", "x", "x", shifted=True)
    graph.add("b1", "y", "y", shifted=True)
    assert pairs(planned(graph, "b0", "b1")) == {}


def test_a_block_is_freed_rather_than_kept_over_the_peak() -> None:
    graph = Graph()
    graph.input("x", COUNT), graph.input("large", 8 * COUNT), graph.input("z", COUNT)
    graph.add("b0", "x", "x", shifted=True)  # x is dead here
    graph.add("b1", "large", "large", shifted=True)  # and this is the peak
    graph.add("b2", "z", "z", shifted=True)
    program = planned(graph, "b0", "b1", "b2")
    assert "x" not in pairs(program).values()
    assert Free("x") in program.steps


def test_what_a_library_allocated_is_taken_over() -> None:
    graph = Graph()
    graph.input("x", COUNT)
    graph.call(("b0",), ((COUNT,),), aten.neg.default, "x")
    graph.add("b1", "b0", "b0", shifted=True)
    graph.add("b2", "b1", "b1", shifted=True)
    assert pairs(planned(graph, "b2")) == {"b1": "x", "b2": "b0"}


def run(program: Program, *inputs: torch.Tensor) -> torch.Tensor:
    call = load(print_host(program), build_cpu_kernels(list(program.kernels.values())))
    boxed = list(inputs)
    del inputs
    (result,) = call(boxed)
    return result


def test_values_are_right_and_tensors_that_a_caller_has_keep_theirs() -> None:
    program = planned(tower(5), "b4")
    x, y = torch.randn(COUNT), torch.randn(COUNT)
    before, expected = x.clone(), x + 5 * y  # the kernels of these graphs add where they are, also when shifted
    torch.testing.assert_close(run(program, x, y), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run(program, x.clone(), y.clone()), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


@pytest.mark.parametrize("fault", ["result", "size", "alive"])
def test_the_verifier_refuses_memory_that_is_not_to_be_had(fault: str) -> None:
    program = planned(tower(4), "b3")
    steps = list(program.steps)
    at = next(at for at, step in enumerate(steps) if isinstance(step, ReuseIfUnshared) and step.name == "b3")
    if fault == "result":
        program = dataclasses.replace(program, escaping=program.escaping | {"b1"})
    elif fault == "size":
        layout = dataclasses.replace(steps[at].layout, size=(COUNT - 1,))
        steps[at] = dataclasses.replace(steps[at], layout=layout)
    else:
        steps[at] = dataclasses.replace(steps[at], old="x")  # gone already
    with pytest.raises(VerificationError):
        verify_program(dataclasses.replace(program, steps=tuple(steps)))
