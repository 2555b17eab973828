"""Programs over distributed tensors. Each is one graph, with eager's results and gradients on every process.

`check(name)` runs a program of `PROGRAMS` inside of a process group; the tests do so on one process and on two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.distributed.tensor as distributed
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

import stator
from stator.base import counters

Program = Callable[[DeviceMesh], tuple[Callable[..., Any], Sequence[Any]]]
PROGRAMS: dict[str, Program] = {}
FAILURES = ("dynamo.failed_frames", "dynamo.internal_errors", "dynamo.failed_graphs")
WIDTH, WORDS = 8, 8


def program(make: Program) -> Program:
    PROGRAMS[make.__name__] = make
    return make


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    """Equal on all processes and devices."""
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return made.to(torch.get_default_device())


def sharded(mesh: DeviceMesh, *shape: int, seed: int = 0, grad: bool = True, by: Placement | None = None) -> DTensor:
    made = distribute_tensor(values(*shape, seed=seed), mesh, [by or Shard(0)] + [Replicate()] * (mesh.ndim - 1))
    return made.requires_grad_(grad)


# ---- operators ----


@program
def pointwise(mesh: DeviceMesh) -> Any:
    return lambda x, y: (x + y).sin() * 2, [sharded(mesh, 8, 4), sharded(mesh, 8, 4, seed=1)]


@program
def other_placements(mesh: DeviceMesh) -> Any:
    whole = sharded(mesh, 8, 4, seed=1, by=Replicate())
    return lambda x, y: ((x * y).sum(), (x.exp() + y).mean(1)), [sharded(mesh, 8, 4), whole]


@program
def product_that_reduces(mesh: DeviceMesh) -> Any:
    return lambda x, y: (x @ y).relu(), [sharded(mesh, 8, 4, by=Shard(1)), sharded(mesh, 4, 6, seed=1)]


@program
def shapes(mesh: DeviceMesh) -> Any:
    def function(x: DTensor) -> Any:
        y = x.view(x.shape[0], 2, -1).transpose(1, 2).reshape(x.size(0), -1) * x.shape[0]
        return y, y.t(), torch.cat([part.sin() for part in y.chunk(2, 1)], 1), torch.zeros_like(x) + x

    return function, [sharded(mesh, 8, 4)]


@program
def losses(mesh: DeviceMesh) -> Any:
    def function(x: DTensor, labels: DTensor, weight: DTensor) -> Any:
        y = F.layer_norm(x, (4,), weight, weight)
        return F.cross_entropy(y, labels), F.softmax(y, 1)

    labels = distribute_tensor(torch.arange(8) % 4, mesh, [Shard(0)])
    return function, [sharded(mesh, 8, 4), labels, sharded(mesh, 4, by=Replicate())]


@program
def written(mesh: DeviceMesh) -> Any:
    def function(x: DTensor, y: DTensor) -> Any:
        x.mul_(2)
        with torch.no_grad():
            y.add_(x)
        return x + 1, (y * 3).add_(1).sin()

    return function, [sharded(mesh, 8, 4, grad=False), sharded(mesh, 8, 4, seed=1)]


@program
def rows_of_an_embedding(mesh: DeviceMesh) -> Any:
    function = lambda words, rows: F.embedding(words, rows).redistribute(placements=[Replicate()]).to_local()  # noqa: E731
    words = distribute_tensor(torch.arange(8) % 4, mesh, [Replicate()])
    return function, [words, sharded(mesh, 4, 6)]


# ---- conversions ----


@program
def from_parts(mesh: DeviceMesh) -> Any:
    def function(x: torch.Tensor) -> Any:
        y = DTensor.from_local(x.sin(), mesh, [Shard(0)])
        z = DTensor.from_local(x.sin(), mesh, [Partial()]).redistribute(mesh, [Replicate()])
        return y.cos(), z.to_local().cos()

    return function, [values(4, 4).requires_grad_()]


@program
def to_parts(mesh: DeviceMesh) -> Any:
    def function(x: DTensor, y: DTensor) -> Any:
        with torch.no_grad():
            own = x.to_local()
        return x.to_local().cos(), x.full_tensor().cos(), y.to_local(grad_placements=[Partial()]) * 2, own * 2, x

    return function, [sharded(mesh, 8, 4), sharded(mesh, 8, 4, by=Replicate())]


@program
def redistributed(mesh: DeviceMesh) -> Any:
    def function(x: DTensor) -> Any:
        whole = x.redistribute(mesh, [Replicate()])
        columns = x.redistribute(placements=[Shard(-1)])
        same = x.sin().redistribute(x.device_mesh, x.placements)
        late = x.redistribute(placements=[Replicate()], async_op=True).to_local() * 2
        return whole.cos(), columns.cos(), same.cos(), late

    return function, [sharded(mesh, 8, 4)]


@program
def uneven_parts(mesh: DeviceMesh) -> Any:
    return lambda x: x.sin().redistribute(placements=[Replicate()]).to_local() * 2, [sharded(mesh, 7, 4)]


@program
def made_inside(mesh: DeviceMesh) -> Any:
    def function(x: torch.Tensor, y: DTensor) -> Any:
        ones = distributed.ones(8, 4, device_mesh=mesh, placements=[Shard(0)])
        return distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None) * 2 + ones, ones + y

    return function, [values(8, 4), sharded(mesh, 8, 4)]


@program
def on_parts(mesh: DeviceMesh) -> Any:
    product = local_map(
        lambda x, y: x @ y, out_placements=[Shard(0)], in_placements=([Shard(0)], [Replicate()]), device_mesh=mesh
    )
    return lambda x, y: product(x, y) * 2, [sharded(mesh, 8, 4), sharded(mesh, 4, 6, by=Replicate())]


# ---- facts ----


@program
def facts(mesh: DeviceMesh) -> Any:
    def function(x: DTensor, y: Any) -> Any:
        z = x * 2
        rank = mesh.get_rank() + z.device_mesh.get_local_rank() + dist.get_world_size() + mesh.get_group().size()
        if z.placements == (Shard(0),) and isinstance(z.placements[0], Shard) and z.placements[0].is_shard(0):
            z = z.sin() * z.placements[0].dim + z.device_mesh.ndim
        if isinstance(y, DTensor):
            return z
        return z.full_tensor() + y * rank, z._spec.num_shards, str(x.placements[0]), x.to_local().shape

    return function, [sharded(mesh, 8, 4), values(8, 4)]


@program
def two_dimensions(mesh: DeviceMesh) -> Any:
    plane = init_device_mesh(mesh.device_type, (mesh.size(), 1), mesh_dim_names=("rows", "columns"))

    def function(x: torch.Tensor, y: DTensor) -> Any:
        part = DTensor.from_local(x, plane["rows"], [Shard(0)]) * plane["rows"].size()
        return part, (y @ y.t()).redistribute(placements=[Replicate(), Replicate()])

    return function, [values(4, 4).requires_grad_(), sharded(plane, 8, 4)]


@program
def functional_collectives(mesh: DeviceMesh) -> Any:
    def function(x: torch.Tensor) -> Any:
        total = collectives.all_reduce(x.sin(), "sum", mesh)
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(x + 1, mesh.size(), mesh.get_group().group_name)
        torch.ops._c10d_functional.all_reduce(x * 3, "sum", mesh.get_group().group_name)  # nobody waits for it
        y = (x * 2).exp() + (x * 4).cos()
        return total.cos() + y, torch.ops._c10d_functional.wait_tensor(gathered) * 2

    return function, [values(64)]


# ---- modules ----


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = [layer(x).view(batch, length, -1, 2).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        found = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.silu(self.up(self.second(x))))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Layer() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def sequence_parallel(model: LanguageModel, mesh: DeviceMesh) -> LanguageModel:
    """Activations between the parallel layers are sharded by words."""
    words = Shard(1)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=words),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=words, output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    for block in model.blocks:
        plan = {
            "first": SequenceParallel(),
            "second": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(words,), desired_input_layouts=(Replicate(),)),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=words),
            "up": ColwiseParallel(input_layouts=words),
            "down": RowwiseParallel(output_layouts=words),
        }
        parallelize_module(block, mesh, plan)
    return model


@program
def distributed_parameters(mesh: DeviceMesh) -> Any:
    torch.manual_seed(0)
    model = distribute_module(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), mesh)
    return model, [sharded(mesh, 8, 8)]


@program
def checkpointed(mesh: DeviceMesh) -> Any:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    parallelize_module(layers, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.layers, x, use_reentrant=False)  # type: ignore[no-any-return]

    return Model(), [values(4, 8).requires_grad_()]


@program
def optimizer_steps(mesh: DeviceMesh) -> Any:
    parameters = [nn.Parameter(sharded(mesh, 8, 4)), nn.Parameter(sharded(mesh, 4, 4, by=Replicate()))]
    for at, one in enumerate(parameters):
        one.grad = distribute_tensor(values(*one.shape, seed=at), mesh, one.placements)
    optimizers = [torch.optim.SGD(parameters, 0.1, momentum=0.9), torch.optim.AdamW(parameters, 0.1)]

    def function() -> Any:
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in optimizers:
            optimizer.step()
        return norm, [one.detach().clone() for one in parameters]

    return function, []


# ---- comparison with eager ----


def check(name: str, mesh: DeviceMesh, backend: str = "inductor") -> None:
    """Fail unless a program, compiled as one graph, gives eager's results and gradients in two calls."""
    with torch.device(mesh.device_type):
        ways = [PROGRAMS[name](mesh) for _ in range(2)]
    expected = _observed(ways[0], lambda function: function)
    counters.counts.clear()
    found = _observed(ways[1], lambda function: stator.compile(function, backend=backend, fullgraph=True))
    _compare(found, expected, name)
    failures = {kind: counters.counts[kind] for kind in FAILURES if counters.counts[kind]}
    assert not failures, (name, failures)


def _observed(made: Any, way: Callable[[Any], Any]) -> list[Any]:
    function, arguments = made
    called = way(function)
    module = list(function.parameters()) if isinstance(function, nn.Module) else []
    seen: list[Any] = []
    for _ in range(2):  # the second call adds to the gradients
        result = called(*arguments)
        seen.append(_parts(result))
        results = result if isinstance(result, tuple) else (result,)
        # the gradients of `x` and of views of it are as they should be, one after the other
        wholes = [one.full_tensor() if isinstance(one, DTensor) else one for one in results]
        followed = [one.sin().sum() for one in wholes if isinstance(one, torch.Tensor) and one.requires_grad]
        if followed:
            sum(followed).backward()  # type: ignore[union-attr]
        tensors = [one for one in (*arguments, *module) if isinstance(one, torch.Tensor)]
        seen.append(_parts([(one, one.grad) for one in tensors]))
    return seen


def _parts(value: Any) -> Any:
    """Distributed tensors as what they are made of, all tensors as copies."""
    if isinstance(value, DTensor):
        return value.placements, value.shape, value.stride(), value.requires_grad, _parts(value.to_local())
    if isinstance(value, torch.Tensor):
        return (value.wait() if isinstance(value, collectives.AsyncCollectiveTensor) else value).detach().clone()
    return type(value)(map(_parts, value)) if type(value) in (tuple, list) else value


def _compare(found: Any, expected: Any, path: str) -> None:
    assert type(found) is type(expected), path
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{path}: {text}")
    elif type(expected) in (tuple, list):
        assert len(found) == len(expected), path
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            _compare(one, other, f"{path}[{at}]")
    else:
        assert found == expected, path
