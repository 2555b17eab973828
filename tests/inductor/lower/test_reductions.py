"""Reductions, normalisation, pooling against eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers, loop_nodes, lowered_of, run

import stator


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.bfloat16, torch.float64])
def test_sums_of_other_dtypes(dtype):
    x = (torch.randn(4, 6) * 3).to(dtype)
    assert_lowers(lambda x: (x.sum(), x.sum(0)), x, tolerance=2e-2 if dtype is torch.bfloat16 else 1e-6)


def test_reductions_of_nothing():
    x = torch.randn(0, 3)
    assert_lowers(lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean(0), (x > 0).all(), (x > 0).any()), x)


def test_nan_in_extrema():
    x = torch.tensor([[1.0, math.nan, 2.0], [3.0, 1.0, 2.0]])
    assert_lowers(lambda x: (x.amax(1), *x.min(1), x.argmax(1), x.argmin(1)), x)


def test_argmax_takes_the_first_of_equals():
    x = torch.randint(0, 3, (20, 30)).float()
    assert_lowers(lambda x: (x.argmax(1), x.argmin(0), x.argmax(), x.t().argmax()), x)


def test_softmax_of_masked_rows():
    x = torch.randn(4, 6)
    x[1] = -math.inf
    x[2, 3:] = -math.inf
    assert_lowers(lambda x: (x.softmax(-1), x.logsumexp(-1)), x)


def test_layer_norm_is_accurate_for_a_large_mean():
    x = torch.randn(8, 64) + 1000
    assert_lowers(lambda x: F.layer_norm(x, (64,)), x, tolerance=2e-4)


def test_long_rows_use_welford():
    x = torch.randn(2, 20000) + 100
    lowered = assert_lowers(lambda x: F.layer_norm(x, (20000,)), x, tolerance=2e-3)
    assert any(op.name == "welford" for node in lowered.nodes for op in node.body.ops)


def test_max_pool_of_nan_and_infinities():
    x = torch.randn(1, 1, 6, 6)
    x[0, 0, 1, 1], x[0, 0, 4] = math.nan, -math.inf
    assert_lowers(lambda x: F.max_pool2d(x, 3, 2, 1), x)


def test_uncovered_cases_call_the_library():
    x = torch.randn(2, 3, 7, 9)
    assert_lowers(lambda x: x.kthvalue(2, 1), x, library=1)
    assert_lowers(lambda x: torch.sort(x, 1), x, library=1)
    assert_lowers(lambda x: x.topk(2, 1), x, library=1)


def test_a_reduced_input_that_is_dear_is_computed_once():
    lowered = lowered_of(lambda x: x.exp().softmax(-1), [torch.randn(8, 16)])
    exponentials = sum(op.name == "exp" for node in lowered.nodes for op in node.body.ops)
    assert exponentials == 2


OVER_NOTHING = [
    lambda x: x.sum(1),
    lambda x: x.prod(1, keepdim=True),
    lambda x: x.prod(),
    lambda x: x.mean(-1),
    lambda x: (x > 0).any(1),
    lambda x: (x > 0).all(),
    lambda x: torch.linalg.vector_norm(x, dim=1),
    lambda x: torch.linalg.vecdot(x, x),
    lambda x: x.sum(1) * 2 + torch.ones(3),
    lambda x: x.to(torch.int32).sum(1),
]


@pytest.mark.parametrize("at", range(len(OVER_NOTHING)))
def test_reduction_over_no_elements_gives_the_neutral_element(at):
    assert_lowers(OVER_NOTHING[at], torch.empty(3, 0))


@pytest.mark.parametrize("norm", [lambda x: F.layer_norm(x, (64,)), lambda x: F.group_norm(x, 2)])
def test_normalisation_of_half_floats_keeps_exact_statistics(norm):
    """The mean of values around 8 in bfloat16 would be off by up to 0.03, a tenth of their spread."""
    x = (torch.randn(4, 64) * 0.3 + 8).bfloat16()
    assert_lowers(norm, x, tolerance=1.6e-2)


@pytest.mark.parametrize("size", [1e-30, 1e25])
@pytest.mark.parametrize("columns", [7, 10000])  # by two passes, and in one
def test_deviations_whose_squares_leave_the_range_of_their_dtype(size, columns):
    x = torch.randn(3, columns, dtype=torch.float64).mul(size).float()
    assert_lowers(lambda x: (x.std(1) / size, torch.std_mean(x, 0)[0] / size), x)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("groups", "channels", "mean"), [(4, 24, 0.0), (3, 9, 1000.0), (6, 12, 0.0)])
def test_group_norm_of_nhwc_images_joins_moments_of_channels(groups, channels, mean, dtype, affine):
    x = (torch.randn(2, channels, 9, 7) + mean).to(dtype).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(channels, dtype=dtype), torch.randn(channels, dtype=dtype)

    def normalized(x, weight, bias):
        given = (weight, bias) if affine else (None, None)
        return torch.native_group_norm(x, *given, 2, channels, 63, groups, 1e-5)

    lowered = lowered_of(normalized, (x, weight, bias))
    exact = normalized(x.double(), weight.double(), bias.double())
    for found, wanted in zip(run(lowered, (x, weight, bias)), exact, strict=True):
        tolerance = {torch.float32: 1e-5 if mean == 0 else 1e-3, torch.bfloat16: 2e-2, torch.float64: 1e-9}[dtype]
        assert torch.allclose(found.double(), wanted, rtol=tolerance, atol=tolerance)
    assert any(node.body.ranges[-1] == channels for node in loop_nodes(lowered)), "loops run along all channels"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("sizes", [(40, 35), (37, 37), (1500,), (4, 20, 30), (3, 401)])
@pytest.mark.parametrize("content", ["around 0", "around 1000", "far elements first"])
def test_group_norm_of_large_nhwc_images_reads_them_twice(content, sizes, dtype):
    """Once for the moments, whose accuracy does not depend on the first elements of the parts, and once more."""
    x = torch.randn(2, 12, *sizes)
    if content == "around 1000":
        x += 1000
    if content == "far elements first":
        x.flatten(2)[..., ::35] = 1e4
    x = x.movedim(1, -1).to(dtype).contiguous().movedim(-1, 1)

    def normalized(x):
        return torch.native_group_norm(x, None, None, 2, 12, math.prod(sizes), 3, 1e-5)

    lowered = lowered_of(normalized, (x,))
    exact = normalized(x.double().contiguous())
    rounded = 6e-5 if content == "around 1000" else 2e-6  # of the mean alone: 3e-5
    tolerance = {torch.float32: rounded, torch.bfloat16: 1e-2, torch.float64: 1e-13}[dtype]
    for found, wanted in zip(run(lowered, (x,)), exact, strict=True):
        assert (found.double() - wanted).norm() <= tolerance * wanted.norm()
    load = ("load", lowered.inputs[0])
    reads = [node for node in loop_nodes(lowered) if any((op.name, *op.args[:1]) == load for op in node.body.ops)]
    assert len(reads) == (3 if sizes == (3, 401) else 2), "rows of 401 have no even parts"


@pytest.mark.parametrize(
    ("affine", "wanted"), [(True, [True] * 3), (True, [False, True, True]), (False, [True, False, False])]
)
@pytest.mark.parametrize("sizes", [(), (11,), (9, 7), (3, 4, 5)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_of_group_norm(dtype, channels_last, sizes, affine, wanted):
    x, grad = (torch.randn(2, *sizes, 15, dtype=dtype).movedim(-1, 1) for _ in range(2))
    if not channels_last:
        x, grad = x.contiguous(), grad.contiguous()
    x += 3
    weight, count = torch.randn(15, dtype=dtype) if affine else None, math.prod(sizes)
    mean, rstd = torch.native_group_norm(x.contiguous(), None, None, 2, 15, count, 3, 1e-5)[1:]

    def gradients(grad, x, mean, rstd, weight=None):
        found = torch.ops.aten.native_group_norm_backward(grad, x, mean, rstd, weight, 2, 15, count, 3, wanted)
        return [part for part in found if part is not None]

    arguments = (grad, x, mean, rstd, weight)[: 5 if affine else 4]
    lowered = lowered_of(gradients, arguments)
    exact = gradients(*(one.double().contiguous() for one in arguments))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float64: 1e-12}[dtype]
    for found, expected in zip(run(lowered, arguments), exact, strict=True):
        assert (found.double() - expected).norm() <= tolerance * expected.norm()


def test_the_extremum_of_one_number_has_memory_of_its_own() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, y.max(0).values, y.min(-1).values

    x = torch.tensor(2.0)
    results = stator.compile(program, fullgraph=True)(x)
    results[1].add_(1)
    assert torch.equal(torch.stack(results), torch.stack([x.sin(), x.sin() + 1, x.sin()]))
