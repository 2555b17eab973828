"""Runs in a process of its own, in Triton's interpreter: kernels that run rows one after the other and add up columns,
compared with eager. Prints failures, then "done"."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import interpreter
import torch
import torch.nn.functional as F

import stator
from stator.inductor import devices
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.schedule import column_sums

ROWS = 1100  # so many that lowering splits sums of columns


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def residual(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient of the input is also summed, for the bias in front of the norm."""
    x = torch.addmm(bias, x, w)
    return layer_norm(x, weight, weight) + x


def two_norms(x: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return rms_norm(layer_norm(x, weight, weight).tanh(), other)


def images(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Rows of two loops."""
    return layer_norm(x.view(10, -1, x.shape[-1]).sin(), weight, bias)


def not_only_added(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums of parts that are squared stay sums of these parts."""
    parts = x.view(50, -1, x.shape[-1]).sum(1)
    return rms_norm(x, weight), parts.square().sum(0)


def only_added(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return rms_norm(x, weight), x.view(50, -1, x.shape[-1]).sum(1).sum(0)


def read_by_a_product(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums of parts that a product reads stay where they are."""
    parts = x.view(50, -1, x.shape[-1]).sum(1)
    return rms_norm(x, weight), parts.t() @ parts, parts.sum(0)


def of_more_rows(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The columns have rows that the norm does not have."""
    parts = x.view(50, -1, x.shape[-1]).sum(1)
    return rms_norm(x[:1090], weight), parts.sum(0)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


# The function, its arguments, and the number of column sums beside rows
CASES: list[tuple[Callable[..., Any], Callable[[], list[torch.Tensor]], int]] = [
    (layer_norm, lambda: [randn(ROWS, 40), randn(40), randn(40)], 2),
    (layer_norm, lambda: [randn(1037, 33), randn(33), randn(33)], 2),
    (layer_norm, lambda: [randn(ROWS, 64, dtype=torch.bfloat16), randn(64), randn(64)], 2),
    (rms_norm, lambda: [randn(ROWS, 24), randn(24)], 1),
    (residual, lambda: [randn(ROWS, 24), randn(24, 24), randn(24), randn(24)], 3),
    (two_norms, lambda: [randn(ROWS, 24), randn(24), randn(24)], 3),
    (images, lambda: [randn(ROWS, 40), randn(40), randn(40)], 2),
    (not_only_added, lambda: [torch.randn(ROWS, 24), torch.randn(24)], 0),
    (read_by_a_product, lambda: [torch.randn(ROWS, 24), torch.randn(24)], 0),
    (of_more_rows, lambda: [torch.randn(ROWS, 24), torch.randn(24)], 0),
    (only_added, lambda: [torch.randn(ROWS, 24), torch.randn(24)], 1),
]


def gradients(function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found = function(*inputs)
    results = found if isinstance(found, tuple) else (found,)
    if not inputs[0].requires_grad:
        return [*results]
    given = [torch.randn(result.shape).to(result.dtype) for result in results]
    return [*results, *torch.autograd.grad(results, inputs, given)]


def check(function: Callable[..., Any], make: Callable[[], list[torch.Tensor]], sums: int) -> None:
    torch.manual_seed(0)
    inputs = make()
    stator.reset()
    printed.clear()
    interpreter.launches = 0
    compiled = stator.compile(function, dynamic=False, options={"verify": True})
    exact = gradients(function, [one.detach().double().requires_grad_(one.requires_grad) for one in inputs])
    for one, other in zip(gradients(compiled, inputs), exact, strict=True):
        distance = float(((one.double() - other).norm() / other.norm()).detach())
        if not distance < (6e-3 if inputs[0].dtype is torch.bfloat16 else 1e-5):
            print(f"FAILED {function.__name__}: {distance}")
    found = sum(source.count("tl.reduce(sum") for source in printed)
    if found != sums or not interpreter.launches:
        print(f"FAILED {function.__name__}: {found} sums beside rows, not {sums}")


printed: list[str] = []


def main() -> None:
    devices.TRAITS["cpu"] = devices.GPU
    column_sums.PROGRAMS = 8
    from stator import pipeline

    def remember(*args: Any, **kwargs: Any) -> Any:
        source = print_kernel(*args, **kwargs)
        printed.append(source.source)
        return source

    pipeline.KERNEL_PRINTERS["triton"] = remember
    for at, (function, make, sums) in enumerate(CASES):
        if sys.argv[1:] and str(at) not in sys.argv[1:]:
            continue
        try:
            check(function, make, sums)
        except Exception as error:
            print(f"FAILED {function.__name__}: {type(error).__name__}: {error}")
    print("done")


if __name__ == "__main__":
    main()
