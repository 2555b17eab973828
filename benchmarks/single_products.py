"""Single products of float32 matrices, compiled by default, beside eager: `python -m benchmarks.single_products`.

Each call reads the next of several second matrices, which no core's cache holds, unless `--near` is given. Times are
the least of alternating loops, in processor time with one thread. Run it twice: kernels of ours are timed beside
libraries by the second process that asks.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

import stator
from benchmarks.measure import steady_state
from stator.runtime import choices

_FAR_BYTES, _MOST_COPIES, _LOOP_SECONDS = 16 << 20, 64, 1e-3

Function = Callable[..., torch.Tensor]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight, bias)


def linear_and_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight, bias).relu()


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def first_turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.t() @ b


def second_turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.t()


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query @ key.transpose(-1, -2)


def baddbmm(a: torch.Tensor, b: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    return torch.baddbmm(added, a, b)


# What is computed, rows, inner, columns
SINGLE: tuple[tuple[Function, int, int, int], ...] = (
    *((linear, 1, 768, 768), (linear, 1, 768, 3072), (linear, 1, 3072, 768), (linear, 1, 512, 1000)),
    *((linear, 1, 4096, 4096), (linear, 3, 768, 768), (linear, 8, 768, 768), (linear, 8, 768, 3072)),
    *((linear, 16, 256, 256), (linear, 17, 511, 513), (linear, 32, 256, 256), (linear, 49, 384, 384)),
    *((linear, 64, 100, 10), (linear, 128, 128, 512), (linear, 128, 256, 256), (linear, 128, 768, 768)),
    *((linear, 197, 192, 192), (linear, 512, 33, 65), (linear, 512, 768, 2), (linear, 1000, 64, 64)),
    *((linear, 2048, 16, 16), (linear, 784, 40, 240), (linear, 128, 768, 3072)),
    *((linear_and_relu, 1, 1024, 1024), (linear_and_relu, 64, 256, 256), (linear_and_relu, 333, 300, 77)),
    *((mm, 1, 1024, 1024), (mm, 8, 1024, 1024), (mm, 100, 100, 100), (mm, 255, 257, 129), (mm, 512, 512, 512)),
    *((mm, 1024, 8, 1024), (mm, 64, 4096, 8), (mm, 3, 4000, 3)),
    *((first_turned, 128, 512, 64), (first_turned, 768, 128, 768), (first_turned, 16, 2048, 16)),
    *((second_turned, 300, 64, 300), (second_turned, 5, 640, 900), (second_turned, 64, 33, 1000)),
)
# What is computed, batch, rows, inner, columns
BATCHED: tuple[tuple[Function, int, int, int, int], ...] = (
    *((bmm, 12, 128, 64, 128), (bmm, 96, 16, 16, 16), (bmm, 8, 1, 64, 512), (bmm, 4, 255, 31, 65)),
    *((scores, 12, 128, 64, 128), (scores, 64, 49, 32, 49), (scores, 12, 1, 64, 300)),
    *((baddbmm, 12, 64, 64, 64), (baddbmm, 32, 20, 30, 10)),
)


def arguments_of(function: Function, *sizes: int) -> tuple[torch.Tensor, ...]:
    *batch, rows, inner, columns = sizes
    first = torch.randn(*batch, *((inner, rows) if function is first_turned else (rows, inner)))
    by_columns = function in (linear, linear_and_relu, second_turned, scores)
    second = torch.randn(*batch, *((columns, inner) if by_columns else (inner, columns)))
    if function is baddbmm:
        return first, second, torch.randn(*batch, rows, columns)
    return (first, second, torch.randn(columns)) if function in (linear, linear_and_relu) else (first, second)


def loop(function: Function, given: Sequence[tuple[torch.Tensor, ...]], times: int) -> Callable[[], Any]:
    following = itertools.cycle(given)

    def run() -> None:
        for _ in range(times):
            function(*next(following))

    return run


def compared(function: Function, sizes: Sequence[int], seconds: float, is_near: bool) -> tuple[float, float]:
    """Microseconds of a call of eager, and its time over that of compiled code."""
    given = arguments_of(function, *sizes)
    copies = 1 if is_near else max(1, min(_MOST_COPIES, _FAR_BYTES // given[1].nbytes))
    each = [(given[0], given[1].clone(), *given[2:]) for _ in range(copies)]
    compiled = stator.compile(function, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-4, atol=1e-3)
    start = time.perf_counter()
    loop(function, each, 10)()
    times = max(1, math.ceil(_LOOP_SECONDS / (time.perf_counter() - start) * 10))
    calls = {"eager": loop(function, each, times), "stator": loop(compiled, each, times)}
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    least = {name: min(kept) for name, kept in steady_state(calls, seconds=seconds, least=9, clock=clock).items()}
    return 1e6 * least["eager"] / times, least["eager"] / least["stator"]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each product")
    parser.add_argument("--near", action="store_true", help="all calls read one matrix")
    parser.add_argument("--only", default="", help="part of the rows' names")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    choices.PATIENCE_SECONDS = math.inf  # several processes would time as much
    ratios: dict[str, float] = {}
    for function, *sizes in (*SINGLE, *BATCHED):
        name = f"{function.__name__} {' x '.join(map(str, sizes))}"
        if given.only in name:
            microseconds, ratios[name] = compared(function, sizes, given.seconds, given.near)
            print(f"{name:40} eager {microseconds:9.1f} us, speed over eager {ratios[name]:.2f}", flush=True)
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    print(f"{len(ratios)} products: geometric mean {mean:.2f}, least {min(ratios.values()):.2f}")
    print("below 0.95:", ", ".join(name for name, ratio in ratios.items() if ratio < 0.95) or "none")


if __name__ == "__main__":
    main()
