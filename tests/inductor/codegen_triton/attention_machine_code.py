"""Runs in a process of its own: attention of transformers as one kernel, on each tile that a rule or timing may choose,
through Triton's compiler to machine code. Argument: "all" tiles or "few". Prints failures, then "done"."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_compiler import failures, ptx_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_sizes import symbolic_fakes

from stator.graph.tracing.tracer import trace
from stator.inductor import devices
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.codegen.triton.tiled.attention_tiles import TILES, TILES_OF_FLOAT32
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule import schedule
from stator.inductor.schedule.attention import fuse_attention
from stator.inductor.schedule.groups import AttentionGroup, AttentionTile
from stator.shapes.environment import Environment


def half(*sizes: int) -> torch.Tensor:
    """Memory is never touched: only sizes matter."""
    return torch.empty(sizes, dtype=torch.bfloat16)


def heads(*sizes: int) -> torch.Tensor:
    return half(*sizes).transpose(1, 2)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return (torch.softmax(q @ k.transpose(-1, -2) * 0.125 + bias, -1) @ v).transpose(1, 2).contiguous()


def capped(q: Any, k: Any, v: Any, mask: Any) -> Any:
    k, v = [one[:, :, None].expand(-1, -1, 4, -1, -1).flatten(1, 2) for one in (k, v)]
    scores = torch.where(mask, torch.tanh(q @ k.transpose(-1, -2) / 50) * 50, -torch.inf)
    return torch.softmax(scores.float(), -1).to(q.dtype) @ v


def gradients(q: Any, k: Any, v: Any, g: Any, bias: Any) -> Any:
    return torch.ops.stator.attention_gradients(g, q, k, v, bias, True, False, 0.125, True, True)


def scaled(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax((q * 0.2) @ k.transpose(-1, -2), -1) @ v


# By name: a function and its tensors
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "keys hidden": (biased, [*[heads(2, 128, 12, 64) for _ in range(3)], half(2, 1, 1, 128)]),
    "a bias of heads": (biased, [*[heads(1, 197, 8, 64) for _ in range(3)], half(8, 197, 197)]),
    "windows": (biased, [*[heads(64, 49, 3, 32) for _ in range(3)], half(3, 49, 49)]),
    "narrow heads": (scaled, [heads(2, 100, 4, 24) for _ in range(3)]),
    "float32": (biased, [*[torch.empty(2, 128, 4, 64).transpose(1, 2) for _ in range(3)], torch.empty(4, 128, 128)]),
    "gradients": (gradients, [*[heads(64, 49, 3, 32) for _ in range(4)], half(64, 3, 49, 49)]),
    "gradients of few heads of keys": (
        gradients,
        [heads(2, 128, 8, 64), *[heads(2, 128, 2, 64) for _ in range(2)], heads(2, 128, 8, 64), half(2, 8, 128, 128)],
    ),
    "few heads of keys": (
        capped,
        [heads(1, 1024, 16, 128), *[heads(1, 1024, 4, 128) for _ in range(2)], torch.empty(1024, 1024) > 0],
    ),
}


def kernels(name: str) -> Iterator[tuple[Any, KernelSource]]:
    function, tensors = CASES[name]
    fakes = symbolic_fakes(tensors, [()] * len(tensors), Environment())
    graph, sizes = with_expressions(trace(function, fakes, keep=can_lower).graph)
    lowered = lower(run_passes(graph, False), False, sizes)
    found: list[AttentionGroup] = []

    def choose(group: AttentionGroup) -> Any:
        found.append(group)

    fuse_attention(schedule(lowered), lowered, choose)
    if len(found) != 1:
        print(f"FAILED {name}: {len(found)} attentions")
    for group in found:
        for tile in _tiles(group):
            made = replace(group, attention=replace(group.attention, tile=tile))
            yield tile, print_kernel(made, lowered.buffers, knowledge=sizes)


def _tiles(group: AttentionGroup) -> tuple[AttentionTile, ...]:
    if group.attention.tangent is not None:
        return (AttentionTile(64, 64, 4, 1),) if group.attention.rows <= 64 else (AttentionTile(128, 128, 8, 1),)
    return TILES_OF_FLOAT32 if group.attention.dtypes[0] is torch.float32 else TILES


def main() -> None:
    devices.TRAITS["cpu"] = devices.GPU
    for name in CASES:
        found = list(kernels(name))
        if sys.argv[1] == "few":
            found = found[:2]
        for failure in failures([source for _, source in found], [(80, "int32", True), (90, "int64", False)]):
            print(f"FAILED {name}: {failure}")
        for tile, source in found:
            multiplies = "wgmma.mma_async" if tile.rows >= 64 else "mma.sync"
            if multiplies not in ptx_of(source, 90):
                print(f"FAILED {name}: no tensor cores compute it on {tile}\n{source.source}")
    print("done")


if __name__ == "__main__":
    main()
