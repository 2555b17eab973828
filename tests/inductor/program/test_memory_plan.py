"""The memory plan: when memory is taken, shared and given back; and that its verifier notices what is wrong."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from handmade import Graph, View, layout

from stator.base.errors import CompileError, VerificationError
from stator.inductor.program import plan, predict_peak, print_program, scratch_bytes, verify_program
from stator.inductor.program.arena import ArenaLayout, plan_arena
from stator.inductor.program.buffer_reuse import may_overwrite
from stator.inductor.program.printer import peak_bytes
from stator.inductor.program.steps import Allocate, Call, Free, Launch, Program, ReturnValues, Reuse
from stator.inductor.program.verifier import verify_arena

aten = torch.ops.aten


def planned(graph: Graph, *outputs, **options) -> Program:
    program = plan(*graph.finish(*outputs), **options)
    verify_program(program)
    return program


def steps(program: Program, kind: type) -> list:
    return [step for step in program.steps if isinstance(step, kind)]


def chain(length: int, shifted: bool = False) -> Graph:
    graph = Graph()
    previous = graph.input("x", 1024)
    for number in range(length):
        previous = graph.add(f"b{number}", "x", previous, shifted=shifted)
    return graph


def test_a_chain_in_place_needs_one_intermediate() -> None:
    program = planned(chain(6), "b5")
    assert peak_bytes(program) == 4096
    assert [step.old for step in steps(program, Reuse)] == ["b0", "b1", "b2", "b3"]


def test_a_chain_that_reads_elsewhere_needs_two() -> None:
    program = planned(chain(6, shifted=True), "b5")
    assert peak_bytes(program) == 2 * 4096
    assert all(step.old != f"b{int(step.name[1:]) - 1}" for step in steps(program, Reuse))


def test_without_reuse_every_buffer_is_allocated_and_freed() -> None:
    program = planned(chain(4), "b3", reuse=False)
    assert len(steps(program, Allocate)) == 4
    assert {step.name for step in steps(program, Free)} == {"b0", "b1", "b2"}


def test_memory_is_taken_just_before_the_writer_and_freed_after_the_last_reader() -> None:
    program = planned(chain(2), "b1", reuse=False)
    assert [type(step) for step in program.steps] == [Allocate, Launch, Allocate, Launch, Free, ReturnValues]


def test_what_the_caller_gets_is_fresh_memory() -> None:
    graph = chain(3, shifted=True)
    program = planned(graph, "b1", View("b2", layout(512)))
    assert program.escaping == {"b1", "b2"}
    assert not {step.name for step in steps(program, Reuse)} & {"b1", "b2"}
    assert not {entry.name for entry in plan_arena(program).placed} & {"b1", "b2"}
    assert not {step.name for step in steps(program, Free)} & {"b1", "b2"}


def test_inputs_and_constants_are_never_taken_over() -> None:
    graph = Graph()
    graph.input("x", 8)
    graph.constant("c", torch.ones(8))
    graph.add("b0", "x", "c")
    graph.add("b1", "b0", "c")
    program = planned(graph, "b1")
    assert not {"x", "c"} & {step.old for step in steps(program, Reuse)}
    assert not {"x", "c"} & {step.name for step in steps(program, Free)}


def test_a_buffer_read_through_a_view_lives_until_then() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.add("b0", "x")
    graph.add("b1", "x", "x")
    graph.call(("b2",), ((4, 4),), aten.mm.default, "b1", View("b0", layout(4, 4, stride=(1, 4))), style="out")
    program = planned(graph, "b2")
    order = [step for step in program.steps if isinstance(step, (Call, Free))]
    assert isinstance(order[0], Call) and {step.name for step in order[1:]} == {"b0", "b1"}


def test_results_that_may_be_views_keep_their_base_alive() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.add("b0", "x")
    graph.call(("b1",), ((16,),), aten.reshape.default, "b0", [16])
    graph.add("b2", "x", "x")
    graph.add("b3", "b1")
    program = planned(graph, "b3")
    order = [getattr(step, "name", getattr(step, "kernel", None)) for step in program.steps]
    assert order.index("b0", 1) > order.index("add1_16") and not steps(program, Reuse)


def test_a_result_that_may_be_a_view_and_leaves_takes_its_base_out_of_the_arena() -> None:
    graph = Graph()
    graph.input("x", 4, 4)
    graph.add("b0", "x")
    graph.call(("b1",), ((16,),), aten.reshape.default, "b0", [16])
    program = planned(graph, "b1")
    assert "b0" in program.escaping and plan_arena(program).placed == ()


def test_a_buffer_that_changes_an_input_needs_no_memory() -> None:
    graph = Graph()
    graph.input("x", 8)
    graph.add("b0", "x", mutates="x")
    program = planned(graph, "x")
    assert [type(step) for step in program.steps] == [Launch, ReturnValues]


def test_a_much_larger_dead_buffer_is_not_wasted_on_a_small_one() -> None:
    graph = Graph()
    graph.input("x", 4096)
    graph.input("y", 16)
    graph.add("large", "x")
    graph.add("used", "large", "x", shifted=True)
    graph.add("small", "y")
    graph.add("out", "small", "y")
    program = planned(graph, "used", "out")
    assert steps(program, Reuse) == []


def test_identical_kernels_appear_once() -> None:
    program = planned(chain(6), "b5")
    assert list(program.kernels) == ["add2_1024"] and len(steps(program, Launch)) == 6


@pytest.mark.parametrize("which", ["x", "b0"])
def test_memory_of_another_device_is_refused(which: str) -> None:
    graph = chain(1)
    buffer = graph.buffers[which]
    elsewhere = dataclasses.replace(buffer.layout, device=torch.device("cuda", 0))
    graph.buffers[which] = dataclasses.replace(buffer, layout=elsewhere)
    with pytest.raises(CompileError, match="device cuda:0 are not generated"):
        plan(*graph.finish("b0"))


def test_in_place_is_refused_across_dtypes_of_different_width() -> None:
    graph = chain(2)
    program = planned(graph, "b1")
    group = graph.steps[1]
    old, new = program.buffers["b0"], program.buffers["b1"]
    assert may_overwrite(group, old, new)
    wider = dataclasses.replace(new, layout=dataclasses.replace(new.layout, dtype=torch.float64))
    assert not may_overwrite(group, old, wider)


def test_random_graphs_keep_the_rules_and_never_need_more_than_without_reuse() -> None:
    for seed in range(60):
        draw = random.Random(seed)
        graph = Graph()
        made = [graph.input("x", 64), graph.input("y", 64)]
        for number in range(draw.randrange(1, 25)):
            reads = [draw.choice(made) for _ in range(draw.randrange(1, 4))]
            made.append(graph.add(f"b{number}", *reads, shifted=draw.random() < 0.5))
        outputs = draw.sample(made, draw.randrange(1, min(4, len(made))))
        with_reuse = planned(graph, *outputs)
        without = planned(graph, *outputs, reuse=False)
        assert peak_bytes(with_reuse) <= peak_bytes(without)
        assert plan_arena(with_reuse).bytes <= plan_arena(without).naive_bytes


def broken(program: Program, *changed) -> Program:
    return dataclasses.replace(program, steps=changed)


def test_the_verifier_notices_each_kind_of_mistake() -> None:
    program = planned(chain(3, shifted=True), "b2", reuse=False)
    a0, l0, a1, l1, f0, a2, l2, f1, result = program.steps
    reuse = Reuse("b2", "b0", a2.layout)
    mistakes = {
        "no memory": (l0, result),
        "b0 is used": (a0, l0, a1, Free("b0"), l1, f1, a2, l2, result),
        "b0 has memory already": (a0, a0, l0, a1, l1, f0, a2, l2, f1, result),
        "must end by returning": program.steps[:-1],
        "there is no kernel": (a0, dataclasses.replace(l0, kernel="other"), result),
        "the caller gets to see": (a0, l0, a1, l1, reuse, l2, f1, result),
        "not this program's": (a0, l0, a1, l1, Reuse("b2", "x", a2.layout), l2, result),
        "b2 is used": (a0, l0, a1, l1, result),
    }
    for message, steps_ in mistakes.items():
        with pytest.raises(VerificationError, match=message):
            verify_program(broken(program, *steps_))


def test_the_verifier_notices_overlap_in_the_arena() -> None:
    program = planned(chain(3, shifted=True), "b2")
    good = plan_arena(program)
    verify_arena(program, good)
    bad = tuple(dataclasses.replace(entry, offset=0) for entry in good.placed)
    with pytest.raises(VerificationError, match="overlaps"):
        verify_arena(program, ArenaLayout(bad, good.bytes, good.naive_bytes))
    with pytest.raises(VerificationError, match="behind the end"):
        verify_arena(program, ArenaLayout(good.placed, 64, good.naive_bytes))


def test_the_printed_program_states_its_memory() -> None:
    text = print_program(planned(chain(4), "b3"))
    assert "4,096 bytes live at most" in text and "12,288 without reuse" in text
    assert "reuse    b1: float32[1024] stride [1] in the memory of b0" in text
    assert text.splitlines()[-1].endswith("return   b3")


def test_boxed_inputs_are_freed_after_their_last_use() -> None:
    graph = Graph()
    graph.input("x", 8), graph.input("y", 8), graph.input("unread", 8), graph.input("returned", 8)
    graph.add("b0", "x", "y")
    graph.add("b1", "b0", "y", shifted=True)
    program = planned(graph, "b1", "returned", boxed=True)
    order = [step.name if isinstance(step, Free) else type(step).__name__ for step in program.steps]
    expected = ["unread", "Allocate", "Launch", "x", "Allocate", "Launch", "y", "b0", "ReturnValues"]
    assert order == expected


def test_inputs_that_are_not_boxed_are_never_freed() -> None:
    assert not steps(planned(chain(1), "b0"), Free)


def test_large_intermediates_leave_an_arena_that_is_limited() -> None:
    graph = Graph()
    graph.input("x", 1 << 20), graph.input("small", 64)
    for number in range(6):
        graph.add(f"b{number}", "x", f"b{number - 1}" if number else "x", shifted=True)
        graph.add(f"s{number}", "small", f"s{number - 1}" if number else "small", shifted=True)
    limited = planned(graph, "b5", "s5", arena_share=0.01)
    free = planned(graph, "b5", "s5")
    assert {entry.name for entry in plan_arena(limited).placed} == {f"s{number}" for number in range(5)}
    assert plan_arena(limited).bytes < 1 << 20 < plan_arena(free).bytes
    assert {step.name for step in steps(limited, Free)} >= {f"b{number}" for number in range(5)}


def test_an_arena_that_is_small_enough_keeps_all_intermediates() -> None:
    program = planned(chain(6, shifted=True), "b5", arena_share=0.01)
    assert program.heap_from is None
    assert program == planned(chain(6, shifted=True), "b5")


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("called", [1, 1 << 20])
def test_an_arena_of_a_gpu_adds_little_to_what_library_calls_return(gpu: bool, called: int) -> None:
    """The arena is as large as its largest moment, also while results of calls are alive."""
    graph = Graph()
    graph.input("x", 1 << 20)
    for number in range(4):
        graph.add(f"b{number}", "x", f"b{number - 1}" if number else "x", shifted=True)
    graph.call(("c0", "c1"), [(called,), (called,)], aten.split.Tensor, View("b3", layout(1 << 20)), 2)
    graph.add("out", "c0", "c1")
    if gpu:
        graph.move_to_gpu()
    program = planned(graph, "out")
    assert (program.heap_from is not None) == (gpu and called > 1)
    if gpu:
        without_arena = planned(graph, "out", arena_share=0.0)
        assert predict_peak(program).bytes <= 1.1 * predict_peak(without_arena).bytes


def test_large_intermediates_are_still_overwritten_in_place() -> None:
    graph = Graph()
    graph.input("x", 1 << 20)
    previous = "x"
    for number in range(6):
        previous = graph.add(f"b{number}", "x", previous)
    program = planned(graph, "b5", arena_share=0.01)
    assert [step.old for step in steps(program, Reuse)] == ["b0", "b1", "b2", "b3", "b4"]  # the result as well
    assert [step.name for step in steps(program, Allocate)] == ["b0"]


def test_the_predicted_peak_counts_results_the_arena_and_inputs_until_they_are_freed() -> None:
    graph = Graph()
    graph.input("x", 1024), graph.input("y", 1024), graph.input("z", 256)
    graph.add("b0", "x", "x")
    graph.add("b1", "b0", "y", shifted=True)
    graph.add("b2", "z", "z")
    kilobytes = 4096
    plain = planned(graph, "b1", "b2")
    assert predict_peak(plain).bytes == plan_arena(plain).bytes + kilobytes + kilobytes // 4
    boxed = planned(graph, "b1", "b2", boxed=True)
    assert predict_peak(boxed).bytes == plan_arena(boxed).bytes + 2 * kilobytes + kilobytes // 4  # b1 beside y and z
    assert predict_peak(boxed, held=["y"]).bytes == plan_arena(boxed).bytes + kilobytes + kilobytes // 2  # b1, z and b2


def test_the_predicted_peak_counts_what_library_calls_return() -> None:
    graph = Graph()
    graph.input("x", 1024)
    graph.call(("b0",), ((1024,),), aten.sort.default, "x")
    graph.add("b1", "b0", "x")
    assert predict_peak(planned(graph, "b1")).bytes == 2 * 4096


@pytest.mark.parametrize(("groups", "scratch"), [(1, 0), (4, 4 * (2 * 8 * 6 * 6 + 8 * 2 * 3 * 3))])
def test_convolutions_of_groups_work_in_as_many_bytes_as_they_touch(groups: int, scratch: int) -> None:
    graph = Graph()
    graph.input("x", 1, 8, 6, 6), graph.input("w", 8, 8 // groups, 3, 3)
    arguments = ["x", "w", None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups]
    graph.call(("b0",), ((1, 8, 6, 6),), aten.convolution.default, *arguments)
    graph.add("b1", "b0", "b0")
    assert scratch_bytes(planned(graph, "b1")) == scratch


def test_gradients_of_convolutions_of_groups_work_in_more_memory() -> None:
    graph = Graph()
    graph.input("g", 1, 8, 6, 6), graph.input("x", 1, 8, 6, 6), graph.input("w", 8, 2, 3, 3)
    arguments = ["g", "x", "w", None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4, [True, False, False]]
    graph.call(("b0", None, None), ((1, 8, 6, 6), None, None), aten.convolution_backward.default, *arguments)
    graph.add("b1", "b0", "b0")
    assert scratch_bytes(planned(graph, "b1")) == 4 * (3 * 8 * 6 * 6 + 8 * 2 * 3 * 3)
