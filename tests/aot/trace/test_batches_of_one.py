"""A training step compiled for a batch of one row serves batches of other sizes, and the other way around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.varying_sizes import check_sizes

import stator

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing

WEIGHT = torch.randn(4, 3)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def of_classes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ WEIGHT, y.detach().argmax(1) % 3)


def of_normalized_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (F.layer_norm(x, (4,)).relu() - y.mean(0)).square().sum()


def of_one_number_a_row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (
        F.mse_loss((x @ WEIGHT[:, :1]).squeeze(-1), y.sum(1))
        + F.huber_loss(x, y)
        + F.l1_loss(x, y.cos(), reduction="sum")
    )


def of_expanded_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first, second = torch.broadcast_tensors(x[:, None], y[:, :, None] * torch.ones(4))
    return F.smooth_l1_loss(first * second, second) + (x * y.sum(1, keepdim=True)).exp().mean()


def of_columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    similar = F.normalize(x, dim=1) @ F.normalize(y, dim=1).t()
    own = torch.arange(x.shape[0])
    return F.cross_entropy(similar, own) + F.cross_entropy(similar.t(), own)


def of_tokens(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    tokens = x[:, None] * y
    return F.cross_entropy(tokens.transpose(1, 2), tokens.detach().argmax(2)) + tokens.transpose(0, 1).softmax(0).std()


def attention_by_hand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    heads = (x[:, :, None] * y[:, None]).view(x.shape[0], 4, 2, 2).transpose(1, 2).reshape(-1, 4, 2)
    weights = (heads @ heads.mT).softmax(-1)
    joined = (weights @ heads).view(x.shape[0], 2, 4, 2).transpose(1, 2).reshape(x.shape[0], 4, 4)
    return F.linear(joined, WEIGHT.t()).square().sum()


def of_hardest_triplets(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    labels = y.detach().argmax(1)
    alike, distances = labels[:, None] == labels, torch.cdist(x, x)
    farthest, nearest = (distances * alike).max(1).values, (distances + 1e3 * alike).min(1).values
    return F.relu(farthest - nearest + 1.0).mean() + torch.cdist(x, y).sum()


def of_masked_maxima(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    tokens = (x[:, None] * torch.ones(3, 1)).masked_fill((y.detach() > 0.5)[:, :3, None], -1e4)
    return torch.cat([tokens.amax(1), tokens.amin(1)], -1).square().sum()


NORM = torch.nn.InstanceNorm1d(4, affine=True)


def of_repeated_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    tokens = (x[:, :, None] * y[:, None]).cumsum(0)
    repeated = tokens.repeat(x.shape[0], 2, 1) * WEIGHT[:, 0]
    return repeated.square().mean() + (NORM(tokens * 9) * WEIGHT[:, 1]).sin().sum()  # type: ignore[no-any-return]


LAYER = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


def of_encoder_layer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return LAYER(x[:, None] * y[None]).square().mean()  # type: ignore[no-any-return]


LSTM = torch.nn.LSTM(4, 3, batch_first=True)


def of_recurrent_layer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(x.shape[0])
    return LSTM(x[:, None] * y)[0][steps, x.detach().argmax(1) % x.shape[0]].square().sum()  # type: ignore[no-any-return]


def pair(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 4, requires_grad=True), torch.randn(rows, 4, requires_grad=True)


@pytest.mark.parametrize("sizes", [(8, 1, 5, 3), (1, 8, 1, 3)])
@pytest.mark.parametrize(
    "loss",
    [
        of_classes,
        of_normalized_rows,
        of_one_number_a_row,
        of_expanded_rows,
        of_columns,
        of_tokens,
        of_hardest_triplets,
        of_masked_maxima,
        of_repeated_rows,
        attention_by_hand,
        of_encoder_layer,
        of_recurrent_layer,
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_batch_of_one_row_trains_as_others_do(loss: Loss, sizes: tuple[int, ...], backend: str) -> None:
    check_sizes(loss, pair, sizes=sizes, backend=backend)


class Wide(torch.autograd.Function):
    """Its gradient for one row of `x` has as many rows as `y`; autograd sums them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x.sum(0) * y.sum(0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * y.sum(0) * torch.ones_like(y), gradient * x.sum(0) * torch.ones_like(y)


ROWS = ((8, 8), (1, 5), (1, 1), (1, 7), (3, 3))


@pytest.mark.filterwarnings("ignore:stator.*compiled for each size anew")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_gradient_of_more_rows_is_summed(dynamic: bool | None) -> None:
    def apply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return Wide.apply(x, y).sin().sum()  # type: ignore[no-any-return]

    compiled = stator.compile(apply, dynamic=dynamic)
    for rows, others in ROWS:
        given = torch.randn(rows, 4, requires_grad=True), torch.randn(others, 4, requires_grad=True)
        expected = torch.autograd.grad(apply(*given), given)
        for found, wanted in zip(torch.autograd.grad(compiled(*given), given), expected, strict=True):
            torch.testing.assert_close(found, wanted)
