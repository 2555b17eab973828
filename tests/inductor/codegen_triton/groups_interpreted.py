"""Runs in a process of its own, in Triton's interpreter: products of groups whose ends are data, with what follows
them, as one kernel, compared with eager in float64. Arguments: the first seed and the last. Prints failures, then
"done"."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import interpreter  # noqa: F401 - before anything loads Triton
import torch
from products_interpreted import TOLERANCES, flat, launches, with_random_tiles

import stator


def one_by_one(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows behind the last group are zero."""
    result, start = x.new_zeros(len(x), weight.shape[2]), 0
    for expert, end in enumerate(ends.tolist()):
        result = torch.cat([result[:start], x[start:end] @ weight[expert], result[end:]])
        start = end
    return result


def grouped(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    product = torch._grouped_mm(x, weight, offs=ends)
    return torch.where(torch.arange(len(x)).unsqueeze(1) < ends[-1], product, 0)


Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def plain(product: Product, x: Any, gate: Any, up: Any, bias: Any, ends: Any) -> Any:
    return product(x, gate.transpose(1, 2), ends)


def biased(product: Product, x: Any, gate: Any, up: Any, bias: Any, ends: Any) -> Any:
    """The bias is that of a row's expert."""
    experts = torch.bucketize(torch.arange(len(x), dtype=torch.int32), ends, right=True).clamp(max=len(ends) - 1)
    return torch.relu(product(x, up, ends) + bias[experts])


def gated(product: Product, x: Any, gate: Any, up: Any, bias: Any, ends: Any) -> Any:
    """Two matrices in one layout, tile by tile."""
    return torch.nn.functional.silu(product(x, up, ends)) * product(x, up.flip(0), ends)


def doubled(product: Product, x: Any, gate: Any, up: Any, bias: Any, ends: Any) -> Any:
    """Rows behind the last group are read, too."""
    return product(x * 2, up, ends) + x[:, :1], product(x * 2, up + 1, ends).mean(1)


def check(seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    with_random_tiles(chance)
    dtype = chance.choice((torch.float16, torch.bfloat16))
    rows, depth, columns = chance.choice((1, 7, 40, 150)), chance.choice((8, 40, 64)), chance.choice((8, 24, 64))
    count = chance.choice((1, 3, 4, 7))
    chosen = sorted(chance.randint(0, rows) for _ in range(count))
    ends = torch.tensor([*chosen[:-1], chance.choice((rows, chosen[-1]))], dtype=torch.int32)
    x, gate, up, bias = [
        (torch.randn(sizes) * 0.5).to(dtype)
        for sizes in ((rows, depth), (count, columns, depth), (count, depth, columns), (count, columns))
    ]
    function = chance.choice((plain, biased, gated, doubled))
    name = f"seed {seed}: {function.__name__} {dtype} {rows} x {depth} x {columns}, {ends.tolist()}"
    given = [x, gate, up, bias]
    exact = flat(function(one_by_one, *[one.double() for one in given], ends))
    for gradients in (False, True):
        stator.reset()
        launches.clear()
        compiled = stator.compile(lambda *args: function(grouped, *args), options={"verify": True}, fullgraph=True)
        leaves = [one.clone().requires_grad_(gradients) for one in given]
        torch.set_grad_enabled(gradients)
        found = flat(compiled(*leaves, ends))
        pairs = list(zip(found, exact, strict=True))
        if gradients:
            precise = [one.double().requires_grad_() for one in given]
            results = flat(function(one_by_one, *precise, ends))
            totals = [sum(one.double().square().sum() for one in many) for many in (found, results)]
            derived = [
                torch.autograd.grad(total, of, allow_unused=True)
                for total, of in zip(totals, (leaves, precise), strict=True)
            ]
            pairs += [(a, b) for a, b in zip(*derived, strict=True) if b is not None]
        for at, (result, expected) in enumerate(pairs):
            error = float((result.detach().double() - expected).norm() / expected.norm().clamp(min=1e-3))
            if not error < 4 * TOLERANCES[dtype] or result.shape != expected.shape:
                print(f"FAILED {name}: {error} in {at}, gradients: {gradients}")
        if not any(launch.products.ends is not None for launch in launches):
            print(f"FAILED {name}: no launch")


def check_sizes() -> None:
    """One compilation for all numbers of rows, and products without groups."""
    torch.set_grad_enabled(False)
    stator.reset()
    with_random_tiles(random.Random(0))
    launches.clear()
    weight = torch.nn.Parameter(torch.randn(3, 32, 24).half() * 0.3)
    compiled = stator.compile(lambda x, ends: grouped(x, weight, ends), dynamic=True)
    for rows in (5, 17, 64, 33):
        x, ends = torch.randn(rows, 32).half(), torch.tensor([2, rows // 2, rows - 1], dtype=torch.int32)
        exact = one_by_one(x.double(), weight.double(), ends)
        if not float((compiled(x, ends).double() - exact).norm() / exact.norm()) < TOLERANCES[torch.float16]:
            print(f"FAILED {rows} rows of one kernel")
    if len(launches) != 1:
        print(f"FAILED {len(launches)} launches for all sizes")
    x = torch.randn(3, 16, 32).half()
    batch = stator.compile(lambda x, weight: torch._grouped_mm(x, weight) * 2)(x, weight)
    torch.testing.assert_close(batch, torch._grouped_mm(x, weight) * 2, rtol=1e-2, atol=1e-2)


def main() -> None:
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        check(seed)
    check_sizes()
    print("done")


if __name__ == "__main__":
    main()
