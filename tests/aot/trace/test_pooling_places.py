"""Training steps with max pooling keep the place in each window in a byte, and give eager's values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stator
from stator import aot, pipeline
from stator.prims.operators.pooling_places import has_places, max_pool_places, max_pool_places_backward

aten = torch.ops.aten
# kernel, stride, padding, dilation, ceil_mode
GEOMETRIES: list[tuple[Any, Any, Any, Any, bool]] = [
    (3, 2, 1, 1, False),
    (2, 2, 0, 1, False),
    (3, 1, 1, 1, True),
    (2, 3, 0, 1, True),
    (3, 2, 0, 2, False),
    ((3, 2), (2, 1), (1, 0), 1, True),
    (5, 1, 2, 1, False),
]


def images(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """With equal elements, windows of nothing but minus infinity, and a NaN."""
    torch.manual_seed(0)
    x = torch.randn(2, 16, 13, 15).to(dtype).to(memory_format=torch.channels_last)
    x[0, 0, :6, :6], x[1, 1, 2, 3], x[:, 2] = -torch.inf, torch.nan, 1
    return x


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """The operators of graphs behind the pass."""
    found: set[Any] = set()

    def narrow(gm: Any) -> Any:
        aot.narrow_pooling_places(gm)
        found.update(node.target for node in gm.graph.nodes)
        return gm

    monkeypatch.setattr(pipeline, "aot", type("aot", (), {**vars(aot), "narrow_pooling_places": staticmethod(narrow)}))
    return found


def step(function: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    found = function(x)
    weights = (torch.arange(found.numel()) % 7).view_as(found)
    (grad,) = torch.autograd.grad((found.float().nan_to_num(0, 0, 0) * weights).sum(), x)
    return found.detach(), grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_values_and_gradients_are_eagers(
    geometry: Any, channels_last: bool, dtype: torch.dtype, targets: set[Any]
) -> None:
    """Along the rows of a CPU, ATen's backward is quicker where windows overlap."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x * 2, *geometry) * 2

    x = images(dtype) if channels_last else images(dtype).contiguous()
    found, expected = [step(run, x) for run in (stator.compile(program, fullgraph=True), program)]
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-6  # eager adds up gradients in bfloat16
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=tolerance, atol=tolerance)
    narrow = channels_last or geometry in ((2, 2, 0, 1, False), (2, 3, 0, 1, True))
    assert (max_pool_places in targets) == narrow
    assert (aten.max_pool2d_with_indices_backward.default in targets) != narrow


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_operators_are_atens(geometry: Any) -> None:
    """As a program without loops of ours calls them, in any layout."""
    *pairs, ceil_mode = geometry
    given = [[one, one] if isinstance(one, int) else list(one) for one in pairs]
    assert has_places(*given)
    for x in (images(), images().contiguous()):
        expected, indices = aten.max_pool2d_with_indices(x, *given, ceil_mode)
        found, places = max_pool_places(x, *given, ceil_mode)
        grad = torch.randn_like(found)
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)
        gradient = max_pool_places_backward(grad, x, *given, ceil_mode, places)
        assert torch.equal(gradient, aten.max_pool2d_with_indices_backward(grad, x, *given, ceil_mode, indices))
        assert places.dtype is torch.int8 and int(places.min()) >= 0


def test_places_that_the_program_reads_stay(targets: set[Any]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        found, indices = F.max_pool2d(x * 2, 2, return_indices=True)
        return found + indices

    found, expected = [step(run, images()) for run in (stator.compile(program, fullgraph=True), program)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    assert max_pool_places not in targets


@pytest.mark.parametrize("geometry", [((13, 13), (1, 1), (6, 6), (1, 1)), ((3, 3), (1, 1), (1, 1), (2, 2))])
def test_places_beyond_a_byte_and_padding_between_elements_are_atens(geometry: Any) -> None:
    assert not has_places(*geometry)
