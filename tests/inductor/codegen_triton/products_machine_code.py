"""Runs in a process of its own: products of transformers as one kernel with what follows them, on each tile that a rule
or timing may choose, through Triton's compiler to machine code. Argument: "all" tiles or "few". Prints failures, then
"done"."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_compiler import failures, ptx_of

sys.path.insert(0, str(Path(__file__).parents[1]))

from all_sizes import symbolic_fakes

from stator.graph.tracing.tracer import trace
from stator.inductor import devices
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.codegen.triton.tiled.tiles import candidates
from stator.inductor.lower import can_lower, lower
from stator.inductor.lower.operators import convolution
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import ProductGroup, Tile
from stator.inductor.schedule.products import fuse_products
from stator.shapes.environment import Environment


def half(*sizes: int) -> torch.Tensor:
    """Memory is never touched: only sizes matter."""
    return torch.empty(sizes, dtype=torch.bfloat16)


def heads(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple([(x @ weight.t()).unflatten(-1, (12, 64)).transpose(0, 1) for weight in weights])


def normalized(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(torch.addmm(bias, x, weight) + residual, (768,))


def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ gate.t()) * (x @ up.t())


def activated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, weight, bias))


def experts(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return F.silu(torch._grouped_mm(x, weight.transpose(1, 2), offs=ends))


def weight_gradient(x: torch.Tensor, grad: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(x.t(), grad, offs=ends)


def convolved(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, groups: int = 1) -> torch.Tensor:
    return F.relu(F.conv2d(x, weight, padding=1, groups=groups) * scale)


def nhwc(*sizes: int) -> torch.Tensor:
    return half(*sizes).contiguous(memory_format=torch.channels_last)


ENDS = torch.empty(8, dtype=torch.int32)
# By name: a function, its tensors, and whether programs may share the depth
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor], bool]] = {
    "three weights": (heads, [half(128, 768), *[half(768, 768)] * 3], False),
    "activation": (activated, [half(128, 768), half(3072, 768), half(3072)], False),
    "one row": (activated, [half(1, 768), half(3072, 768), half(3072)], False),
    "shared depth": (normalized, [half(128, 3072), half(3072, 768), half(768), half(128, 768)], True),
    "two weights, tile by tile": (gated, [half(128, 1024), half(2816, 1024), half(2816, 1024)], False),
    "several tiles a program": (activated, [half(2048, 768), half(3072, 768), half(3072)], False),
    "a table of words": (lambda x, words: x @ words.t(), [half(128, 768), half(30522, 768)], False),
    "few rows for each expert": (experts, [half(16, 1024), half(8, 1536, 1024), ENDS], False),
    "many rows for each expert": (experts, [half(8192, 1024), half(8, 1536, 1024), ENDS], False),
    "gradients of experts": (weight_gradient, [half(4096, 1024), half(4096, 1536), ENDS], False),
    "a kernel over few positions": (convolved, [nhwc(1, 128, 28, 28), nhwc(128, 128, 3, 3), half(128, 1, 1)], False),
    "a kernel of groups": (
        partial(convolved, groups=24),
        [nhwc(1, 576, 14, 14), nhwc(576, 24, 3, 3), half(576, 1, 1)],
        False,
    ),
    "a batch": (lambda x, y: (x @ y).transpose(0, 1).contiguous(), [half(12, 128, 128), half(12, 128, 64)], False),
}


def kernels(name: str) -> Iterator[tuple[Tile, KernelSource]]:
    function, tensors, shares = CASES[name]
    fakes = symbolic_fakes(tensors, [()] * len(tensors), Environment())
    graph, sizes = with_expressions(trace(function, fakes, keep=can_lower).graph)
    lowered = lower(run_passes(graph, False), False, sizes)
    tiles: list[Tile] = []

    def first(group: ProductGroup, may_share_depth: bool) -> Tile:
        if may_share_depth is not shares:
            print(f"FAILED {name}: programs may{'' if may_share_depth else ' not'} share the depth")
        tiles[:] = candidates(group, may_share_depth, lowered=lowered)
        return tiles[0]

    fuse_products(schedule(lowered), lowered, first)
    for tile in tuple(tiles):
        fused, changed = fuse_products(schedule(lowered), lowered, lambda *_: tile)
        groups = [step for step in fused.steps if isinstance(step, ProductGroup)]
        if len(groups) != 1:
            print(f"FAILED {name}: {len(groups)} launches")
        for group in groups:
            yield tile, print_kernel(group, changed.buffers, knowledge=sizes)


def main() -> None:
    devices.TRAITS["cpu"] = devices.GPU
    convolution.may_choose_for_gpu = lambda x, out: x.rank == 4
    for name in CASES:
        found = list(kernels(name))
        if len(found) < 4:
            print(f"FAILED {name}: {len(found)} tiles")
        if sys.argv[1] == "few":
            found = found[:1]
        for failure in failures([source for _, source in found], [(80, "int32", True), (90, "int64", False)]):
            print(f"FAILED {name}: {failure}")
        tile, source = found[0]
        if (tile.programs > 0) is not ("several tiles" in name):
            print(f"FAILED {name}: {tile}")
        multiplies = "wgmma.mma_async" if tile.rows >= 64 else "mma.sync"
        if multiplies not in ptx_of(source, 90):
            print(f"FAILED {name}: no tensor cores compute it\n{source.source}")
    print("done")


if __name__ == "__main__":
    main()
