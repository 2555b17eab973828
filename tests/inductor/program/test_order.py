"""Steps in an order that holds less memory: what needs what still holds, and the peak is never higher."""

from __future__ import annotations

import random

import pytest
import torch
from handmade import Graph, layout

from stator.inductor.buffers import Buffer
from stator.inductor.program import order_for_memory, plan, predict_peak, verify_program
from stator.inductor.program.steps import Program
from stator.inductor.schedule.groups import Schedule

aten = torch.ops.aten
MILLION = 1 << 20  # elements: 4 MiB, so that no intermediate lies in an arena


def made(step) -> str:
    return step.outputs[0] if hasattr(step, "outputs") else step.writes[0]


def names(schedule: Schedule) -> list[str]:
    return [made(step) for step in schedule.steps]


def planned(graph: Graph, schedule: Schedule, *outputs: str) -> Program:
    program = plan(graph.finish(*outputs)[0], schedule, graph.kernels, boxed=True, arena_share=0.0)
    verify_program(program)
    return program


def test_a_large_result_that_nobody_waits_for_is_computed_where_little_is_alive() -> None:
    graph = Graph()
    for name in ("a", "b"):
        graph.input(name, MILLION)
    graph.call(("gradient",), [(8 * MILLION,)], aten.cat.default, ["a"])
    graph.call(("large",), [(8 * MILLION,)], aten.cat.default, ["b"])
    graph.call(("sum",), [(1,)], aten.sum.default, "large")
    lowered, schedule, _ = graph.finish("gradient", "sum")
    ordered = order_for_memory(lowered, schedule, ["a", "b"])
    assert names(ordered) == ["large", "sum", "gradient"]
    before, after = (predict_peak(planned(graph, s, "gradient", "sum")).bytes for s in (schedule, ordered))
    assert (before, after) == (4 * 17 * MILLION, 4 * 10 * MILLION)  # b dies before the gradient's memory is taken


def test_of_two_readers_the_one_whose_result_leaves_comes_first() -> None:
    graph = Graph()
    for name in ("flowing", "kept"):
        graph.input(name, 4 * MILLION)
    graph.call(("next",), [(MILLION,)], aten.sum.default, "flowing")
    graph.call(("weight",), [(8 * MILLION,)], aten.mm.default, "flowing", "kept")
    graph.call(("last",), [(MILLION,)], aten.neg.default, "next")
    lowered, schedule, _ = graph.finish("weight", "last")
    assert names(order_for_memory(lowered, schedule, lowered.inputs))[:2] == ["weight", "next"]


def test_a_table_is_filled_after_its_rows_are_computed() -> None:
    graph = Graph()
    for name in ("x", "y"):
        graph.input(name, MILLION)
    graph.call(("table",), [(64 * MILLION,)], aten.full.out, [64 * MILLION], 0, style="out")
    graph.call(("rows",), [(MILLION,)], aten.add.Tensor, "x", "y")
    graph.call(("table",), [(64 * MILLION,)], aten.index_add.out, "table", 0, "rows", style="out")
    lowered, schedule, _ = graph.finish("table")
    ordered = order_for_memory(lowered, schedule, lowered.inputs)
    assert [made(step) for step in ordered.steps[:2]] == ["rows", "table"]


@pytest.mark.parametrize(
    ("kernel", "channels_last", "expected"),
    [(3, False, ["first", "gradient"]), (3, True, ["gradient", "first"]), (1, False, ["gradient", "first"])],
    ids=["takes scratch", "channels last", "single positions"],
)
def test_what_can_wait_does_so_while_a_library_takes_memory_for_itself(
    kernel: int, channels_last: bool, expected: list[str]
) -> None:
    """For the gradient of the first convolution's weight, when all other gradients exist."""
    graph = Graph()
    graph.input("a", 6 * MILLION)
    images = layout(2, 4, 512, 256)
    if channels_last:
        images = layout(2, 4, 512, 256, stride=(4 * 512 * 256, 1, 4 * 256, 4))
    for name in ("flowing", "images"):
        graph.input(name, 1)
        graph.buffers[name] = Buffer(name, images, "input")
    graph.input("weight", 4, 4, kernel, kernel)
    graph.call(("gradient",), [(8 * MILLION,)], aten.cat.default, ["a"])
    rest = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    target = aten.convolution_backward.default
    outputs, sizes = (None, "first", None), ((), (4, 4, kernel, kernel), ())
    graph.call(outputs, sizes, target, "flowing", "images", "weight", *rest)
    lowered, schedule, _ = graph.finish("gradient", "first")
    ordered = order_for_memory(lowered, schedule, ["a"])
    assert [next(filter(None, step.outputs)) for step in ordered.steps] == expected


def test_calls_that_draw_numbers_keep_their_places() -> None:
    graph = Graph()
    graph.input("a", MILLION)
    graph.call(("noise",), [(8 * MILLION,)], aten.rand_like.default, "a")
    graph.call(("large",), [(8 * MILLION,)], aten.cat.default, ["a"])
    graph.call(("sum",), [(1,)], aten.sum.default, "large")
    lowered, schedule, _ = graph.finish("noise", "sum")
    assert order_for_memory(lowered, schedule, ["a"]) == schedule


def test_an_order_that_cannot_be_improved_stays() -> None:
    graph = Graph()
    graph.input("x", MILLION)
    for number in range(5):
        graph.add(f"b{number}", f"b{number - 1}" if number else "x")
    lowered, schedule, _ = graph.finish("b4")
    assert order_for_memory(lowered, schedule, ["x"]) is schedule


@pytest.mark.parametrize("seed", range(80))
def test_random_programs_hold_less_and_what_needs_what_still_holds(seed: int) -> None:
    draw = random.Random(seed)
    graph = Graph()
    known = [graph.input(f"x{number}", draw.randrange(1, 9) * MILLION) for number in range(8)]
    writers: dict[str, list[int]] = {}
    needs: list[set[int]] = []
    for number in range(draw.randrange(2, 40)):
        reads = draw.sample(known[-10:], draw.randrange(1, 3))
        changed = draw.choice([*writers]) if writers and draw.random() < 0.15 else None
        needs.append({at for name in (*reads, changed) for at in writers.get(name, ())})
        if changed is not None:  # whoever has read it must have done so before
            touched = [at for at, step in enumerate(graph.steps) if changed in (*step.args, *step.outputs)]
            needs[-1].update(touched)
            graph.call((changed,), [graph.buffers[changed].layout], aten.addmm.out, changed, *reads, style="out")
            writers[changed].append(number)
        else:
            known.append(f"b{number}")
            graph.call((f"b{number}",), [(draw.randrange(1, 9) * MILLION,)], aten.stack.out, *reads, style="out")
            writers[f"b{number}"] = [number]
    outputs = draw.sample(known[8:] or known, draw.randrange(1, max(2, len(known) - 7)))
    lowered, schedule, _ = graph.finish(*outputs)
    freed = [name for name in lowered.inputs if name not in outputs]
    ordered = order_for_memory(lowered, schedule, freed)
    place = {id(step): at for at, step in enumerate(ordered.steps)}
    assert sorted(place) == sorted(map(id, schedule.steps))
    for number, before in enumerate(needs):
        assert all(place[id(schedule.steps[at])] < place[id(schedule.steps[number])] for at in before)
    peaks = [predict_peak(planned(graph, s, *outputs)).bytes for s in (schedule, ordered)]
    assert peaks[1] <= peaks[0]
