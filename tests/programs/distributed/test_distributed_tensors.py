"""Distributed tensors on one process: every program is one graph; guards tell placements apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from tests.differential import Counts
from tests.programs.distributed.tensor_programs import PROGRAMS, check
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import stator


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(mesh: DeviceMesh, name: str, backend: str) -> None:
    check(name, mesh, backend)


def test_guards_tell_placements_apart(mesh: DeviceMesh) -> None:
    compiled = stator.compile(lambda x: x.sum(0).redistribute(placements=[Replicate()]).to_local(), fullgraph=True)
    counts = Counts()
    for placement in (Shard(0), Shard(1), Replicate(), Partial(), Shard(0), Partial("avg")):
        local = torch.randn(4, 4)
        found = compiled(DTensor.from_local(local, mesh, [placement]))
        torch.testing.assert_close(found, local.sum(0))
    assert counts.compilations == 5


def test_equal_placements_and_meshes_need_no_other_version(mesh: DeviceMesh) -> None:
    placements = [Shard(0)]
    compiled = stator.compile(lambda x: x.redistribute(placements=placements) * 2, fullgraph=True)
    counts = Counts()
    for _ in range(3):
        placements = [Shard(0)]
        x = distribute_tensor(torch.randn(4, 4), init_device_mesh("cpu", (1,)), [Shard(0)])
        torch.testing.assert_close(compiled(x).to_local(), x.to_local() * 2)
    assert counts.compilations == 1
    placements = [Replicate()]
    assert compiled(x).placements == (Replicate(),)
    assert counts.compilations == 2


def test_gradients_of_other_placements(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]).requires_grad_()
    result = stator.compile(lambda x: x * 3, fullgraph=True)(x)
    result.backward(DTensor.from_local(torch.ones(4, 4), mesh, [Partial()]))
    assert x.grad.placements == (Shard(0),)
    torch.testing.assert_close(x.grad.to_local(), torch.full((4, 4), 3.0))


def _shards_of_one_process(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return distribute_tensor(x, mesh, [Shard(0)]) * 2


def _compared_parts(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return DTensor.from_local(x, mesh, [Replicate()], run_check=True) * 2


@pytest.mark.parametrize(
    ("function", "why"), [(_shards_of_one_process, "sends the data of one process"), (_compared_parts, "run_check")]
)
def test_calls_that_talk_before_they_return_break_the_graph(mesh: DeviceMesh, function: object, why: str) -> None:
    x = torch.randn(4, 4)
    with pytest.raises(stator.Unsupported, match=why):
        stator.compile(function, fullgraph=True)(x, mesh)
    torch.testing.assert_close(stator.compile(function)(x, mesh).to_local(), x * 2)
