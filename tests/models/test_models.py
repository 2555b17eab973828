"""Unmodified transformers and timm models: one graph, no breaks, outputs equal to eager."""

from __future__ import annotations

import pytest
import torch
from benchmarks.models import NAMES, TRANSFORMERS, build, largest_relative_difference, tensors_of
from tests.differential import Counts

import stator

TOLERANCE = 1e-4  # of the largest magnitude in each output


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield
    stator.reset()


@pytest.mark.parametrize("size", ["small", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_one_graph_equal_to_eager(name: str, size: str) -> None:
    case, counts = build(name, size=size), Counts()
    expected = case.model(*case.args, **case.kwargs)
    compiled = stator.compile(case.model, fullgraph=True)
    for _ in range(2):  # the second call runs what the first compiled
        actual = compiled(*case.args, **case.kwargs)
        assert largest_relative_difference(actual, expected) < TOLERANCE
    assert type(actual) is type(expected)
    for a, e in zip(tensors_of(actual), tensors_of(expected), strict=True):
        assert (a.dtype, a.shape, a.stride(), a.device) == (e.dtype, e.shape, e.stride(), e.device)
    if name in TRANSFORMERS:  # nothing of the first input is baked in
        kwargs = {key: (value.flip(-1) if "ids" in key else value) for key, value in case.kwargs.items()}
        assert largest_relative_difference(compiled(**kwargs), case.model(**kwargs)) < TOLERANCE
    assert (counts.graphs, counts.breaks) == (1, 0)


def test_explain_counts_one_graph_and_no_breaks() -> None:
    case = build("BertForMaskedLM", size="small")
    report = stator.explain(case.model)(*case.args, **case.kwargs)
    assert (report.graph_count, report.graph_break_count) == (1, 0), str(report)
    assert report.op_count > 20


def test_padding_in_the_attention_mask_is_honoured() -> None:
    case = build("BertForMaskedLM", size="small")
    compiled = stator.compile(case.model)
    compiled(**case.kwargs)
    mask = case.kwargs["attention_mask"].clone()
    mask[:, 10:] = 0
    kwargs = {**case.kwargs, "attention_mask": mask}
    expected = case.model(**kwargs)
    assert largest_relative_difference(expected, case.model(**case.kwargs)) > 1e-3, "the mask must matter here"
    assert largest_relative_difference(compiled(**kwargs), expected) < TOLERANCE


def test_changed_weights_are_seen() -> None:
    case = build("resnet50", size="small")
    compiled = stator.compile(case.model)
    compiled(*case.args)
    case.model.conv1.weight.data.mul_(0.5)
    case.model.fc.bias.data = case.model.fc.bias.data + 1
    assert largest_relative_difference(compiled(*case.args), case.model(*case.args)) < TOLERANCE


def test_training_mode_is_another_graph_and_updates_running_statistics() -> None:
    case, twin = build("resnet50", size="small"), build("resnet50", size="small")
    compiled = stator.compile(case.model)
    compiled(*case.args)
    case.model.train(), twin.model.train()
    x = torch.randn(2, 3, 224, 224)
    assert largest_relative_difference(compiled(x), twin.model(x)) < TOLERANCE
    for (name, actual), expected in zip(case.model.named_buffers(), twin.model.buffers(), strict=True):
        torch.testing.assert_close(actual, expected, msg=lambda text, n=name: f"{n}: {text}")
