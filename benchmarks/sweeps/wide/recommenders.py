"""Recommenders written by hand: embeddings of many fields, bags of items, histories."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .family import Built, family

_BATCH, _ITEMS = 256, 2000


def _layers(*widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


@family("plain")
def dlrm() -> Built:
    class Dlrm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(_ITEMS, 16, mode="sum") for _ in range(8))
            self.bottom, self.top = _layers(13, 64, 16), _layers(16 + 36, 64, 1)
            self.register_buffer("pairs", torch.tril_indices(9, 9, -1), persistent=False)

        def forward(self, dense: Tensor, items: Tensor, offsets: Tensor) -> Tensor:
            numbers = self.bottom(dense)
            fields = [bag(items[index], offsets) for index, bag in enumerate(self.bags)]
            vectors = torch.stack([numbers, *fields], 1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
            return torch.sigmoid(self.top(torch.cat([numbers, products], 1)))

    return Built(
        Dlrm(),
        lambda: {
            "dense": torch.randn(_BATCH, 13),
            "items": torch.randint(0, _ITEMS, (8, 4 * _BATCH)),
            "offsets": torch.arange(0, 4 * _BATCH, 4),
        },
    )


def _fields() -> dict[str, Any]:
    return {"fields": torch.randint(0, _ITEMS // 10, (_BATCH, 10)), "label": torch.randint(0, 2, (_BATCH,)).float()}


@family("plain")
def deep_fm() -> Built:
    class DeepFM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.factors = nn.Embedding(_ITEMS, 1), nn.Embedding(_ITEMS, 16)
            self.deep = nn.Sequential(
                nn.Linear(160, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)
            )
            self.register_buffer("offsets", torch.arange(10) * (_ITEMS // 10), persistent=False)

        def forward(self, fields: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            ids = fields + self.offsets
            factors = self.factors(ids)
            pairs = 0.5 * (factors.sum(1) ** 2 - (factors**2).sum(1)).sum(1)
            logits = self.linear(ids).sum((1, 2)) + pairs + self.deep(factors.flatten(1))[:, 0]
            return F.binary_cross_entropy_with_logits(logits, label), logits.sigmoid()

    return Built(DeepFM(), _fields)


@family("plain")
def deep_and_cross() -> Built:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(_ITEMS // 10, 8) for _ in range(10))
            self.cross = nn.ModuleList(nn.Linear(80, 80) for _ in range(3))
            self.head = _layers(160, 64, 1)

        def forward(self, fields: Tensor, label: Tensor) -> Tensor:
            start = crossed = torch.cat([table(fields[:, index]) for index, table in enumerate(self.tables)], 1)
            for layer in self.cross:
                crossed = start * layer(crossed) + crossed
            return F.binary_cross_entropy_with_logits(self.head(torch.cat([start, crossed], 1))[:, 0], label)

    return Built(Cross(), _fields)


@family("plain")
def two_towers() -> Built:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(_ITEMS, 32), nn.Embedding(_ITEMS, 32)
            self.user_tower, self.item_tower = _layers(32, 64, 32), _layers(32, 64, 32)

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            users = F.normalize(self.user_tower(self.users(user)), dim=-1)
            items = F.normalize(self.item_tower(self.items(item)), dim=-1)
            return F.cross_entropy(users @ items.T / 0.07, torch.arange(len(user)))

    return Built(Towers(), lambda: {name: torch.randint(0, _ITEMS, (_BATCH,)) for name in ("user", "item")})


@family("plain")
def neural_filtering() -> Built:
    class Filtering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(_ITEMS, 16) for _ in range(4))
            self.layers, self.head = _layers(32, 32, 16), nn.Linear(32, 1)

        def forward(self, user: Tensor, item: Tensor) -> Tensor:
            product = self.tables[0](user) * self.tables[1](item)
            deep = self.layers(torch.cat([self.tables[2](user), self.tables[3](item)], -1))
            return torch.sigmoid(self.head(torch.cat([product, deep], -1)))[:, 0]

    return Built(Filtering(), lambda: {name: torch.randint(0, _ITEMS, (_BATCH,)) for name in ("user", "item")})


@family("plain")
def attentive_history() -> Built:
    """Self-attention over each user's history with a padding mask, and one sampled negative for each position."""

    class History(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.places = nn.Embedding(_ITEMS, 64, padding_idx=0), nn.Embedding(32, 64)
            layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, history: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
            length = history.size(1)
            causal = torch.ones(length, length, dtype=torch.bool).triu(1)
            output = self.layers(self.items(history) + self.places(torch.arange(length)), causal)
            margin = (output * (self.items(positive) - self.items(negative))).sum(-1)
            return -(F.logsigmoid(margin) * (history != 0)).mean()

    names = ("history", "positive", "negative")
    return Built(History(), lambda: {name: torch.randint(0, _ITEMS, (16, 32)) for name in names})
