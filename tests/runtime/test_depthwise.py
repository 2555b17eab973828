"""Convolutions with one kernel for each channel: the operators' bits, or none at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.threads import threads

from stator.runtime import comparison, depthwise
from stator.runtime.depthwise import Depthwise, Shape, agreeing

needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="which orders oneDNN adds up in is known for AVX512"
)


def shape(batch: int, channels: int, side: int, kernel: int, stride: int, columns: int | None = None) -> Shape:
    pad = kernel // 2
    return Shape(batch, channels, (side, columns or side), (kernel, kernel), (stride, stride), (pad, pad))


# images of no whole vectors, of one row, of more than a square of 15; channels of no whole vectors
SHAPES = [
    *(shape(2, 33, side, kernel, stride) for side in (7, 14, 33, 57) for kernel in (3, 5, 7) for stride in (1, 2)),
    *(shape(3, 20, 9, 3, 1, columns) for columns in (1, 15, 16, 17, 31, 32, 33, 64, 70)),
    shape(1, 40, 17, 3, 2),
    Shape(2, 20, (19, 23), (3, 5), (1, 2), (1, 2)),
    Shape(2, 20, (19, 23), (3, 3), (1, 1), (0, 0)),
    Shape(2, 20, (19, 23), (5, 3), (2, 1), (0, 2)),
    *(Shape(2, 24, (side, side), (3, 3), (stride, stride), (1, 1), 8) for side in (7, 14, 33) for stride in (1, 2)),
    Shape(3, 40, (9, 31), (3, 5), (2, 1), (1, 3), 8),
    Shape(1, 16, (19, 10), (5, 2), (1, 2), (0, 1), 8),
]


def operands(of: Shape, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(of.batch, of.channels, *of.image)
    weight = torch.randn(of.weight)
    grad = torch.randn(of.batch, of.produced, *of.out)
    return {"forward": (x, weight), "data": (grad, weight), "weight": (grad, x)}[what]


def by_autograd(of: Shape, what: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if what == "forward":
        return torch.nn.functional.conv2d(one, other, None, of.stride, of.padding, 1, of.channels // of.width)
    x = torch.randn(of.batch, of.channels, *of.image) if what == "data" else other
    weight = other if what == "data" else torch.randn(of.weight)
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    torch.nn.functional.conv2d(x, weight, None, of.stride, of.padding, 1, of.channels // of.width).backward(one)
    return x.grad if what == "data" else weight.grad  # type: ignore[return-value]


def check_bits(kernel: Callable[..., None], of: Shape, what: str) -> None:
    for scale in (1.0, 1e-22):
        one, other = operands(of, what)
        expected = by_autograd(of, what, one * scale, other)
        result = torch.full_like(expected, 3.0)
        kernel(one * scale, other, out=result)
        assert torch.equal(result.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("count", [1, 2], ids=["one-thread", "two-threads"])
@pytest.mark.parametrize("what", ["forward", "data", "weight"])
@pytest.mark.parametrize("of", SHAPES, ids=str)
def test_what_agrees_has_the_bits_of_eager(of: Shape, what: str, count: int) -> None:
    torch.manual_seed(0)
    with threads(count):
        kernel = agreeing(what, of)
        if kernel is not None:  # called otherwise: which these are is another test
            check_bits(kernel, of, what)


CHAIN, DOTS = "depthwise_weight_gradient_chain", "depthwise_weight_gradient_dots"


@needs_avx512
@pytest.mark.parametrize("what", ["forward", "data", "weight"])
@pytest.mark.parametrize(
    ("side", "kernel", "stride", "of_weight"),
    [(56, 3, 1, CHAIN), (46, 3, 1, CHAIN), (28, 3, 2, CHAIN), (14, 3, 1, CHAIN), (56, 5, 2, DOTS)],
)
def test_usual_convolutions_agree(side: int, kernel: int, stride: int, of_weight: str, what: str) -> None:
    """46 columns are three squares of 15, and one column that belongs to the last of them."""
    with threads(1):
        found = agreeing(what, shape(2, 64, side, kernel, stride))
    names = {"forward": "depthwise_forward", "data": "depthwise_data_gradient", "weight": of_weight}
    assert found is not None
    assert found.name == names[what]


@needs_avx512
@pytest.mark.parametrize("count", [1, 2], ids=["one-thread", "two-threads"])
@pytest.mark.parametrize("what", ["forward", "data", "weight"])
@pytest.mark.parametrize(("side", "stride"), [(7, 1), (14, 2), (56, 2)])
def test_usual_convolutions_of_groups_agree(side: int, stride: int, what: str, count: int) -> None:
    with threads(count):
        assert agreeing(what, Shape(2, 56, (side, side), (3, 3), (stride, stride), (1, 1), 8)) is not None


def test_another_order_of_additions_does_not_agree() -> None:
    """The two orders of the gradient of a weight: at most one of them is oneDNN's."""
    of = shape(2, 40, 28, 3, 1)
    under = comparison.settings()
    both = [Depthwise(name, "weight", of, under) for name in (DOTS, CHAIN)]
    assert sum(depthwise._first_agreeing([one], "weight", of) is not None for one in both) <= 1


@contextmanager
def other_threads() -> Iterator[None]:
    with threads(2):
        yield


@contextmanager
def reduced_precision() -> Iterator[None]:
    torch._C._set_fp32_precision_setter("mkldnn", "conv", "bf16")
    try:
        yield
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "conv", "none")


OTHER_SETTINGS = {
    "threads": other_threads,
    "no oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "reduced precision": reduced_precision,
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_under_other_settings_it_is_the_operator(name: str) -> None:
    """A kernel that adds up otherwise than the operator, so that it shows which of them ran."""
    of = shape(2, 16, 31, 3, 1)
    one, other = operands(of, "weight")
    results = {}
    with threads(1):
        for function in (CHAIN, DOTS):
            kernel = Depthwise(function, "weight", of, comparison.settings())
            with OTHER_SETTINGS[name]():
                expected = by_autograd(of, "weight", one, other)
                results[function] = torch.empty_like(expected)
                kernel(one, other, out=results[function])
    assert all(torch.equal(result, expected) for result in results.values())


def test_a_precision_that_is_chosen_the_new_way_is_no_error() -> None:
    """torch refuses to say the precision of matrix products by its old name then."""
    with reduced_precision():
        agreeing("forward", shape(2, 16, 31, 3, 1))


@pytest.mark.parametrize("count", [1, 2], ids=["one-thread", "two-threads"])
def test_every_kernel_is_right_and_stays_within_its_tensors(count: int) -> None:
    """Random sizes, beside double precision; tensors end, or begin, where memory must not be touched. In a process of
    its own, which a kernel that goes astray ends, or never does."""
    program = Path(__file__).with_name("guarded_depthwise.py")
    finished = subprocess.run([sys.executable, str(program), str(count)], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "convolutions were right" in finished.stdout


def test_large_kernels_and_strides_are_left_to_the_library() -> None:
    assert agreeing("weight", shape(2, 16, 31, 9, 1)) is None
    assert agreeing("weight", shape(2, 16, 31, 3, 3)) is None
    assert agreeing("weight", shape(2, 16, 31, 1, 1)) is None
