"""The verifier finds each way in which a graph can break the rules, and names the node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx

from stator.base.errors import VerificationError
from stator.graph.tracing.tracer import trace
from stator.graph.verifier import verify
from stator.prims.record import TensorMeta

aten = torch.ops.aten
CPU = torch.device("cpu")


def good_graph() -> fx.GraphModule:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(x + y), x.split(1)[1] * torch.tensor([1.0, 2.0, 3.0])

    return trace(function, [torch.randn(2, 3), torch.randn(2, 3)], keep=lambda op: True).graph


def find(gm: fx.GraphModule, target: object) -> fx.Node:
    return next(node for node in gm.graph.nodes if node.target == target)


def _retarget(name: str, target: object) -> Callable[[fx.GraphModule], None]:
    def change(gm: fx.GraphModule) -> None:
        node = find(gm, aten.relu.default)
        node.op, node.target = name, target

    return change


def _with_meta(*meta: object) -> Callable[[fx.GraphModule], None]:
    return lambda gm: find(gm, aten.relu.default).meta.update(val=TensorMeta(*meta, CPU))


def _item_out_of_range(gm: fx.GraphModule) -> None:
    node = next(node for node in gm.graph.nodes if node.name.startswith("getitem"))
    node.args = (node.args[0], 2)


def _attribute_is_missing(gm: fx.GraphModule) -> None:
    next(node for node in gm.graph.nodes if node.op == "get_attr").target = "nowhere"


def _late_placeholder(gm: fx.GraphModule) -> None:
    with gm.graph.inserting_after(find(gm, aten.relu.default)):
        gm.graph.placeholder("late").meta["val"] = TensorMeta((2, 3), (3, 1), torch.float32, CPU)


def _nested_output(gm: fx.GraphModule) -> None:
    output = next(iter(reversed(gm.graph.nodes)))
    output.args = ((output.args[0],),)


BREAKAGES: dict[str, Callable[[fx.GraphModule], object]] = {
    "writes to its arguments": _retarget("call_function", aten.relu_.default),
    "neither an OpOverload nor getitem": _retarget("call_function", torch.relu),
    "not allowed in an ATen graph": _retarget("call_method", "relu"),
    'has no meta\\["val"\\]': lambda gm: find(gm, aten.relu.default).meta.pop("val"),
    "has meta f32\\[3, 2\\], where f32\\[2, 3\\]": _with_meta((3, 2), (2, 1), torch.float32),
    "has meta f32\\[2, 3\\] strides \\(1, 2\\)": _with_meta((2, 3), (1, 2), torch.float32),
    "has meta f64": _with_meta((2, 3), (3, 1), torch.float64),
    "does not fit the shape rule|has meta": lambda gm: next(iter(gm.graph.nodes)).meta.update(
        val=TensorMeta((2, 4), (4, 1), torch.float32, CPU)
    ),
    "before it is defined": lambda gm: find(gm, aten.add.Tensor).prepend(find(gm, aten.relu.default)),
    "does not take": lambda gm: setattr(find(gm, aten.relu.default), "kwargs", {"slope": 1}),
    "takes item 2": _item_out_of_range,
    "not a tensor of the module": _attribute_is_missing,
    "placeholder after the first operator": _late_placeholder,
    "which is not a node": _nested_output,
}


def test_a_good_graph_passes() -> None:
    verify(good_graph())


@pytest.mark.parametrize("reason", BREAKAGES)
def test_each_breakage_is_found(reason: str) -> None:
    gm = good_graph()
    BREAKAGES[reason](gm)
    with pytest.raises(VerificationError, match=reason):
        verify(gm)
