"""Random joint graphs: under any budget both halves give the joint graph's results and share no writable memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.aot.partition.joint_graphs import HandMade, Writer, assert_halves_compute, aten
from torch import fx

from stator.aot.partition.partition import SavedInput, partition
from stator.graph.ir.cleanup import remove_dead

SHAPE = (4, 6)


def random_joint(choose: random.Random) -> HandMade:
    """Operators, views, pieces, random numbers and checkpoint regions, in the forward and in the backward."""
    w = Writer()
    primals = [w.primal(*SHAPE) for _ in range(3)]
    tangent = w.tangent(*SHAPE)
    forward = list(primals)
    for _ in range(choose.randint(3, 14)):
        w.checkpoint = choose.choice([None, None, 0, 1])
        forward.append(random_operator(w, choose, forward))
    w.checkpoint = None
    values = [shown(w, choose, choose.choice(forward[3:])) for _ in range(choose.randint(1, 3))]
    mutated = []
    if choose.random() < 0.3:
        mutated.append((choose.randrange(3), len(values)))
        values.append(w.call(aten.add.Tensor, choose.choice(forward), 1))
    w.backward = True
    backward = [tangent]
    for _ in range(choose.randint(2, 10)):
        first = choose.choice(backward)
        if choose.random() < 0.3:  # something of the backward that depends on the forward alone
            forward.append(w.call(choose.choice([aten.cos.default, aten.exp.default]), choose.choice(forward)))
        backward.append(w.call(choose.choice([aten.mul.Tensor, aten.add.Tensor]), first, choose.choice(forward)))
    gradients = [choose.choice(backward) for _ in range(2)] + [backward[-1]]
    joint = w.joint(values, gradients, mutated)
    remove_dead(joint.graph.graph)
    joint.graph.recompile()
    return joint


def random_operator(w: Writer, choose: random.Random, values: list[fx.Node]) -> fx.Node:
    """One more value of the common shape."""
    x, y = choose.choice(values), choose.choice(values)
    kind = choose.randrange(8)
    if kind == 0:
        return w.call(aten.mul.Tensor, x, y)
    if kind == 1:
        return w.call(choose.choice([aten.sin.default, aten.relu.default, aten.sigmoid.default]), x)
    if kind == 2:
        return w.call(aten.mm.default, w.call(aten.mm.default, x, w.call(aten.t.default, y)), x)
    if kind == 3:
        return w.call(aten.mul.Tensor, x, w.call(aten.rand_like.default, y))
    if kind == 4:
        return w.part(w.call(aten.native_layer_norm.default, x, [6], None, None, 1e-5), 0)
    if kind == 5:
        pieces = w.call(aten.split.Tensor, x, 3, 1)
        return w.call(aten.cat.default, [w.part(pieces, 1), w.part(pieces, 0)], 1)
    if kind == 6:
        return w.call(aten.view.default, w.call(aten.view.default, x, [24]), list(SHAPE))
    return w.call(aten.sub.Tensor, x, w.call(aten.amax.default, y, [1], True))


def shown(w: Writer, choose: random.Random, value: fx.Node) -> fx.Node:
    """An output made of a value: the value itself, a view or a part, in fresh memory as from a tracer."""
    fresh = w.call(aten.add.Tensor, value, 0.5) if choose.random() < 0.5 else value
    if fresh.target in (aten.view.default,) or fresh.op == "placeholder":
        fresh = w.call(aten.clone.default, fresh)
    kind = choose.randrange(3)
    if kind == 0:
        return fresh
    return w.call(aten.t.default, fresh) if kind == 1 else w.call(aten.select.int, fresh, 0, 1)


@pytest.mark.parametrize("budget", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("seed", range(40))
def test_halves_of_random_graphs(seed: int, budget: float) -> None:
    joint = random_joint(random.Random(seed))
    halves = partition(joint, budget)
    primals, outputs = assert_halves_compute(joint, halves, seed)
    check_unseen(joint, halves.saved, outputs, primals)


def check_unseen(joint: HandMade, saved: Any, outputs: Any, primals: list[torch.Tensor]) -> None:
    """Saved outputs that are no values share memory with no tensor of the caller."""
    seen = {tensor.untyped_storage().data_ptr() for tensor in (*outputs[: joint.value_count], *primals)}
    written = {index for index, _ in joint.traced.mutated}
    overwritten = {position for _, position in joint.traced.mutated}
    for entry in saved:
        if isinstance(entry, SavedInput):
            assert entry.index not in written
        elif entry.position < joint.value_count:
            assert entry.position not in overwritten
        else:
            assert outputs[entry.position].untyped_storage().data_ptr() not in seen
