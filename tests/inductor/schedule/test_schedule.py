"""What fuses and what must not, and the rules that the verifier holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from kernel_harness import Graph

from stator.base.config import Options
from stator.base.errors import VerificationError
from stator.inductor.buffers import Extern, Lowered
from stator.inductor.codegen.cpp import print_kernel
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Group, Schedule
from stator.inductor.schedule.printer import print_schedule
from stator.inductor.schedule.verifier import verify_schedule

F32 = torch.float32
VERIFIED = Options(verify=True)


def add(graph: Graph, x: str, y: str, shape: tuple[int, int], out: str | None = None, transposed: bool = False) -> str:
    """out = x + y, all contiguous; the output transposed on demand."""
    rows, columns = shape
    name = out or graph.buffer(shape, F32, (1, rows) if transposed else None)

    def body(ops, i, _):
        value = ops.add(ops.load(x, i[0] * columns + i[1]), ops.load(y, i[0] * columns + i[1]))
        ops.store(name, i[1] * rows + i[0] if transposed else i[0] * columns + i[1], value)

    graph.node([name], body, shape)
    return name


def row_sum(graph: Graph, x: str, shape: tuple[int, int]) -> str:
    name = graph.buffer((shape[0],), F32)
    graph.node(
        [name],
        lambda ops, i, j: ops.store(name, i[0], ops.reduce("sum", ops.load(x, i[0] * shape[1] + j[0]))),
        shape[:1],
        shape[1:],
    )
    return name


def divide_rows(graph: Graph, x: str, by: str, shape: tuple[int, int]) -> str:
    name = graph.buffer(shape, F32)

    def body(ops, i, _):
        ops.store(name, i[0] * shape[1] + i[1], ops.div(ops.load(x, i[0] * shape[1] + i[1]), ops.load(by, i[0])))

    graph.node([name], body, shape)
    return name


def lowered_with(graph: Graph, *nodes: object) -> Lowered:
    return Lowered(dict(graph.buffers), list(nodes) or list(graph.nodes), list(graph.inputs), list(graph.outputs))


def library_call(graph: Graph, x: str, shape: tuple[int, int]) -> tuple[Extern, str]:
    out = graph.buffer(shape, F32)
    return Extern((out,), torch.ops.aten.relu.default, (x,)), out


def groups(plan: Schedule) -> list[Group]:
    return [step for step in plan.steps if isinstance(step, Group)]


def inputs(graph: Graph, count: int, shape: tuple[int, int]) -> list[str]:
    return [graph.input(torch.randn(shape)) for _ in range(count)]


def test_rows_normalised_by_their_sum_are_one_kernel_without_intermediates() -> None:
    graph, shape = Graph(), (64, 96)
    a, b = inputs(graph, 2, shape)
    x = add(graph, a, b, shape)
    total = row_sum(graph, x, shape)
    graph.outputs = [divide_rows(graph, x, total, shape)]
    (group,) = groups(schedule(lowered_with(graph), VERIFIED))
    assert (group.ranges, group.inner_ranges) == ((64,), (96,))
    assert group.internal == {x, total}
    assert (group.reads, group.writes) == ((a, b), tuple(graph.outputs))


def test_rows_that_the_last_cache_holds_are_one_kernel() -> None:
    graph, shape = Graph(), (8, 1 << 18)
    (x,) = inputs(graph, 1, shape)
    graph.outputs = [divide_rows(graph, x, row_sum(graph, x, shape), shape)]
    assert len(groups(schedule(lowered_with(graph), VERIFIED))) == 1


def test_what_is_returned_keeps_its_memory() -> None:
    graph, shape = Graph(), (64, 96)
    a, b = inputs(graph, 2, shape)
    x = add(graph, a, b, shape)
    graph.outputs = [add(graph, x, b, shape), x]
    (group,) = groups(schedule(lowered_with(graph), VERIFIED))
    assert group.internal == frozenset()
    assert group.ranges == (64 * 96,)


def test_flat_loops_are_split_to_meet_rows() -> None:
    graph, shape = Graph(), (64, 96)
    (a,) = inputs(graph, 1, shape)
    flat = graph.buffer(shape, F32)
    graph.node([flat], lambda ops, i, _: ops.store(flat, i[0], ops.exp(ops.load(a, i[0]))), (64 * 96,))
    graph.outputs = [row_sum(graph, flat, shape)]
    (group,) = groups(schedule(lowered_with(graph), VERIFIED))
    assert (group.ranges, group.inner_ranges, group.internal) == ((64,), (96,), {flat})


def test_a_path_through_a_library_call_is_not_fused_around() -> None:
    graph, shape = Graph(), (64, 96)
    a, b = inputs(graph, 2, shape)
    x = add(graph, a, b, shape)
    call, called = library_call(graph, x, shape)
    y = add(graph, x, called, shape)
    graph.outputs = [y]
    plan = schedule(lowered_with(graph, graph.nodes[0], call, graph.nodes[1]), VERIFIED)
    assert [type(step) for step in plan.steps] == [Group, Extern, Group]


def test_a_group_that_grew_backwards_is_not_fused_with_what_depends_on_it() -> None:
    """z joins x, from before the call; y reads the same input as z, but comes after the call that reads x."""
    graph, shape = Graph(), (64, 96)
    a, b, c = inputs(graph, 3, shape)
    x = add(graph, a, b, shape)
    call, called = library_call(graph, x, shape)
    y = add(graph, called, c, shape)
    z = add(graph, x, c, shape)
    graph.outputs = [y, z]
    plan = schedule(lowered_with(graph, graph.nodes[0], call, *graph.nodes[1:]), VERIFIED)
    assert [type(step) for step in plan.steps] == [Group, Extern, Group]


def test_what_lies_before_a_group_may_need_it_through_one_that_grew_forwards() -> None:
    """x takes in `grown`, which needs e through a call; so s, which reads a call of x, must not join e."""
    graph, shape = Graph(), (64, 96)
    a, b, c, d = inputs(graph, 4, shape)
    x = add(graph, a, b, shape)
    call_of_x, called_x = library_call(graph, x, shape)
    e = add(graph, c, d, shape)
    call_of_e, called_e = library_call(graph, e, shape)
    grown = add(graph, x, called_e, shape)
    s = add(graph, called_x, e, shape)
    graph.outputs = [grown, s]
    first, of_e, *others = graph.nodes
    plan = schedule(lowered_with(graph, first, call_of_x, of_e, call_of_e, *others), VERIFIED)
    assert [type(step) for step in plan.steps] == [Group, Extern, Group, Extern, Group]


def test_groups_on_both_sides_of_an_independent_call_meet() -> None:
    graph, shape = Graph(), (64, 96)
    a, b, c = inputs(graph, 3, shape)
    x = add(graph, a, b, shape)
    call, called = library_call(graph, c, shape)
    y = add(graph, x, called, shape)
    graph.outputs = [y]
    plan = schedule(lowered_with(graph, graph.nodes[0], call, graph.nodes[1]), VERIFIED)
    assert [type(step) for step in plan.steps] == [Extern, Group]


def test_siblings_that_read_the_same_are_fused() -> None:
    graph, shape = Graph(), (64, 96)
    a, b, c = inputs(graph, 3, shape)
    graph.outputs = [add(graph, a, b, shape), add(graph, a, c, shape)]
    (group,) = groups(schedule(lowered_with(graph), VERIFIED))
    assert len(group.members) == 2 and group.reads == (a, b, c)


def test_strangers_are_not_fused() -> None:
    graph, shape = Graph(), (64, 96)
    a, b, c, d = inputs(graph, 4, shape)
    graph.outputs = [add(graph, a, b, shape), add(graph, c, d, shape)]
    assert len(groups(schedule(lowered_with(graph), VERIFIED))) == 2


def test_an_element_read_elsewhere_than_it_was_written_is_not_fused() -> None:
    graph = Graph()
    (a,) = inputs(graph, 1, (1, 100))
    x, y = graph.buffer((100,), F32), graph.buffer((99,), F32)
    graph.node([x], lambda ops, i, _: ops.store(x, i[0], ops.exp(ops.load(a, i[0]))), (100,))
    graph.node([y], lambda ops, i, _: ops.store(y, i[0], ops.load(x, i[0] + 1)), (99,))
    graph.outputs = [y]
    assert len(groups(schedule(lowered_with(graph), VERIFIED))) == 2


def test_a_transposed_store_fuses_only_when_it_saves_memory() -> None:
    for others in (False, True):
        graph, shape = Graph(), (64, 96)
        a, b = inputs(graph, 2, shape)
        x = add(graph, a, b, shape)
        y = add(graph, x, b, shape, transposed=True)
        graph.outputs = [y, *([x] if others else [])]
        assert len(groups(schedule(lowered_with(graph), VERIFIED))) == (2 if others else 1)


def test_pieces_of_one_buffer_are_complete_before_it_is_read() -> None:
    graph = Graph()
    a, b = inputs(graph, 2, (8, 16))
    joined = graph.buffer((8, 32), F32)
    graph.node([joined], lambda ops, i, _: ops.store(joined, i[0] * 32 + i[1], ops.load(a, i[0] * 16 + i[1])), (8, 16))
    graph.node(
        [joined], lambda ops, i, _: ops.store(joined, i[0] * 32 + i[1] + 16, ops.load(b, i[0] * 16 + i[1])), (8, 16)
    )
    graph.outputs = [row_sum(graph, joined, (8, 32))]
    plan = schedule(lowered_with(graph), VERIFIED)
    assert plan.steps[-1].writes == tuple(graph.outputs)
    assert all(joined not in group.internal for group in groups(plan))


def test_an_input_is_read_before_it_is_mutated() -> None:
    graph, shape = Graph(), (64, 96)
    a, b = inputs(graph, 2, shape)
    before = add(graph, a, b, shape)
    changed = graph.buffer(shape, F32, value=a)
    add(graph, b, b, shape, out=changed)
    graph.outputs = [before, changed]
    plan = groups(schedule(lowered_with(graph), VERIFIED))
    assert [group.writes for group in plan] == [(before,), (changed,)]


def test_what_nobody_reads_is_not_computed() -> None:
    graph, shape = Graph(), (64, 96)
    a, b, c = inputs(graph, 3, shape)
    add(graph, a, b, shape)
    graph.outputs = [add(graph, c, c, shape)]
    assert len(groups(schedule(lowered_with(graph), VERIFIED))) == 1


def test_layers_share_their_kernels() -> None:
    def layers(count: int) -> int:
        graph, shape = Graph(), (64, 96)
        x = inputs(graph, 1, shape)[0]
        nodes: list[object] = []
        for _ in range(count):
            weight = graph.input(torch.randn(shape))
            call, called = library_call(graph, x, shape)
            nodes.append(call)
            y = add(graph, x, called, shape)
            z = add(graph, y, weight, shape)
            x = divide_rows(graph, z, row_sum(graph, z, shape), shape)
            nodes += graph.nodes[-4:]
        graph.outputs = [x]
        plan = schedule(lowered_with(graph, *nodes), VERIFIED)
        return len({print_kernel(group, graph.buffers).symbol for group in groups(plan)})

    assert layers(1) == layers(12) == 1


def test_without_fusion_every_node_is_a_kernel() -> None:
    graph, shape = Graph(), (64, 96)
    a, b = inputs(graph, 2, shape)
    graph.outputs = [add(graph, add(graph, a, b, shape), b, shape)]
    assert len(groups(schedule(lowered_with(graph), Options(verify=True, fusion=False)))) == 2


def test_the_verifier_refuses_a_wrong_order_and_lost_memory() -> None:
    graph, shape = Graph(), (64, 96)
    a, b = inputs(graph, 2, shape)
    x = add(graph, a, b, shape)
    call, called = library_call(graph, x, shape)
    graph.outputs = [called]
    lowered = lowered_with(graph, graph.nodes[0], call)
    plan = schedule(lowered, VERIFIED)
    with pytest.raises(VerificationError, match="before"):
        verify_schedule(Schedule(tuple(reversed(plan.steps))), lowered)
    with pytest.raises(VerificationError, match="never complete"):
        verify_schedule(Schedule(plan.steps[:1]), lowered)
    group = plan.steps[0]
    with pytest.raises(VerificationError, match="writes"):
        verify_schedule(Schedule((replace(group, writes=()), call)), lowered)


def test_the_printed_schedule_names_kernels_buffers_and_loops() -> None:
    graph, shape = Graph(), (64, 96)
    a, b = inputs(graph, 2, shape)
    graph.outputs = [add(graph, a, b, shape)]
    text = print_schedule(schedule(lowered_with(graph)))
    assert "1 kernels from 1 loop nodes" in text and f"reads {a}, {b}" in text and "for x0 in range(6144)" in text
