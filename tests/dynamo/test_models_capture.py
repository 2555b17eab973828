"""Unmodified transformers and timm models: captured from bytecode as one graph whose replay is equal to eager."""

from __future__ import annotations

import inspect

import pytest
import torch
from benchmarks.models import NAMES, build, tensors_of

from stator.dynamo.capture import capture
from stator.dynamo.ir.capture_result import Return


def bound_arguments(function, module, args, kwargs):
    signature = inspect.signature(function, follow_wrapped=False)
    bound = signature.bind(module, *args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


@pytest.mark.parametrize("name", NAMES)
def test_one_graph(name: str) -> None:
    case = build(name, size="small")
    forward = type(case.model).forward
    with torch.no_grad():
        captured = capture(forward, bound_arguments(forward, case.model, case.args, case.kwargs), fullgraph=True)
        expected = tensors_of(case.model(*case.args, **case.kwargs))
        assert captured.graph is not None and isinstance(captured.exit, Return)
        actual = captured.graph(*[entry.example for entry in captured.inputs])
    assert not captured.break_reasons
    # The attention mask of a captured model is made without looking at its data, so other kernels may run.
    assert any(
        one.shape == expected[0].shape and torch.allclose(one, expected[0], rtol=1e-4, atol=1e-4) for one in actual
    )


@pytest.mark.parametrize("name", NAMES)
def test_nodes_know_their_metadata_and_place(name: str) -> None:
    case = build(name, size="small")
    forward = type(case.model).forward
    with torch.no_grad():
        captured = capture(forward, bound_arguments(forward, case.model, case.args, case.kwargs), fullgraph=True)
    assert captured.graph is not None
    placeholders = [node for node in captured.graph.graph.nodes if node.op == "placeholder"]
    assert [node.name for node in placeholders] == [entry.name for entry in captured.inputs]
    for node in captured.graph.graph.nodes:
        if node.op in ("call_function", "call_method"):
            assert "example_value" in node.meta and node.meta["place"].line > 0, node
    for node, entry in zip(placeholders, captured.inputs, strict=True):
        assert node.meta["example_value"].shape == entry.example.shape
