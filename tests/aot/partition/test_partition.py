"""Splitting joint graphs: both halves together compute the joint graph's results, and hand over the right tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.aot.partition import joint_graphs
from tests.aot.partition.joint_graphs import HandMade, Writer, assert_halves_compute, aten
from torch import fx

from stator.aot.partition.forward_backward_sets import divide_joint, read_by_backward
from stator.aot.partition.partition import Partition, SavedInput, SavedOutput
from stator.aot.partition.partition import split_joint as split_graph
from stator.base.errors import CompileError


def check(joint: HandMade) -> Partition:
    """Split the joint graph so that eager's saved values are saved, and compare the halves with it."""
    sides = divide_joint(joint)
    split = split_graph(joint, sides, read_by_backward(sides))
    assert_halves_compute(joint, split)
    return split


def targets(graph: fx.GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def linear_and_sine() -> HandMade:
    w = Writer()
    x, weight, tangent = w.primal(4, 8), w.primal(8, 8), w.tangent(4, 8)
    product = w.call(aten.mm.default, x, w.call(aten.t.default, weight))
    value = w.call(aten.sin.default, product)
    w.backward = True
    inner = w.call(aten.mul.Tensor, tangent, w.call(aten.cos.default, product))
    to_x = w.call(aten.mm.default, inner, weight)
    to_weight = w.call(aten.mm.default, w.call(aten.t.default, inner), x)
    return w.joint([value], [to_x, to_weight])


def test_inputs_are_handed_over_themselves() -> None:
    split = check(linear_and_sine())
    assert {entry.index for entry in split.saved if isinstance(entry, SavedInput)} == {0, 1}
    assert [entry.position for entry in split.saved if isinstance(entry, SavedOutput)] == [1]


def test_products_are_computed_once() -> None:
    split = check(linear_and_sine())
    assert targets(split.backward).count(aten.mm.default) == 2


def test_a_value_that_is_saved_is_returned_once() -> None:
    w = Writer()
    x, tangent = w.primal(5), w.tangent(5)
    value = w.call(aten.exp.default, x)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, tangent, value)]))
    assert split.saved == (SavedOutput(0),)
    assert len(split.forward.graph.output_node().args[0]) == 1


def test_a_value_is_recovered_from_its_transpose() -> None:
    w = Writer()
    x, tangent = w.primal(3, 5), w.tangent(5, 3)
    inner = w.call(aten.exp.default, x)
    value = w.call(aten.t.default, inner)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, w.call(aten.t.default, tangent), inner)]))
    assert split.saved == (SavedOutput(0),)  # the user's writes to the value must be noticed


def test_a_value_seen_in_part_is_saved_as_a_copy() -> None:
    w = Writer()
    x, tangent = w.primal(3, 5), w.tangent(5)
    inner = w.call(aten.exp.default, x)
    value = w.call(aten.select.int, inner, 0, 1)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, inner, tangent)]))
    outputs = split.forward(torch.randn(3, 5))
    before = outputs[1].clone()
    outputs[0].add_(1)
    assert split.saved == (SavedOutput(1),)
    assert torch.equal(outputs[1], before)


def test_an_input_that_is_written_to_is_saved_as_a_copy() -> None:
    w = Writer()
    x, tangent = w.primal(5), w.tangent(5)
    value = w.call(aten.add.Tensor, x, 1)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, tangent, x)], mutated=[(0, 0)]))
    x_given = torch.randn(5)
    outputs = split.forward(x_given)
    assert split.saved == (SavedOutput(1),)
    assert outputs[1].data_ptr() != x_given.data_ptr()


def test_new_contents_of_an_input_are_saved_apart() -> None:
    w = Writer()
    x, tangent = w.primal(5), w.tangent(5)
    value = w.call(aten.exp.default, x)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, tangent, value)], mutated=[(0, 0)]))
    outputs = split.forward(torch.randn(5))
    assert split.saved == (SavedOutput(1),)
    assert outputs[1].data_ptr() != outputs[0].data_ptr()


def test_views_are_taken_again() -> None:
    w = Writer()
    x, tangent = w.primal(4, 6), w.tangent(6, 4)
    inner = w.call(aten.exp.default, x)
    seen = w.call(aten.t.default, inner)
    value = w.call(aten.sin.default, seen)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, tangent, w.call(aten.cos.default, seen))]))
    assert aten.t.default in targets(split.backward)
    saved = [entry.position for entry in split.saved if isinstance(entry, SavedOutput)]
    assert [split.forward.graph.output_node().args[0][p].target for p in saved] == [aten.exp.default]


def test_parts_of_an_operator_with_several_results_are_saved() -> None:
    w = Writer()
    x, tangent = w.primal(4, 6), w.tangent(4, 6)
    norm = w.call(aten.native_layer_norm.default, x, [6], None, None, 1e-5)
    out, mean, rstd = (w.part(norm, index) for index in range(3))
    w.backward = True
    back = w.call(
        aten.native_layer_norm_backward.default, tangent, x, [6], mean, rstd, None, None, [True, False, False]
    )
    split = check(w.joint([out], [w.part(back, 0)]))
    assert split.saved == (SavedInput(0), SavedOutput(1), SavedOutput(2))
    assert aten.native_layer_norm.default not in targets(split.backward)


def test_pieces_of_a_split_are_views_of_what_is_saved() -> None:
    w = Writer()
    x, tangent = w.primal(4, 6), w.tangent(4, 3)
    inner = w.call(aten.exp.default, x)
    pieces = w.call(aten.split.Tensor, inner, 3, 1)
    value = w.call(aten.mul.Tensor, w.part(pieces, 0), w.part(pieces, 1))
    w.backward = True
    first = w.call(aten.mul.Tensor, tangent, w.part(pieces, 1))
    split = check(w.joint([value], [first]))
    assert split.saved == (SavedOutput(1),)
    assert targets(split.backward).count(aten.split.Tensor) == 1


def test_random_numbers_are_saved() -> None:
    w = Writer()
    x, tangent = w.primal(8, 8), w.tangent(8, 8)
    noise = w.call(aten.rand_like.default, x)
    value = w.call(aten.mul.Tensor, x, noise)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, tangent, noise)]))
    assert aten.rand_like.default not in targets(split.backward)


def test_a_random_operator_of_the_forward_runs_even_if_nobody_uses_it() -> None:
    w = Writer()
    x, tangent = w.primal(8), w.tangent(8)
    w.call(aten.rand_like.default, x)
    value = w.call(aten.exp.default, x)
    w.backward = True
    split = check(w.joint([value], [w.call(aten.mul.Tensor, tangent, value)]))
    assert aten.rand_like.default in targets(split.forward)


def test_random_numbers_of_the_backward_are_drawn_there() -> None:
    w = Writer()
    x, tangent = w.primal(8), w.tangent(8)
    value = w.call(aten.exp.default, x)
    w.backward = True
    noise = w.call(aten.rand_like.default, x)
    split = check(w.joint([value], [w.call(aten.mul.Tensor, tangent, noise)]))
    assert aten.rand_like.default not in targets(split.forward)
    assert aten.rand_like.default in targets(split.backward)


def test_constants_are_read_by_both_halves() -> None:
    w = Writer()
    x, tangent = w.primal(3), w.tangent(3)
    constant = w.graph.get_attr("scale")
    w.stand_ins[constant] = torch.empty(3, device="meta")
    constant.meta["val"] = joint_graphs._meta_of(w.stand_ins[constant])
    value = w.call(aten.mul.Tensor, x, constant)
    w.backward = True
    gradient = w.call(aten.mul.Tensor, tangent, constant)
    w.graph.output((value, gradient))
    root = torch.nn.Module()
    root.register_buffer("scale", torch.randn(3))
    joint = HandMade(fx.GraphModule(root, w.graph), 1, 1, type("Traced", (), {"mutated": []}))
    assert check(joint).saved == ()


def test_a_gradient_that_is_the_tangent() -> None:
    w = Writer()
    x, tangent = w.primal(3), w.tangent(3)
    assert check(w.joint([w.call(aten.add.Tensor, x, 1)], [tangent])).saved == ()


def test_a_value_that_needs_a_tangent_is_refused() -> None:
    w = Writer()
    x, tangent = w.primal(3), w.tangent(3)
    value = w.call(aten.mul.Tensor, x, tangent)
    with pytest.raises(CompileError, match="only the backward can compute"):
        divide_joint(w.joint([value], [tangent]))
