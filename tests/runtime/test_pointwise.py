"""Convolutions with kernels of one row and column: the operators' bits, or none at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.runtime.test_depthwise import by_autograd, check_bits, needs_avx512, operands
from tests.threads import threads

from stator.runtime import pointwise
from stator.runtime.depthwise import Shape
from stator.runtime.pointwise import Pointwise, Way, agreeing


def points(channels: int, results: int, image: tuple[int, int], stride: tuple[int, int] = (1, 1)) -> Shape:
    return Shape(2, channels, image, (1, 1), stride, (0, 0), channels, results)


# one chain or several, blocks of positions of one image or of two, results and positions of no whole vectors
SHAPES = [
    *(points(channels, 51, (23, side), (2, 2)) for channels in (24, 33) for side in (9, 40)),
    points(19, 24, (12, 12), (1, 2)),
    *(points(channels, results, (7, 7)) for channels, results in ((300, 37), (37, 300), (3, 2))),
    *(points(channels, results, (14, 14)) for channels, results in ((200, 24), (24, 200), (17, 13))),
    points(16, 40, (57, 31)),
]


@pytest.mark.parametrize("count", [1, 2], ids=["one-thread", "two-threads"])
@pytest.mark.parametrize("what", ["forward", "data"])
@pytest.mark.parametrize("of", SHAPES, ids=str)
def test_what_agrees_has_the_bits_of_eager(of: Shape, what: str, count: int) -> None:
    torch.manual_seed(0)
    with threads(count):
        kernel = agreeing(what, of)
        if kernel is not None:  # called otherwise: which these are is another test
            check_bits(kernel, of, what)


@needs_avx512
@pytest.mark.parametrize("what", ["forward", "data"])
@pytest.mark.parametrize("side", [7, 14, 28, 56])
def test_usual_convolutions_agree(side: int, what: str) -> None:
    with threads(2):
        assert agreeing(what, points(24, 72, (side, side)) if side > 28 else points(152, 200, (side, side))) is not None


@needs_avx512
@pytest.mark.parametrize("what", ["forward", "data"])
def test_usual_convolutions_with_a_stride_agree(what: str) -> None:
    with threads(1):
        assert agreeing(what, points(56, 152, (28, 28), (2, 2))) is not None


def test_another_order_of_additions_does_not_agree() -> None:
    with threads(2):
        of = points(152, 40, (14, 14))
        found = [Pointwise(Way(chain, True), "forward", of) for chain in (256, 128, 80, 64)]
        assert len(pointwise._that_agree(found, "forward", of)) <= 1


def test_under_other_settings_it_is_the_operator() -> None:
    """Kernels that add up otherwise than the operator, so that it shows which of them ran."""
    of = points(152, 40, (14, 14))
    one, other = operands(of, "forward")
    with threads(2):
        kernels = [Pointwise(Way(chain, True), "forward", of) for chain in (7, 3)]
    with threads(1):
        expected = by_autograd(of, "forward", one, other)
        for kernel in kernels:
            result = torch.empty_like(expected)
            kernel(one, other, out=result)
            assert torch.equal(result, expected)


def test_large_ones_and_the_gradient_of_the_weight_are_left_to_the_library() -> None:
    with threads(2):
        assert agreeing("forward", points(1024, 1024, (14, 14))) is None
        assert agreeing("weight", points(24, 24, (14, 14))) is None


def test_products_of_matrices_are_left_to_the_library() -> None:
    """In one thread ATen computes these otherwise."""
    with threads(1):
        assert agreeing("forward", points(24, 24, (14, 14))) is None


@pytest.mark.parametrize("count", [1, 2], ids=["one-thread", "two-threads"])
def test_every_kernel_is_right_and_stays_within_its_tensors(count: int) -> None:
    """In a process of its own, which a kernel that goes astray ends, or never does."""
    program = Path(__file__).with_name("guarded_pointwise.py")
    finished = subprocess.run([sys.executable, str(program), str(count)], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "convolutions were right" in finished.stdout
