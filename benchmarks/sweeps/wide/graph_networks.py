"""Networks of PyTorch Geometric on random graphs and molecules."""

from __future__ import annotations

from typing import Any

import torch

from .family import Built, family

_NODES, _EDGES, _FEATURES = 1000, 5000, 32


def _graph() -> dict[str, Any]:
    return {"x": torch.randn(_NODES, _FEATURES), "edge_index": torch.randint(0, _NODES, (2, _EDGES))}


@family("torch_geometric")
def gcn() -> Built:
    from torch_geometric.nn import GCN

    return Built(GCN(_FEATURES, 64, 3, 10, dropout=0.5), _graph)


@family("torch_geometric")
def gat() -> Built:
    from torch_geometric.nn import GAT

    return Built(GAT(_FEATURES, 64, 2, 10, heads=4, dropout=0.5), _graph)


@family("torch_geometric")
def gin() -> Built:
    from torch_geometric.nn import GIN

    return Built(GIN(_FEATURES, 64, 3, 10, norm="batch_norm"), _graph)


@family("torch_geometric")
def graph_sage_with_pooling() -> Built:
    from torch_geometric.nn import GraphSAGE, global_mean_pool

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = GraphSAGE(_FEATURES, 64, 3)
            self.head = torch.nn.Linear(64, 5)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            return self.head(global_mean_pool(self.body(x, edge_index), batch, 20))

    return Built(Classifier(), lambda: {**_graph(), "batch": torch.arange(20).repeat_interleave(_NODES // 20)})


@family("torch_geometric")
def pna() -> Built:
    from torch_geometric.nn import PNA

    degrees = torch.bincount(torch.bincount(torch.randint(0, _NODES, (_EDGES,)), minlength=_NODES))
    model = PNA(
        _FEATURES,
        32,
        2,
        10,
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification"],
        deg=degrees,
    )
    return Built(model, _graph)


@family("torch_geometric")
def graph_transformer() -> Built:
    from torch_geometric.nn import TransformerConv

    class Transformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = TransformerConv(_FEATURES, 16, heads=4, edge_dim=8, beta=True)
            self.second = TransformerConv(64, 16, heads=4, edge_dim=8, concat=False)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)

    return Built(Transformer(), lambda: {**_graph(), "edge_attr": torch.randn(_EDGES, 8)})


@family("torch_geometric")
def relational_gcn() -> Built:
    from torch_geometric.nn import RGCNConv

    class Relational(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = RGCNConv(_FEATURES, 32, 4, num_bases=3)
            self.second = RGCNConv(32, 10, 4, num_bases=3)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_type: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)

    return Built(Relational(), lambda: {**_graph(), "edge_type": torch.randint(0, 4, (_EDGES,))})


@family("torch_geometric")
def schnet() -> Built:
    """Every pair of atoms of a molecule is an edge, because neighbours within a radius need another package."""
    from torch_geometric.nn import SchNet

    def pairs(positions: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        near = (batch[:, None] == batch[None]) & ~torch.eye(len(batch), dtype=torch.bool)
        edges = near.nonzero().t()
        return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)

    model = SchNet(hidden_channels=32, num_filters=32, num_interactions=3, num_gaussians=20, interaction_graph=pairs)
    return Built(
        model,
        lambda: {
            "z": torch.randint(1, 10, (60,)),
            "pos": 3 * torch.randn(60, 3),
            "batch": torch.arange(4).repeat_interleave(15),
        },
    )


@family("torch_geometric")
def point_network() -> Built:
    from torch_geometric.nn import MLP, EdgeConv, global_max_pool

    class Points(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = EdgeConv(MLP([6, 32, 32])), EdgeConv(MLP([64, 64]))
            self.head = MLP([96, 64, 10], dropout=0.5)

        def forward(self, pos: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            near = self.first(pos, edge_index)
            far = self.second(near, edge_index)
            return self.head(global_max_pool(torch.cat([near, far], 1), batch, 4))

    return Built(
        Points(),
        lambda: {
            "pos": torch.randn(512, 3),
            "edge_index": torch.randint(0, 512, (2, 4096)),
            "batch": torch.arange(4).repeat_interleave(128),
        },
    )
