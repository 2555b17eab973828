"""Networks on graphs whose numbers of nodes and edges change: by hand with scatters, and of PyTorch Geometric."""

from __future__ import annotations

import importlib.util

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..program import Inputs, program

_FEATURES = 16
# nodes, edges, graphs in the batch
_SIZES = ((300, 1500, 8), (257, 1111, 8), (512, 3000, 16), (100, 420, 5), (800, 2000, 8))
_FEW = ((20, 50, 3), (31, 44, 3), (17, 90, 4), (40, 61, 2))


def _graphs(nodes: int, edges: int, graphs: int) -> Inputs:
    batch = torch.randint(0, graphs, (nodes,)).sort().values
    batch[-1] = graphs - 1
    return {"x": torch.randn(nodes, _FEATURES), "edges": torch.randint(0, nodes, (2, edges)), "batch": batch}


class Convolution(nn.Module):
    """A graph convolution with self loops and symmetric normalisation."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Linear(inside, outside)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.weight(x)
        own = torch.arange(x.shape[0], device=x.device)
        source, target = torch.cat([edges[0], own]), torch.cat([edges[1], own])
        degree = torch.zeros(x.shape[0], device=x.device).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        scale = degree.rsqrt()
        messages = x[source] * (scale[source] * scale[target])[:, None]
        return torch.zeros_like(x).index_add_(0, target, messages)


class GCN(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Convolution(_FEATURES, width), Convolution(width, width), Convolution(width, 7)])

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x, edges).relu()
        return self.layers[-1](x, edges)


class AttentionLayer(nn.Module):
    """Attention of each node over its incoming edges, by a softmax in three scatters."""

    def __init__(self, inside: int, outside: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Linear(inside, outside)
        self.source, self.target = (nn.Parameter(torch.randn(heads, outside // heads) / 4) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        nodes = x.shape[0]
        source, target = edges
        x = self.weight(x).view(nodes, self.heads, -1)
        score = F.leaky_relu((x * self.source).sum(-1)[source] + (x * self.target).sum(-1)[target], 0.2)
        index = target[:, None].expand_as(score)
        most = torch.full((nodes, self.heads), -1e9).scatter_reduce(0, index, score.detach(), "amax")
        weight = (score - most[target]).exp()
        total = torch.zeros(nodes, self.heads).scatter_add(0, index, weight)
        weight = weight / total[target].clamp(min=1e-9)
        return torch.zeros_like(x).index_add(0, target, x[source] * weight[..., None]).flatten(1)


class GAT(nn.Module):
    """Pools each graph's nodes by their mean; the number of graphs is read from the data."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = AttentionLayer(_FEATURES, width), AttentionLayer(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        x = self.second(self.first(x, edges).relu(), edges)
        graphs = int(batch.max()) + 1
        total = x.new_zeros(graphs, x.shape[1]).index_add(0, batch, x)
        count = torch.bincount(batch, minlength=graphs)
        return self.head(total / count.clamp(min=1)[:, None])


@program(inputs=_graphs, sizes=_SIZES, few=_FEW)
def gcn() -> nn.Module:
    return GCN()


@program(inputs=_graphs, sizes=_SIZES, few=_FEW)
def gat_with_pooling() -> nn.Module:
    return GAT()


if importlib.util.find_spec("torch_geometric"):

    @program(inputs=_graphs, sizes=_SIZES, few=_FEW)
    def geometric_sage() -> nn.Module:
        from torch_geometric.nn import GraphSAGE, global_mean_pool

        class Classifier(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = GraphSAGE(_FEATURES, 32, 2), nn.Linear(32, 5)

            def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
                return self.head(global_mean_pool(self.body(x, edges), batch))

        return Classifier()

    @program(inputs=_graphs, sizes=_SIZES, few=_FEW)
    def geometric_gat() -> nn.Module:
        from torch_geometric.nn import GAT as Body

        class Nodes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = Body(_FEATURES, 32, 2, 7, heads=4)

            def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
                return self.body(x, edges)

        return Nodes()
