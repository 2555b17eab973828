"""Every kernel for convolutions of single channels or of groups, on tensors beside memory that must not be touched.

A program: `guarded_depthwise.py THREADS`. Convolutions of random sizes (seeded), compared with double precision.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from collections.abc import Iterator

import torch

from stator.runtime import build, comparison, depthwise
from stator.runtime.depthwise import Depthwise, Shape

KERNELS = [  # rows, columns, strides
    *((1, 2, 1, 1), (3, 3, 1, 1), (3, 3, 2, 2), (5, 3, 2, 1), (3, 5, 1, 2), (5, 5, 1, 1)),
    *((4, 7, 2, 2), (7, 1, 1, 2), (2, 6, 1, 1), (7, 7, 2, 1)),
]
OF_EACH = 18
WHAT = ("forward", "data", "weight")


def sizes() -> Iterator[Shape]:
    chosen = random.Random(0)
    for rows, columns, *stride in KERNELS:
        for number in range(OF_EACH):
            padding = chosen.randint(0, rows - 1), chosen.randint(0, columns)
            largest = (12, 70) if number % 3 == 0 else (40, 20)
            image = tuple(
                chosen.randint(max(1, kernel - 2 * pad), most)
                for kernel, pad, most in zip((rows, columns), padding, largest, strict=True)
            )
            batch, channels = chosen.randint(1, 3), chosen.choice((2, 7, 16, 17, 35))
            yield Shape(batch, channels, image, (rows, columns), tuple(stride), padding)
            yield Shape(batch, chosen.choice((16, 40)), image, (rows, columns), tuple(stride), padding, 8)


def guarded(tensor: torch.Tensor, at_end: bool) -> torch.Tensor:
    """A copy that ends, or begins, at a page without access. Its memory is never given back."""
    page, size = mmap.PAGESIZE, tensor.numel() * 4
    pages = -(-size // page) * page
    memory = mmap.mmap(-1, pages + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for guard in (address, address + page + pages):
        if protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = page + (pages - size if at_end else 0)
    copy = torch.frombuffer(memory, dtype=torch.float32, count=tensor.numel(), offset=offset).view(tensor.shape)
    return copy.copy_(tensor)


def expected(of: Shape, x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> dict[str, torch.Tensor]:
    leaves = [tensor.double().requires_grad_() for tensor in (x, weight)]
    out = torch.nn.functional.conv2d(*leaves, None, of.stride, of.padding, 1, of.channels // of.width)
    data, of_weight = torch.autograd.grad(out, leaves, grad.double())
    return {"forward": out.detach(), "data": data, "weight": of_weight}


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    shapes = list(sizes())
    texts = {
        text.symbol: text
        for of in shapes
        for what in WHAT
        for text in (depthwise._Text(function, of) for function in depthwise.candidates(what, of))
    }
    build.build_kernels(list(texts.values()))
    for number, of in enumerate(shapes):
        x, weight, grad = (
            guarded(torch.randn(size), number % 2 == 0)
            for size in (
                (of.batch, of.channels, *of.image),
                of.weight,
                (of.batch, of.produced, *of.out),
            )
        )
        given = {"forward": (x, weight), "data": (grad, weight), "weight": (grad, x)}
        for what, right in expected(of, x, weight, grad).items():
            for function in depthwise.candidates(what, of):
                result = guarded(torch.full(right.shape, 7.0), number % 2 == 0)
                Depthwise(function, what, of, comparison.settings())(*given[what], out=result)
                tolerance = 1e-5 * max(1.0, right.abs().max().item())
                assert (result - right).abs().max() <= tolerance, f"{function} of {of}"
    print(f"{len(shapes)} convolutions were right")


if __name__ == "__main__":
    main()
