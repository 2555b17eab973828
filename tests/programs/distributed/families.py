"""Ways to train over several processes, and to compile the model. Runs as a script in each of two processes:

    families.py RANK FOLDER DEVICE FAMILY...

DEVICE is cpu (gloo) or cuda (NCCL, a GPU for each process). The script fails unless all ways of compiling train as
eager does, with both optimizers.
"""

from __future__ import annotations

import datetime
import faulthandler
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from tests.programs.distributed import tensor_programs
from tests.programs.distributed.tensor_programs import LanguageModel
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import stator
from stator.aot.partition import call_costs
from stator.base import counters

WORLD = 2
SECONDS = 180  # for all of a family
RANK, DEVICE = int(sys.argv[1]), torch.device(sys.argv[3])
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
WIDTH, WORDS = 8, 7
FAILURES = ("dynamo.failed_frames", "dynamo.internal_errors", "dynamo.failed_graphs")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * 2


class Averaging(Model):
    """Adds a collective of each kind to the model: one that autograd follows, one in place, one that returns."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        result = super().forward(words)
        mean = result.detach().mean(0)
        dist.all_reduce(mean)
        everywhere = [torch.empty_like(mean) for _ in range(WORLD)]
        dist.all_gather(everywhere, mean.tanh())
        return _SumOverRanks.apply(result) * 0.5 + mean.sigmoid() * everywhere[0]


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def sharded(model: Model, **options: object) -> Model:
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def half(model: Model) -> Model:
    return sharded(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def kept_unsharded(model: Model) -> Model:
    return sharded(model, reshard_after_forward=False)


def by_blocks(model: Model) -> Model:
    for at, block in enumerate(model.blocks):
        model.blocks[at] = stator.compile(block)
    return model


def by_layers(model: LanguageModel) -> LanguageModel:
    """Eager layers give and take results of collectives that still run."""
    for block in model.blocks:
        block.second, block.down = stator.compile(block.second), stator.compile(block.down)
    return model


def fsdp1(model: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=DEVICE)


def sequence_parallel(model: LanguageModel) -> LanguageModel:
    return tensor_programs.sequence_parallel(model, init_device_mesh(DEVICE.type, (WORLD,)))


def in_two_dimensions(model: LanguageModel) -> LanguageModel:
    """Layers are parallel along one dimension of the mesh, and their parameters sharded along the other."""
    mesh = init_device_mesh(DEVICE.type, (1, WORLD), mesh_dim_names=("data", "tensor"))
    tensor_programs.sequence_parallel(model, mesh["tensor"])
    return sharded(model, mesh=mesh["data"])


def tensor_parallel(model: Model) -> Model:
    mesh = init_device_mesh(DEVICE.type, (WORLD,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


Train = Callable[[Model], nn.Module]
# Each family: the eager model, and ways to compile it.
FAMILIES: dict[str, list[tuple[type[Model], Train, list[Train]]]] = {
    "ddp": [
        (
            Model,
            DistributedDataParallel,
            [
                lambda model: stator.compile(DistributedDataParallel(model)),
                lambda model: DistributedDataParallel(stator.compile(model)),
            ],
        )
    ],
    "fsdp1": [(Model, fsdp1, [lambda model: stator.compile(fsdp1(model)), lambda model: fsdp1(stator.compile(model))])],
    "fsdp2": [
        (
            Model,
            sharded,
            [
                lambda model: stator.compile(sharded(model)),
                lambda model: by_blocks(sharded(model)),
                lambda model: sharded(by_blocks(model)),
                lambda model: stator.compile(kept_unsharded(model)),
            ],
        ),
        (Model, half, [lambda model: by_blocks(half(model))]),
    ],
    "tensor_parallel": [
        (
            Model,
            tensor_parallel,
            [
                lambda model: stator.compile(tensor_parallel(model), fullgraph=True),
                lambda model: by_blocks(tensor_parallel(model)),
            ],
        ),
        (
            LanguageModel,
            sequence_parallel,
            [
                lambda model: stator.compile(sequence_parallel(model), fullgraph=True),
                lambda model: by_layers(sequence_parallel(model)),
            ],
        ),
    ],
    "two_dimensions": [(LanguageModel, in_two_dimensions, [lambda model: stator.compile(in_two_dimensions(model))])],
    "collectives": [(Averaging, lambda model: model, [stator.compile])],
}
SAME_DATA = ("tensor_parallel", "two_dimensions")  # all processes share each example
# one parameter at a time: lists of DTensors and tensors together are refused by eager
OPTIMIZERS: list[Callable[..., torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=False),
    lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
]


def trained(
    model: nn.Module, make_optimizer: Callable[..., torch.optim.Optimizer], seed: int
) -> Iterator[torch.Tensor]:
    """The loss and all gradients of three steps, then the parameters."""
    optimizer = make_optimizer(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    for at in range(3):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(at != 1)  # the second step keeps its gradients for the third
        words = torch.randint(0, WORDS, (4, 6), generator=generator).to(DEVICE)
        loss = F.cross_entropy(model(words).flatten(0, 1), words.roll(1, 1).flatten())
        loss.backward()
        yield loss.detach()
        yield from [whole(one.grad) for one in model.parameters() if one.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    yield from [whole(parameter.detach()) for parameter in model.parameters()]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


@contextmanager
def process_group(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group(
        BACKENDS[DEVICE.type], store=store, rank=RANK, world_size=WORLD, timeout=datetime.timedelta(seconds=SECONDS)
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def check(family: str) -> None:
    if family == "distributed_tensors":
        mesh = init_device_mesh(DEVICE.type, (WORLD,))
        for name in tensor_programs.PROGRAMS:
            tensor_programs.check(name, mesh)
        return
    seed = 0 if family in SAME_DATA else dist.get_rank()
    for kind, train, ways in FAMILIES[family]:
        for make_optimizer in OPTIMIZERS:
            torch.manual_seed(0)
            wanted = list(trained(train(kind().to(DEVICE)), make_optimizer, seed))
            for way in ways:
                torch.manual_seed(0)
                counters.counts.clear()
                found = list(trained(way(kind().to(DEVICE)), make_optimizer, seed))
                rounding = {"rtol": 2e-2, "atol": 2e-2} if train is half else {"rtol": 1e-4, "atol": 1e-5}
                torch.testing.assert_close(found, wanted, **rounding)
                failures = {name: counters.counts[name] for name in FAILURES if counters.counts[name]}
                assert not failures, failures
                assert counters.counts["compiled:backward"], "nothing was compiled"


if __name__ == "__main__":
    warnings.filterwarnings("error", "stator")
    torch.set_num_threads(1)
    call_costs.LITTLE_DATA = call_costs.MUCH_DATA = -1
    if DEVICE.type == "cuda":
        torch.cuda.set_device(RANK)
    for family in sys.argv[4:]:
        print(family, flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)  # a hang becomes a failure that shows where
        with process_group(Path(sys.argv[2]) / family):
            check(family)
