"""What `exact_rounding` computes in kernels: the bits of ATen's kernels, in vectors and in what is left of them, for
any layout and number of threads; and which operators it leaves to ATen."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.threads import threads
from torch.nn import functional as F

import stator
from stator.base import counters
from stator.inductor.lower.exact import _conditions, exact_lowering
from stator.inductor.lower.registry import lowerings, view_targets

aten = torch.ops.aten
OPTIONS = {"exact_rounding": True, "verify": True}
INF, NAN = float("inf"), float("nan")
LARGE = 2**60 + 2**36 + 1  # rounds to another float32 by way of a float64
SPECIAL = (0.0, -0.0, INF, -INF, NAN, 1e-40, -1e-40, 1e38, 1.0, -1.0, 3.0, -3.0, 6.0, -6.0, 0.5)
SIZES = (1, 7, 37, 1031, 2 * 32768 + 19)  # below and beyond what one thread gets, none of them whole vectors


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Any NaN is any other NaN; zeros of either sign are two."""
    if (actual.dtype, actual.shape, actual.stride()) != (expected.dtype, expected.shape, expected.stride()):
        return False
    equal = actual == expected
    if expected.is_floating_point():
        equal = (equal & (actual.signbit() == expected.signbit())) | (actual.isnan() & expected.isnan())
    return bool(equal.all())


def numbers(size: int, dtype: torch.dtype) -> torch.Tensor:
    """With special numbers among the first and the last ones: in vectors and in what is left of them."""
    x = torch.randn(size, dtype=torch.float64).mul(3).to(dtype)
    places = torch.arange(size)[torch.cat([torch.randperm(size)[:40], torch.arange(max(size - 33, 0), size)])]
    x[places] = torch.tensor(SPECIAL, dtype=dtype)[torch.randint(len(SPECIAL), (len(places),))]
    return x


def in_layouts(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    for size in SIZES:
        yield numbers(size, dtype)
    yield numbers(2 * 1031, dtype)[::2]
    yield numbers(33 * 35, dtype).view(33, 35).t()
    yield numbers(3 * 5 * 7 * 9, dtype).view(3, 5, 7, 9).contiguous(memory_format=torch.channels_last)


FLOATS = {
    "sums": lambda x, y: (x + y, x - y, x + 0.3, 1.7 - x, x - 0.1, x + 0.0, x - 0.0, x + 3),
    "zeros": lambda x, y: (x - (-0.0), torch.sub(x, 0.0, alpha=-1), -0.0 - x, x * 0.0, x * -1 - 0),
    "large integers": lambda x, y: (
        x + LARGE,
        (x > 0) * 0.5 * LARGE,
        LARGE - x * 1e18,
        x * 1e18 < LARGE,
        (x * 1e19).clamp_max(LARGE),
        x.masked_fill(y > 0, LARGE),
        x.new_full((3,), -LARGE) * 3,
    ),
    "products": lambda x, y: (x * y, x / y, x * 0.3, x / 0.3, x / 3, 0.3 / x, x * 1.0, x / -1, -x, x.abs()),
    "sums of products": lambda x, y: (x * y + x, x - x * y, 0.1 * x + 0.9 * y, (x + y) * 0.3 - y / 0.7),
    "powers": lambda x, y: (x**2, x**3, x.rsqrt(), x.pow(2.0) * 3),
    "comparisons": lambda x, y: (x < y, x <= 0, x > y, x >= 1, x == y, x != x, x.isnan(), x.isinf(), ~(x < 0)),
    "choices": lambda x, y: (torch.where(x > y, x, y), x.masked_fill(y > 0, -0.0), torch.where(x < 0, 2.0, y)),
    "bounds": lambda x, y: (x.clamp(-0.5, 0.7), x.clamp(0.0, 1.0), x.clamp_min(0), x.clamp_max(-0.0), x.clamp(-0.0)),
    "activations": lambda x, y: (F.relu(x), F.leaky_relu(x, 0.3), F.threshold(x, 0.1, 20.0)),
    "gradients": lambda x, y: (
        aten.threshold_backward(y, x, 0),
        aten.threshold_backward(y, x, 0.5),
        aten.sigmoid_backward(y, x),
        aten.leaky_relu_backward(y, x, 0.3, False),
    ),
    "conversions": lambda x, y: (x.double(), x.float(), x.bool(), (x > 0).to(x.dtype) * y, (x > 0) * 0.3),
    "integers": lambda x, y: (
        (x > 0).long() * 3 + 1,
        (x > 0).long() * 0.3 + y,
        ((x > 0).int() << 2) + (y > 0),
        (y > 0).long() * (2**53 + 1) + x,
    ),
    "moved": lambda x, y: (
        torch.cat([x, y * 2]),
        torch.stack([x, y]),
        (x * 2).flip(0),
        (y * 2).roll(3, 0),
        F.pad(x * 2, (1, 2), value=-0.0),
        x.new_full((3,), 0.1) * 3,
    ),
}


@pytest.mark.each_pair
@pytest.mark.parametrize("count", [1, 2], ids=["one-thread", "two-threads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FLOATS)
def test_numbers_of_any_size_layout_and_thread(name: str, dtype: torch.dtype, count: int) -> None:
    torch.manual_seed(0)
    function = FLOATS[name]
    pairs = [(x, numbers(x.numel(), dtype).view_as(x)) for x in in_layouts(dtype)]
    pairs += [(x, y[..., :1]) for x, y in pairs if name not in ("moved", "gradients")]

    def program() -> list[Any]:
        return [function(x, y) for x, y in pairs]

    counters.clear()
    with threads(count):
        expected, actual = program(), stator.compile(program, options=OPTIONS)()
    wrong = [
        (tuple(x.shape), at)
        for (x, _), mine, theirs in zip(pairs, actual, expected, strict=True)
        for at, pair in enumerate(zip(mine, theirs, strict=True))
        if not same_bits(*pair)
    ]
    assert wrong == []
    assert counters.counts["kernels"] > 0 and not counters.counts["exact_by_operators"]


def called(function: Callable[..., Any], *given: torch.Tensor) -> set[str]:
    """The operators that are called, when the function is compiled exactly."""
    counters.clear()
    stator.compile(function, options=OPTIONS, fullgraph=True)(*given)
    prefix = "inductor_fallback:"
    return {key.removeprefix(prefix) for key in counters.counts if key.startswith(prefix)}


NOT_FIXED = {
    "transcendental": (lambda x: (x.exp(), x.tanh()), {"aten.exp.default", "aten.tanh.default"}),
    "sums": (lambda x: (x.sum(), x.mean(0)), {"aten.sum.default", "aten.mean.dim"}),
    "zeros of either sign": (lambda x: torch.maximum(x, -x), {"aten.maximum.default"}),
    "a factor": (lambda x: torch.add(x, x * 2, alpha=0.3), {"aten.add.Tensor"}),
    "half floats": (lambda x: x.bfloat16() + 1, {"aten._to_copy.default", "aten.add.Tensor"}),
    "truncation": (lambda x: (x * 2).int(), {"aten._to_copy.default"}),
    "another formula": (lambda x: F.hardsigmoid(x), {"aten.hardsigmoid.default"}),
    "square roots": (lambda x: x.sqrt(), {"aten.sqrt.default"}),
    "products of matrices": (lambda x: (x * 2) @ x.t(), {"aten.matmul.default"}),
}


@pytest.mark.parametrize("name", NOT_FIXED)
def test_what_arithmetic_alone_does_not_fix_is_called(name: str) -> None:
    function, expected = NOT_FIXED[name]
    assert called(function, torch.randn(40, 30)) == expected


def test_chains_of_arithmetic_are_one_kernel() -> None:
    counters.clear()
    x, y = torch.randn(40, 30), torch.randn(30)
    program = lambda x, y: F.relu((x + y) * 0.3) * (x > 0) - y  # noqa: E731
    assert same_bits(stator.compile(program, options=OPTIONS)(x, y), program(x, y))
    assert counters.counts["kernels"] == 1 and not any(key.startswith("inductor_fallback") for key in counters.counts)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("defaults", [default_dtype(torch.float64), torch.device("meta")], ids=["dtype", "device"])
def test_kernels_are_made_whatever_the_defaults_are(defaults: Any) -> None:
    torch.manual_seed(0)
    norm, x = torch.nn.BatchNorm2d(3), torch.randn(2, 3, 5, 7)
    half = x.bfloat16()

    def function(x: torch.Tensor, half: torch.Tensor) -> Any:
        return F.hardsigmoid(norm(x)), torch.where(half > 0, half, 0.1) * 2

    with defaults:
        expected = function(x, half)
        actual = stator.compile(function, options=OPTIONS)(x, half)
    assert all(map(same_bits, actual, expected))


def test_views_are_never_copied_for_their_own_sake() -> None:
    assert all(map(exact_lowering, view_targets))


def test_whatever_is_fused_has_a_lowering() -> None:
    assert set(_conditions) <= set(lowerings)


def test_dropout_draws_the_same_numbers_as_without_kernels() -> None:
    """With one seed for all of a program; the numbers are those of the operators' eager references."""
    x = torch.randn(1000)
    results = []
    for options in (OPTIONS, {"verify": True}):
        torch.manual_seed(0)
        results.append(stator.compile(lambda x: F.dropout(x, 0.3), options=options)(x))
    assert operator.eq(*[result.count_nonzero() for result in results]) and same_bits(*results)
