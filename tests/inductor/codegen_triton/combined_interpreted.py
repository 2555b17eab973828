"""Runs in a process of its own, in Triton's interpreter: programs of small kernels that run side by side in one launch,
compared with eager. Prints failures, then "done"."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import interpreter
import torch

import stator
from stator.base import counters
from stator.inductor import devices


def sums_and_copies(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows, pointwise loops and columns."""
    return x.exp().sum(-1), y.t().contiguous() + 1, torch.softmax(z, -1), z.sin().sum(0)


def equal_parts(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor * 2 + 1 for tensor in tensors]


def before_and_after_a_product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The last groups need the product; the first wait for them."""
    early, other = x.relu().t().contiguous(), y.sigmoid()
    product = torch.mm(x, y)
    return early, other, product.tanh(), product.sum(0), (other + product[:1]).exp()


def moments(*tensors: torch.Tensor) -> None:
    """Optimizer steps, which write what they read."""
    count = len(tensors) // 3
    for p, g, m in zip(tensors[:count], tensors[count : 2 * count], tensors[2 * count :], strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        p.sub_(0.01 * m / (m * m + 1).sqrt())


def one_writes_what_another_reads(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Side by side, x must not be overwritten while it is read."""
    mirrored = x.flip(0) * 2
    x.add_(y)
    return mirrored


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * angle.cos() + turned * angle.sin()


def rotary(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, angle: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """No concatenation has memory of its own: kernels of sine and cosine, of q and k, and, behind the product, of v."""
    q, k, v = (one.view(5, -1, 8).transpose(0, 1) for one in (q, k, v))
    wide = rotated(k, angle)[:, None].expand(-1, 2, -1, -1).reshape(-1, 5, 8)
    return torch.bmm(rotated(q, angle), wide.transpose(1, 2)), torch.cat([v.new_empty(0), v], 0).contiguous()


def three_parts(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.cat((x, y.half().float() * 2, z), 1) * 3 + 1


def of_a_joint_projection(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradients of queries, keys and values side by side: one kernel stores them and sums columns of parts, one
    adds up the sums."""
    rows = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).reshape(q.shape[0] * q.shape[2], -1)
    return torch.mm(rows, rows[:5].t()), torch.mm(rows.t(), rows[:, :5]), rows.sum(0)


def stacked_in_the_middle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack((x, y.half().float() * 2), 1) * 3 + 1


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


# The function, its arguments, and the number of generated kernels that it launches
PROGRAMS: list[tuple[Callable[..., Any], Callable[[], list[torch.Tensor]], int]] = [
    (sums_and_copies, lambda: [randn(7, 33), randn(40, 50), randn(6, 64)], 1),
    (equal_parts, lambda: [randn(n) for n in (100, 37, 100, 100, 2000, 37)], 1),
    (before_and_after_a_product, lambda: [randn(12, 12), randn(12, 12)], 1),
    (moments, lambda: [randn(n) for _ in range(3) for n in (10, 300, 10, 1030)], 1),
    (one_writes_what_another_reads, lambda: [randn(9, 20), randn(9, 20)], 1),
    (rotary, lambda: [randn(5, 32), randn(5, 16), randn(5, 16), randn(5, 8)], 3),
    (of_a_joint_projection, lambda: [randn(2, 600, 3, 4).transpose(1, 2) for _ in range(3)], 2),
    (stacked_in_the_middle, lambda: [randn(4, 3, 5), randn(4, 3, 5)], 1),
    (three_parts, lambda: [randn(4, 3, 5), randn(4, 1, 5), randn(4, 6, 5)], 1),
]


def check(function: Callable[..., Any], make: Callable[[], list[torch.Tensor]], launches: int) -> None:
    torch.manual_seed(0)
    given = make()
    expected, mine = ([one.clone() for one in given] for _ in range(2))
    results = [function(*expected), stator.compile(function, dynamic=False, options={"verify": True})(*mine)]
    flat = [[*(result if isinstance(result, tuple | list) else [result])] for result in results]
    for one, other in zip([*flat[1], *mine], [*flat[0], *expected], strict=True):
        torch.testing.assert_close(one, other)
    if interpreter.launches != launches:
        print(f"FAILED {function.__name__}: {interpreter.launches} launches, not {launches}")


def main() -> None:
    devices.TRAITS["cpu"] = devices.GPU
    for function, make, launches in PROGRAMS:
        if sys.argv[1:] and function.__name__ not in sys.argv[1:]:
            continue
        counters.clear()
        interpreter.launches = 0
        try:
            check(function, make, launches)
        except Exception as error:
            print(f"FAILED {function.__name__}: {type(error).__name__}: {error}")
    print("done")


if __name__ == "__main__":
    main()
