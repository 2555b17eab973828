"""The kernels for convolutions of points, on tensors beside memory that must not be touched.

A program: `guarded_pointwise.py THREADS`. Convolutions of random sizes (seeded), compared with double precision.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import torch
from guarded_depthwise import expected, guarded

from stator.runtime.depthwise import Shape
from stator.runtime.pointwise import Pointwise, Way

CONVOLUTIONS = 120
STRIDES = ((1, 1), (1, 1), (2, 2), (1, 2), (2, 1))


def sizes() -> Iterator[Shape]:
    chosen = random.Random(0)
    for number in range(CONVOLUTIONS):
        image = chosen.randint(1, 40), chosen.randint(1, 40)
        most = 300 if number % 4 == 0 else 40  # several chains; blocks of positions that are computed together
        channels, results = chosen.randint(2, most), chosen.randint(1, most)
        stride = STRIDES[number % len(STRIDES)]
        yield Shape(chosen.randint(1, 4), channels, image, (1, 1), stride, (0, 0), channels, results)


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    for number, of in enumerate(sizes()):
        x, weight, grad = (
            guarded(torch.randn(size), number % 2 == 0)
            for size in ((of.batch, of.channels, *of.image), of.weight, (of.batch, of.produced, *of.out))
        )
        given = {"forward": (x, weight), "data": (grad, weight)}
        right = expected(of, x, weight, grad)
        for what, tensors in given.items():
            for way in (Way(80, True), Way(80, False), Way(1000, False)):
                result = guarded(torch.full(right[what].shape, 7.0), number % 2 == 0)
                Pointwise(way, what, of)(*tensors, out=result)
                tolerance = 1e-5 * max(1.0, right[what].abs().max().item())
                assert (result - right[what]).abs().max() <= tolerance, f"{what}, {way} of {of}"
    print(f"{CONVOLUTIONS} convolutions were right")


if __name__ == "__main__":
    main()
