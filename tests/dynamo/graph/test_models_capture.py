"""The graphs of unmodified transformers and timm models: every node knows its metadata and the user's line."""

from __future__ import annotations

import inspect

import pytest
import torch
from benchmarks.models import build

from stator.dynamo.capture import capture


def bound_arguments(function, module, args, kwargs):
    signature = inspect.signature(function, follow_wrapped=False)
    bound = signature.bind(module, *args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "T5ForConditionalGeneration", "mobilenetv3_large_100"])
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
