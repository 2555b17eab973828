"""Operators of a GPU take CPU tensors through one copy each. Needs no GPU: tensors only claim to be there."""

from __future__ import annotations

import pytest
import torch

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower
from stator.inductor.passes import run_passes
from stator.prims.record import TensorMeta

aten = torch.ops.aten
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def traced(function, *given):
    """The graph of a function of (shape, dtype, device)s behind all passes."""
    mode = FakeMode()
    fakes = []
    for shape, dtype, device in given:
        strides = torch.empty(shape, device="meta").stride()
        fakes.append(mode.make(TensorMeta(tuple(shape), strides, dtype, device, 0)))
    with torch.no_grad():
        return run_passes(trace(function, fakes, keep=can_lower).graph)


def copies(gm):
    return [node for node in gm.graph.nodes if node.target is aten._to_copy.default]


def check_devices(gm):
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is not aten._to_copy.default:
            devices = {used.meta["val"].device for used in node.all_input_nodes}
            assert devices <= {node.meta["val"].device}, node


@pytest.mark.parametrize("first", [False, True], ids=["behind", "in front"])
def test_a_number_in_a_cpu_tensor_is_copied(first):
    gm = traced(lambda x, y: y * x if first else x * y, ((4, 4), torch.float32, GPU), ((), torch.float32, CPU))
    assert [node.meta["val"].device for node in copies(gm)] == [GPU]
    check_devices(gm)


def test_a_number_is_copied_once_for_all_its_readers():
    gm = traced(lambda x, y: (x * y, (x + 1).exp() * y), ((4, 4), torch.float32, GPU), ((), torch.float32, CPU))
    assert len(copies(gm)) == 1
    check_devices(gm)


def test_indices_on_the_cpu_are_copied():
    gm = traced(lambda x, i: aten.index.Tensor(x, [i]) + 1, ((4, 4), torch.float32, GPU), ((3,), torch.int64, CPU))
    assert len(copies(gm)) == 1
    check_devices(gm)


def test_what_a_program_copies_itself_is_not_copied_again():
    gm = traced(
        lambda x, y: x + aten._to_copy.default(y, device=GPU),
        ((4, 4), torch.float32, GPU),
        ((4, 4), torch.float32, CPU),
    )
    assert len(copies(gm)) == 1
    check_devices(gm)


def test_a_graph_of_the_cpu_keeps_its_nodes():
    gm = traced(lambda x, y: x * y, ((4, 4), torch.float32, CPU), ((), torch.float32, CPU))
    assert not copies(gm)
