"""Every kernel for images of one position, on tensors beside memory that must not be touched.

A program: `guarded_single_positions.py THREADS`. Random sizes (seeded), compared with double precision.
"""

from __future__ import annotations

import random
import sys

import torch
from guarded_depthwise import guarded

from stator.runtime.single_positions import _GIVEN, _RESULT, Product, Sizes, ways

PRODUCTS = 150
LARGEST = 300


def expected(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    leaves = [given[name].double().requires_grad_() for name in ("x", "weight", "bias")]
    out = torch.nn.functional.conv2d(*leaves)
    data, weight, bias = torch.autograd.grad(out, leaves, given["grad"].double())
    forward = torch.nn.functional.conv2d(*leaves[:2])
    return {"forward": forward.detach(), "biased": out.detach(), "data": data, "weight": weight, "bias": bias}


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    chosen = random.Random(0)
    for number in range(PRODUCTS):
        most = LARGEST if number % 3 == 0 else 40
        sizes = Sizes(chosen.randint(1, 9), chosen.randint(1, most), chosen.randint(1, most))
        given = {
            name: guarded(torch.randn(sizes.of(name)), number % 2 == 0) for name in ("x", "weight", "bias", "grad")
        }
        for what, right in expected(given).items():
            for way in ways(what, sizes):
                result = guarded(torch.full(sizes.of(_RESULT[what]), 7.0), number % 2 == 0)
                Product(way, what, sizes, (True, True, True))(*[given[name] for name in _GIVEN[what]], out=result)
                tolerance = 1e-5 * max(1.0, right.abs().max().item())
                assert (result - right).abs().max() <= tolerance, f"{way} of {sizes}"
    print(f"{PRODUCTS} products were right")


if __name__ == "__main__":
    main()
