"""One set of kernels computes a graph for all sizes: results equal eager's at sizes that were not compiled for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from all_sizes import check_at_sizes

import stator

# around a vector's width, below it, and long enough for partial sums and threads
SIZES = [(6, 4), (2, 2), (3, 17), (5, 16), (7, 33), (64, 100), (3, 6000)]

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "pointwise": lambda x, y: (x + y).relu() * 2,
    "sum of rows": lambda x, y: (x * y).sum(-1),
    "mean of columns": lambda x, y: (x * y).mean(0),
    "mean of all": lambda x, y: (x + y).mean(),
    "size as a number": lambda x, y: x * x.shape[1] + y.shape[0],
    "softmax": lambda x, y: torch.softmax(x + y, -1),
    "softmax of columns": lambda x, y: torch.softmax(x + y, 0),
    "transposed and flattened": lambda x, y: (x.t() + 1).reshape(-1),
    "concatenated": lambda x, y: torch.cat([x, x * 2, y[None]]),
    "neighbours": lambda x, y: x[1:] + x[:-1],
    "last": lambda x, y: x[-1] + y[-1],
    "moments": lambda x, y: (x.var(-1), x.std(0)),
    "layer norm": lambda x, y: F.layer_norm(x, x.shape[1:], y, y),
    "largest": lambda x, y: (x.max(-1).values, x.argmin(-1), x.amax(0)),
    "padded": lambda x, y: F.pad(x, (1, 2)).exp(),
    "repeated": lambda x, y: x.repeat(2, 3),
    "rolled and flipped": lambda x, y: x.roll(1, 1).flip(0) + y,
    "made": lambda x, y: x + torch.arange(x.shape[1]) + torch.ones(x.shape[0], 1) + torch.full_like(x, 2),
    "triangle": lambda x, y: x.tril() + x.triu(1),
    "products": lambda x, y: ((x @ x.t()).relu() @ x, torch.addmm(y, x, x.t() @ x)),
    "places among sorted rows": lambda x, y: torch.searchsorted(x[:, 0].sort().values, y),
    "distances of pairs": lambda x, y: F.pdist(x) * y[0],
    "outer product": lambda x, y: (x[:, :, None] * y).sum(1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_sizes_have_one_compilation(name: str) -> None:
    torch.manual_seed(0)
    check_at_sizes(
        PROGRAMS[name],
        lambda rows, columns: (torch.randn(rows, columns), torch.randn(columns)),
        [("rows", "columns"), ("columns",)],
        SIZES,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("attention", ("library", "causal", "products"))
def test_attention_over_symbolic_batch_and_length(attention: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 32) / 8

    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        batch, length, channels = x.shape
        parts = F.linear(F.layer_norm(x, (channels,)), weight).split(channels, -1)
        query, key, value = (part.view(batch, length, 4, 8).transpose(1, 2) for part in parts)
        if attention == "products":
            scores = (query @ key.transpose(-1, -2) / math.sqrt(8)).softmax(-1)
            mixed = scores @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=attention == "causal")
        return x + F.gelu(mixed.transpose(1, 2).reshape(batch, length, channels))

    check_at_sizes(
        block,
        lambda batch, length: (torch.randn(batch, length, 32), weight),
        [("batch", "length", None), (None, None)],
        [(2, 30), (3, 17), (2, 2), (4, 64), (5, 129)],
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_size_that_lowering_makes_a_constant() -> None:
    """Pooling to two columns is a copy of two columns. Lowering relies on it after it has read the input's layout."""
    compiled = stator.compile(lambda x: F.adaptive_avg_pool1d(x.flip(0), 2), dynamic=True)
    for rows, columns in ((4, 2), (9, 2), (3, 5)):
        x = torch.arange(rows * columns, dtype=torch.float64).view(columns, rows).t().requires_grad_()
        expected = F.adaptive_avg_pool1d(x.flip(0), 2)
        found = compiled(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*[torch.autograd.grad(one.square().sum(), x)[0] for one in (found, expected)])


def test_a_size_that_inequalities_make_a_constant() -> None:
    """A variance of one column, and sums that have the size of this column."""
    moments = lambda x: (x.sum(0), x.var(1))  # noqa: E731
    compiled = stator.compile(moments, dynamic=True)
    for shape in ((5, 6), (0, 1), (0, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), moments(x))


OF_ONE_COLUMN: dict[str, Callable[[Any, Any], Any]] = {
    "pooled": lambda x, y: x + F.avg_pool1d(x, 2),
    "half": lambda x, y: x[:, : x.shape[1] // 2].exp() * y,
    "remainder": lambda x, y: x * x[:, : x.shape[1] % 4 - 2].exp(),
    "expanded": lambda x, y: x[:, : x.shape[1] // 2].expand(y.shape).exp() + y,
    "squeezed": lambda x, y: x[:, : x.shape[1] // 2].squeeze(1).exp() + y[:, 0],
    "of an equal size": lambda x, y: (x + y) * (y[:, : y.shape[1] // 2] + x[:, : x.shape[1] // 2]),
}


@pytest.mark.parametrize("name", OF_ONE_COLUMN)
def test_an_expression_that_a_fact_makes_one_broadcasts(name: str) -> None:
    """Half of three columns is one column, which broadcasts against three."""
    program = OF_ONE_COLUMN[name]
    compiled = stator.compile(program, dynamic=True)
    for rows, columns in ((2, 3), (5, 3), (4, 2)):
        x, y = (torch.randn(rows, columns, dtype=torch.float64, requires_grad=True) for _ in range(2))
        try:
            expected = program(x, y)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x, y)
            continue
        found = compiled(x, y)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(one.sin().sum(), (x, y), allow_unused=True) for one in (found, expected)]
        torch.testing.assert_close(*gradients, allow_subclasses=False)


def test_slices_added_to_a_tensor_without_elements() -> None:
    """Eager adds none, and does not look at the index."""

    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(x.shape[0] % 3, x.shape[1]).index_add(0, index, x)

    compiled = stator.compile(program, dynamic=True)
    for rows in (3, 6, 4):
        x, index = torch.randn(rows, 5), torch.zeros(rows, dtype=torch.int64)
        torch.testing.assert_close(compiled(x, index), program(x, index))


def test_gradients_of_a_variance_of_one_row() -> None:
    compiled = stator.compile(lambda x: x.var(0, keepdim=True) * 2, dynamic=True)
    for rows in (1, 5, 1):
        x = torch.randn(rows, 3, requires_grad=True)
        gradients = [torch.autograd.grad(one(x).sum(), x) for one in (compiled, lambda x: x.var(0, keepdim=True) * 2)]
        torch.testing.assert_close(*gradients, equal_nan=True)


def test_writes_through_no_copies_of_a_tensor() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        copies = x.expand(x.shape[0] // 2, *x.shape)
        copies[1:] += 1
        return copies

    compiled = stator.compile(program, dynamic=True)
    for rows in (1, 0):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.filterwarnings("error:stator")
def test_group_norm_over_symbolic_images_in_parts() -> None:
    compiled = stator.compile(lambda x: F.group_norm(x, 3), dynamic=True)
    for shape in ((2, 6, 40, 36), (3, 6, 33, 36), (1, 6, 41, 37), (2, 6, 3, 400), (2, 6, 2, 2)):
        x = torch.randn(shape).to(memory_format=torch.channels_last)
        torch.testing.assert_close(compiled(x), F.group_norm(x, 3))


@pytest.mark.parametrize("layout", (torch.contiguous_format, torch.channels_last))
@pytest.mark.filterwarnings("error:stator")
def test_group_norm_over_symbolic_channels(layout: torch.memory_format) -> None:
    """The number of channels of a group is an expression, by which lowering chooses its loops."""
    compiled = stator.compile(lambda x: F.group_norm(x, 3), dynamic=True)
    for channels in (6, 12, 27, 3):
        x = torch.randn(2, channels, 5, 4).to(memory_format=layout).requires_grad_()
        expected, found = F.group_norm(x, 3), compiled(x)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(one.sin().sum(), x)[0] for one in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
