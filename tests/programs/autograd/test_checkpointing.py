"""Activation checkpointing in compiled code and around it, beside eager."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from tests.scenarios import BACKENDS, Scenario, check, gradients, leaf, may_break, scenarios
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import stator
from stator.aot.trace.joint import trace_joint
from stator.dynamo.capture import capture
from stator.dynamo.ir.capture_result import CapturedFrame


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4), nn.ReLU())


def not_reentrant(compiled):
    model, x = mlp(), leaf(3, 4)
    f = compiled(lambda x: checkpoint(model, x.exp(), use_reentrant=False).pow(2).sum())
    return [gradients(f(x), x, *model.parameters()) for _ in range(2)]


def reentrant(compiled):
    model, x = mlp(), leaf(3, 4)
    f = compiled(lambda x: checkpoint(model, x.exp(), use_reentrant=True).pow(2).sum())
    return [gradients(f(x), x, *model.parameters()) for _ in range(2)]


def reentrant_without_inputs_that_require_grad(compiled):
    model, x = mlp(), leaf(3, 4)
    f = compiled(lambda x: checkpoint(model, x.detach(), use_reentrant=True).sum() * x.sum())
    return gradients(f(x), x, *model.parameters())


def keyword_and_tensor_arguments(compiled):
    x, y = leaf(3), leaf(3, seed=1)

    def block(a, b, *, scale, shift=None):
        return a.sin() * b, (a + b) * scale, shift

    def program(x, y):
        a, b, nothing = checkpoint(block, x * 2, y, use_reentrant=False, scale=3.0, preserve_rng_state=False)
        return (a * b).sum(), nothing

    loss, nothing = compiled(program)(x, y)
    return gradients(loss, x, y), nothing


def in_sequence(compiled):
    model, x = mlp(), leaf(3, 4)
    f = compiled(lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False).sum())
    return gradients(f(x), x, *model.parameters())


def inside_each_other(compiled):
    x = leaf(3)

    def inner(b):
        return b.sin() * 2

    def outer(a):
        return checkpoint(inner, a.exp(), use_reentrant=False).cos()

    return gradients(compiled(lambda x: checkpoint(outer, x, use_reentrant=False).sum())(x), x)


def selective(compiled):
    x, w = leaf(3, 4), leaf(4, 4, seed=1)
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])

    def program(x, w):
        return checkpoint(lambda a, b: (a @ b).sin().exp(), x, w, use_reentrant=False, context_fn=contexts).sum()

    return gradients(compiled(program)(x, w), x, w)


@may_break
def custom_contexts(compiled):
    entered = []

    def contexts():
        entered.append(1)
        return nullcontext(), nullcontext()

    x = leaf(3)
    f = compiled(lambda x: checkpoint(torch.sin, x * 2, use_reentrant=False, context_fn=contexts).sum())
    return gradients(f(x), x), entered


@may_break
def effects_are_repeated(compiled):
    """Eager runs the function again in the backward, with all that it does."""
    model, x, calls = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), leaf(3, 4), []

    def block(a):
        calls.append(len(calls))
        return model(a)

    f = compiled(lambda x: checkpoint(block, x.exp(), use_reentrant=False).pow(2).sum())
    found = [gradients(f(x), x) for _ in range(2)]
    return found, calls, model[1].running_mean, model[1].num_batches_tracked


@may_break
def reentrant_results_inside_others(compiled):
    x = leaf(3)
    f = compiled(lambda x: checkpoint(lambda a: {"it": a.sin()}, x * 2, use_reentrant=True))
    return f(x)["it"].requires_grad


@may_break
def reentrant_result_without_gradient(compiled):
    x = leaf(3)

    def program(x):
        a, b = checkpoint(lambda a: (a.sin(), torch.ones(3)), x * 2, use_reentrant=True)
        return a.sum(), b

    loss, b = compiled(program)(x)
    return gradients(loss, x), b.requires_grad


def around_compiled_code(compiled):
    model, x, found = mlp(), leaf(3, 4), []
    f = compiled(model)
    for variant in (False, True):
        for _ in range(2):
            y = checkpoint(f, x, use_reentrant=variant)
            found.append(gradients(y.pow(2).sum(), x, *model.parameters()))
    return found


def dropout_around_compiled_code(compiled):
    model, x = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)), torch.ones(3, 4)
    f = compiled(model)
    y = checkpoint(f, x.requires_grad_(), use_reentrant=False)
    kept = (y != 0).detach().float()
    found = gradients(y.sum(), model[0].bias)[0]
    return torch.equal(found, kept.sum(0) * 2)


def differentiated_twice(compiled):
    x = leaf(3, 4)
    f = compiled(lambda x: checkpoint(lambda a: a.exp() * a.sin(), x, use_reentrant=False).sum())
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return g.detach(), h


def under_no_grad(compiled):
    model, x = mlp(), leaf(3, 4)
    f = compiled(lambda x: checkpoint(model, x, use_reentrant=False))
    with torch.no_grad():
        return f(x)


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scenario", scenarios(globals()))
def test_scenario(scenario: Scenario, backend: str) -> None:
    check(scenario, backend, whole=True)


def _regions(captured: CapturedFrame) -> list[tuple[str, int | None]]:
    assert captured.graph is not None
    nodes = [node for node in captured.graph.graph.nodes if node.op.startswith("call_")]
    return [(node.name, node.meta.get("checkpoint")) for node in nodes]


def test_each_outermost_checkpoint_is_one_region() -> None:
    def program(x):
        a = x * 2
        b = checkpoint(lambda t: checkpoint(torch.sin, t + 1, use_reentrant=False) * 3, a, use_reentrant=False)
        return checkpoint(torch.exp, b, use_reentrant=False) - 1

    assert _regions(capture(program, {"x": leaf(3)})) == [
        ("mul", None),
        ("add", 0),
        ("sin", 0),
        ("mul_1", 0),
        ("exp", 1),
        ("sub", None),
    ]


def test_regions_reach_the_joint_graph() -> None:
    def program(x):
        return checkpoint(lambda t: t.sin().exp(), x * 2, use_reentrant=False).sum()

    x = leaf(3)
    captured = capture(program, {"x": x})
    joint = trace_joint(captured.graph, [x], keep=lambda operator: True)
    regions = {
        node.name: node.meta.get("checkpoint")
        for node in joint.graph.graph.nodes
        if node.op == "call_function" and not node.meta.get("backward")
    }
    assert regions == {"mul": None, "sin": 0, "exp": 0, "sum_1": None}


def test_a_checkpointed_region_is_not_saved() -> None:
    saved: list[int] = []

    def program(x, w):
        y = x * 1
        for _ in range(6):
            y = checkpoint(lambda t: ((t @ w).sin() @ w).cos(), y, use_reentrant=False)
        return y.sum()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    compiled = stator.compile(program, backend="aot_eager", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compiled(leaf(100, 10), leaf(10, 10, seed=1))
    assert sum(saved) <= 7 * 1000 + 100, "more than the inputs of the regions is kept"


@pytest.mark.parametrize("made_by", ["partial", "lambda", "function"])
def test_what_to_save_may_be_said_by_any_function(made_by: str) -> None:
    def chosen() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    by_partial = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    contexts = {"partial": by_partial, "lambda": lambda: chosen(), "function": chosen}[made_by]
    weight = leaf(4, 4, seed=1)

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: (t @ weight).sin(), x, use_reentrant=False, context_fn=contexts).sum()

    x = leaf(3, 4)
    expected = torch.autograd.grad(function(x), (x, weight))
    found = torch.autograd.grad(stator.compile(function, backend="aot_eager", fullgraph=True)(x), (x, weight))
    torch.testing.assert_close(found, expected)


def test_torch_s_partitioner_keeps_no_checkpointed_region() -> None:
    """A backend that builds on torch's AOTAutograd recomputes the regions, by tags of their nodes."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    kept: list[Any] = []

    def forward(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        kept.extend(node.name for node in gm.graph.output_node().args[0])
        return make_boxed_func(gm.forward)

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda gm, inputs: make_boxed_func(gm.forward),
        partition_fn=min_cut_rematerialization_partition,
    )

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        return checkpoint(lambda one: torch.exp(one @ w).cos(), x, use_reentrant=False).sum()

    x, w = leaf(3, 4), leaf(4, 4, seed=1)
    found = gradients(stator.compile(program, backend=backend, fullgraph=True)(x, w), x, w)
    assert kept == ["sum_1", "primals_1", "primals_2"]
    for one, other in zip(found, gradients(program(x, w), x, w), strict=True):
        torch.testing.assert_close(one, other)
