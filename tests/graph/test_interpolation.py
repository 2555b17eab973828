"""`interpolate` with symbolic sizes: at other sizes as eager, with its gradient, by one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from symbolic_graphs import SymbolicGraph
from tests.differential import BY_BACKEND, Counts, assert_same_outcome, observe
from tests.varying_sizes import check_sizes

import stator
from stator import pipeline

MODES = {1: ("nearest", "nearest-exact", "linear"), 2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area")}
CASES = [(mode, spatial) for spatial in MODES for mode in MODES[spatial]] + [("nearest", 3), ("trilinear", 3)]
SIZES = ((2, 3, 6), (4, 5, 7), (3, 2, 9))


def images(batch: int, channels: int, length: int, spatial: int) -> torch.Tensor:
    sizes = [length + at for at in range(spatial)]
    return torch.randn(batch, channels, *sizes, dtype=torch.float64, requires_grad=True)


def check(program: Any, spatial: int) -> None:
    first = images(*SIZES[0], spatial)
    graph = SymbolicGraph(program, [first])
    run = pipeline.aot_eager_backend(graph.module, [first])
    for sizes in SIZES:
        x = images(*sizes, spatial)
        assert graph.holds([x]), list(map(str, graph.environment.facts))
        (found,), expected = run(x), program(x)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(result.square().sum(), x)[0] for result in (found, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("mode", "spatial"), CASES)
def test_to_a_size(mode: str, spatial: int) -> None:
    check(lambda x: F.interpolate(x, size=[x.size(2) + 3] * spatial, mode=mode), spatial)


@pytest.mark.parametrize(("mode", "spatial"), [case for case in CASES if case[0] != "area"])
def test_by_a_factor(mode: str, spatial: int) -> None:
    check(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), spatial)


def test_averages_by_a_factor() -> None:
    """Sizes of the windows are quotients by sizes that are zero for images of one row."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.neg(), scale_factor=0.5, mode="area").neg()

    compiled = stator.compile(program)
    counts = Counts()
    for height, width in ((8, 10), (12, 16), (20, 6), (9, 8), (13, 12), (7, 11), (15, 5), (1, 8), (6, 30)):
        x = torch.randn(2, 3, height, width, requires_grad=True)
        assert_same_outcome(observe(compiled, [x]), observe(program, [x]), BY_BACKEND["inductor"])
    # for the first sizes (unless all are symbols); where windows divide the images, their heights, or nothing; without
    # a row
    assert counts.compilations <= 5
    assert counts["dynamo.refused_symbols"] == 0


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_without_aliases_and_with_aligned_corners(mode: str) -> None:
    check(lambda x: F.interpolate(x, size=(4, x.size(3)), mode=mode, antialias=True), 2)
    check(lambda x: F.interpolate(x, scale_factor=(2.0, 0.6), mode=mode, align_corners=True), 2)
    check(lambda x: F.interpolate(x, scale_factor=1.5, mode=mode, recompute_scale_factor=True), 2)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_one_version_serves_images_that_keep_a_size_and_those_that_do_not(mode: str, aligned: bool) -> None:
    def program(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
        return F.interpolate(x, (height, width), mode=mode, align_corners=aligned) * 2

    compiled = stator.compile(program)
    counts = Counts()
    for size, target in (((8, 9), (12, 7)), ((7, 10), (14, 20)), ((8, 8), (8, 12)), ((9, 5), (9, 5)), ((5, 6), (9, 6))):
        x = torch.randn(2, 3, *size, requires_grad=True)
        with torch.no_grad():
            x[0, 1, 2, 2] = torch.nan
        found, expected = (observe(one, [x, *target], gradients=False) for one in (compiled, program))
        assert_same_outcome(found, expected, BY_BACKEND["inductor"])
        x = torch.randn(2, 3, *size, requires_grad=True)
        found, expected = (observe(one, [x, *target]) for one in (compiled, program))
        assert_same_outcome(found, expected, BY_BACKEND["inductor"])
    assert counts.compilations == 2


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.05])
@pytest.mark.parametrize("sizes", [(8,), (8, 20), (8, 8), (4, 8, 6)])
def test_to_as_many_or_twice_as_many_pixels(sizes: tuple[int, ...], factor: float, mode: str) -> None:
    """Some of eager's kernels ignore the factor then."""
    compiled = stator.compile(lambda x: F.interpolate(x.neg(), scale_factor=factor, mode=mode).neg())
    x = torch.randn(2, 3, *sizes, requires_grad=True)
    found, expected = compiled(x), F.interpolate(x, scale_factor=factor, mode=mode)
    assert torch.equal(found, expected)
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((result * weights).sum(), x)[0] for result in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "options", [{"size": (10, 14)}, {"size": (11, 13)}, {"size": (9, 40)}, {"size": (3, 1)}, {"scale_factor": 1.7}]
)
def test_gradients_of_known_sizes(options: dict[str, Any], memory_format: Any, aligned: bool) -> None:
    x = torch.randn(2, 3, 5, 7).to(memory_format=memory_format).requires_grad_()

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, mode="bilinear", align_corners=aligned, **options).sin()

    expected, actual = program(x), stator.compile(program)(x)
    grad = torch.randn_like(expected)
    grad[0, 0, 1, 0] = torch.inf  # reaches its two neighbours along each dimension, and no others
    torch.testing.assert_close(actual, expected)
    wanted, found = (torch.autograd.grad(result, x, grad)[0] for result in (expected, actual))
    torch.testing.assert_close(found.nan_to_num(7.0, 7.0, 7.0), wanted.nan_to_num(7.0, 7.0, 7.0), rtol=1e-4, atol=1e-4)
    assert found.stride() == wanted.stride()


@pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing
def test_every_other_pixel_of_odd_and_even_sizes() -> None:
    """The strides of the pixels are those of a dense tensor in no size, whether or not it is a multiple of two."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x[:, :, ::2, ::2], size=(x.shape[2] * 2, x.shape[3] * 2), mode="bilinear")

    check_sizes(program, lambda size: (torch.randn(2, 3, size, size + 2, requires_grad=True),), backend="inductor")
