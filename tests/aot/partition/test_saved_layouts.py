"""Saved values keep the memory format that the forward chose, also when hooks give them back in another."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.differential import Counts
from tests.threads import threads
from torch import nn

import stator
from stator import aot
from stator.aot.trace.joint import trace_joint


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.Hardswish(),
        nn.Conv2d(32, 32, 5, padding=2, groups=32, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32),
        nn.Conv2d(32, 16, 1),
    )


def grouped_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 16, 1),
    )


def gradients(call, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    x.grad = None
    call(x).square().sum().backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


def close(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())
        assert one.stride() == other.stride()


@pytest.fixture(params=[network, grouped_network])
def pair(request):
    model = request.param()
    x = torch.randn(2, 8, 20, 20, requires_grad=True)
    compiled = stator.compile(model, fullgraph=True)
    return compiled, model, x


def images(output: torch.Tensor) -> list[torch.Tensor]:
    """The kept ones. The output holds its history and so the saved values."""
    return [t for t in output.grad_fn.saved() if t is not None and t.dim() == 4 and t.shape[1] == 32]


def test_kept_images_lie_as_the_forward_made_them(pair) -> None:
    compiled, _, x = pair
    if not torch.backends.mkldnn.is_available():
        pytest.skip("without oneDNN no format is preferred")
    assert any(
        t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in images(compiled(x))
    )


def test_gradients_and_their_layouts(pair) -> None:
    compiled, model, x = pair
    eager = copy.deepcopy(model)
    expected = gradients(eager, eager, x)
    close(gradients(compiled, model, x), expected)
    close(gradients(compiled, model, x), gradients(eager, eager, x))


@pytest.mark.parametrize("make", [network, grouped_network])
def test_one_backward_for_all_sizes(make) -> None:
    model = make()
    eager = copy.deepcopy(model)
    compiled, counts = stator.compile(model, fullgraph=True, dynamic=True), Counts()
    with threads(1):  # several make torch choose other libraries for one image than for more
        for size in ((2, 8, 20, 20), (3, 8, 9, 7), (1, 8, 30, 4)):
            x = torch.randn(size, requires_grad=True)
            close(gradients(compiled, model, x), gradients(eager, eager, x))
            kept = [one for one in images(compiled(x)) if one.shape[2] > 1]
            assert kept and all(one.is_contiguous(memory_format=torch.channels_last) for one in kept)
    assert counts.compilations == 1
    assert counts["aot_backward:fixed_sizes"] == 0


@pytest.mark.parametrize("first_with_hooks", [True, False])
def test_hooks_that_give_values_back_in_another_layout(pair, first_with_hooks: bool) -> None:
    compiled, model, x = pair
    eager = copy.deepcopy(model)
    expected = gradients(eager, eager, x)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous().clone(), lambda t: t)
    for with_hooks in (first_with_hooks, not first_with_hooks):
        if with_hooks:
            with hooks:
                close(gradients(compiled, model, x), expected)
        else:
            close(gradients(compiled, model, x), expected)


def test_a_batch_of_tangents(pair) -> None:
    """Tangents batched by vmap run operator by operator, on values laid out as they were traced."""
    compiled, model, x = pair
    eager = copy.deepcopy(model)
    tangents = torch.randn(3, 2, 16, 10, 10)
    actual = torch.autograd.grad(compiled(x), [x], tangents, is_grads_batched=True)
    expected = torch.autograd.grad(eager(x), [x], tangents, is_grads_batched=True)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_tangents_of_results_with_gaps_are_laid_out_as_what_is_like_them() -> None:
    """As eager's are behind anything element by element: matrix products of other layouts have other bits."""
    torch.manual_seed(0)
    given = [torch.randn(5, 3, requires_grad=True), torch.randn(5, 2, requires_grad=True)]
    solve = lambda a, b: torch.linalg.lstsq(a, b, driver="gels").solution  # noqa: E731
    joint = trace_joint(solve, given, keep=aot.keep_all)
    (tangent,) = [node for node in joint.graph.graph.nodes if node.name.startswith("tangent")]
    solution = solve(*given)
    assert solution.stride() == (1, 5)
    assert tangent.meta["val"].stride == torch.empty_like(solution).stride() == (1, 3)
