"""Programs in which data chooses rows: a mixture of experts, packed tokens, ragged and repeated ids."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..program import Inputs, program


class Mixture(nn.Module):
    """Each token goes to its two best experts; each expert takes as many rows as chose it."""

    def __init__(self, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(tokens).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out.index_add_(0, rows, expert(tokens[rows]) * weights[rows, place, None])
        return out.view_as(x)


@program(
    inputs=lambda batch, length: {"x": torch.randn(batch, length, 64)},
    sizes=((4, 32), (4, 50), (2, 100), (8, 64), (1, 77)),
    few=((2, 9), (3, 7), (4, 12), (2, 21)),
)
def mixture_of_experts() -> nn.Module:
    return Mixture()


class Packed(nn.Module):
    """Works on tokens that are no padding only, and puts the result back into the padded batch."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width, padding_idx=0)
        self.body = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, width))

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids != 0
        x = self.embedding(ids)
        packed = x[mask]
        return x.masked_scatter(mask[..., None], packed + self.body(packed)).sum(1)


def _padded_ids(batch: int, length: int) -> Inputs:
    mask = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
    return {"ids": torch.randint(1, 100, (batch, length)) * mask}


@program(
    inputs=_padded_ids,
    sizes=((8, 64), (8, 50), (4, 100), (16, 33), (8, 90)),
    few=((3, 9), (4, 7), (2, 12), (5, 21)),
)
def packed_tokens() -> nn.Module:
    return Packed()


class Repeated(nn.Module):
    """Computes each distinct id once; counts weigh them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, width)
        self.body = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, ids: Tensor) -> Tensor:
        distinct, inverse, counts = torch.unique(ids, return_inverse=True, return_counts=True)
        rows = self.body(self.embedding(distinct)) / counts[:, None].sqrt()
        return rows[inverse].tanh()


@program(
    inputs=lambda batch, length: {"ids": torch.randint(0, 200, (batch, length))},
    sizes=((8, 64), (8, 50), (4, 100), (16, 33), (8, 90)),
    few=((3, 9), (4, 7), (2, 12), (5, 21)),
)
def distinct_ids() -> nn.Module:
    return Repeated()


class Ragged(nn.Module):
    """Bags of ids of different lengths: a library's bag, and means by segments."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(500, width, mode="sum")
        self.embedding = nn.Embedding(500, width)
        self.head = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        bags = lengths.shape[0]
        offsets = lengths.cumsum(0) - lengths
        segment = torch.repeat_interleave(torch.arange(bags), lengths, output_size=ids.shape[0])
        rows = self.embedding(ids)
        means = rows.new_zeros(bags, rows.shape[1]).index_add(0, segment, rows) / lengths.clamp(min=1)[:, None]
        return self.head(torch.cat([self.bags(ids, offsets), means], 1))


def _ragged(bags: int, most: int) -> Inputs:
    lengths = torch.randint(0, most + 1, (bags,))
    lengths[0] = most
    return {"ids": torch.randint(0, 500, (int(lengths.sum()),)), "lengths": lengths}


@program(
    inputs=_ragged,
    sizes=((32, 10), (32, 7), (64, 12), (20, 40), (128, 5)),
    few=((5, 4), (5, 6), (7, 5), (9, 3)),
)
def ragged_embeddings() -> nn.Module:
    return Ragged()


class Recommender(nn.Module):
    """Embeddings of categories, their pairwise products with dense features, and a head."""

    def __init__(self, fields: int = 6, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100, width) for _ in range(fields))
        self.dense = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (fields + 1) * fields // 2
        self.head = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, categories: Tensor, clicked: Tensor) -> Tensor:
        base = self.dense(dense)
        vectors = torch.stack([base, *(table(categories[:, at]) for at, table in enumerate(self.tables))], 1)
        products = vectors @ vectors.transpose(1, 2)
        row, column = torch.tril_indices(vectors.shape[1], vectors.shape[1], -1)
        logit = self.head(torch.cat([base, products[:, row, column]], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logit, clicked)


def _visits(batch: int) -> Inputs:
    return {
        "dense": torch.randn(batch, 13),
        "categories": torch.randint(0, 100, (batch, 6)),
        "clicked": torch.randint(0, 2, (batch,)).float(),
    }


@program(inputs=_visits, sizes=((128,), (100,), (256,), (333,), (64,)), few=((8,), (5,), (13,), (20,)))
def recommender() -> nn.Module:
    return Recommender()
