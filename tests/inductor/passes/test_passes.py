"""Graph passes: the same results, and the nodes they are there to remove are gone."""

from __future__ import annotations

import pytest
import torch
from tests.inductor.lowered_evaluator import run

from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower, lower, verify_lowered
from stator.inductor.passes import drop_no_ops, fold_constants, merge_common_subexpressions, run_passes


def targets(gm):
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def check(function, apply, *inputs):
    """Targets after the pass, whose graph and whose lowering are checked against the function."""
    graph = trace(function, inputs, keep=can_lower).graph
    graph = apply(graph)
    graph.graph.lint()
    graph.recompile()
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    lowered = lower(graph)
    verify_lowered(lowered)
    for got, want in zip(graph(*inputs), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.stride()
    for got, want in zip(run(lowered, inputs), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    return targets(graph)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 1).exp(),
        lambda x: (x / 1).exp(),
        lambda x: (x - 0).exp(),
        lambda x: x.clone().exp(),
        lambda x: x.to(torch.float32).exp(),
        lambda x: x.expand(3, 4).exp(),
        lambda x: x.permute(0, 1).exp(),
        lambda x: x[:].exp(),
    ],
)
def test_no_ops_disappear(function):
    assert check(function, drop_no_ops, torch.randn(3, 4)) == ["aten.exp.default"]


def test_adding_zero_to_floats_stays_because_of_negative_zero():
    assert "aten.add.Tensor" in check(lambda x: 1 / (x + 0), drop_no_ops, torch.tensor([-0.0, 1.0]))


def test_a_returned_clone_stays_a_copy():
    x = torch.randn(3)
    assert check(lambda x: x.clone(), run_passes, x) == ["aten.clone.default"]


def test_promotion_by_a_number_is_not_a_no_op():
    assert check(lambda x: (x * 1.0).exp(), drop_no_ops, torch.arange(4))[0] == "aten.mul.Tensor"


def test_equal_calls_are_merged_and_unequal_ones_are_not():
    x = torch.arange(6)
    names = check(lambda x: (x * 2).sin() + (x * 2).cos(), merge_common_subexpressions, x)
    assert names.count("aten.mul.Tensor") == 1
    names = check(lambda x: ((x * 2) + (x * 2.0), x.sum()), merge_common_subexpressions, x)
    assert names.count("aten.mul.Tensor") == 2


def test_random_numbers_are_not_merged():
    graph = trace(lambda x: torch.rand_like(x) - torch.rand_like(x), [torch.randn(50)], keep=lambda op: True).graph
    merged = merge_common_subexpressions(graph)
    assert sum("rand" in name for name in targets(merged)) == 2


def bucket(x):
    position = torch.arange(6)[:, None] - torch.arange(6)[None]
    distance = (position.abs().float() + 1).log() * 4
    return x + distance.long()


def test_a_chain_without_inputs_becomes_a_constant():
    names = check(bucket, fold_constants, torch.randn(6, 6))
    assert names == ["aten.add.Tensor"]


def test_a_constant_made_from_a_constant_that_is_used_otherwise():
    def function(x):
        table = ((torch.arange(6).float() + 1).log() * 2).exp()
        return x * table + (table.sin() + 1) * x

    names = check(function, fold_constants, torch.randn(6))
    assert sorted(names) == ["aten.add.Tensor", "aten.mul.Tensor", "aten.mul.Tensor"]


def test_cheap_generators_are_left_to_the_loops():
    assert "aten.arange.default" in check(lambda x: x + torch.arange(6), run_passes, torch.randn(6))


def test_what_only_checks_is_kept(monkeypatch):
    """Whatever torch.fx thinks of the operator's effects: that depends on what else was imported."""
    monkeypatch.setattr(
        torch.fx.Node, "is_impure", lambda node, impure_random=True: node.op in ("placeholder", "output")
    )
    graph = trace(lambda x: torch.linalg.cholesky(x + 0), (torch.eye(2),), keep=can_lower).graph
    assert "aten._linalg_check_errors.default" in targets(run_passes(graph))
