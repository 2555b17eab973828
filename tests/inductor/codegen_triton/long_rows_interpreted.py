"""Runs in a process of its own, in Triton's interpreter: reductions along rows that are longer than a block, and that
begin at any address, compared with eager. Prints failures, then "done"."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import interpreter
import torch
import torch.nn.functional as F

import stator

HALF = torch.bfloat16


def checked_load_module(source: str, symbol: str) -> Any:
    """The module with assertions of all alignments that it promises to the compiler."""
    checked = """
@triton.jit
def promised(index, lanes: tl.constexpr):
    tl.device_assert(tl.min(index, 1) % lanes == 0, "not at a multiple")
    return index

"""
    at = source.index("@triton.jit")
    body = source[at:].replace("tl.multiple_of(", "promised(").replace(", (1, 16))", ", 16)")
    return load_module(source[:at] + checked + body, symbol)


load_module, interpreter.load_module = interpreter.load_module, checked_load_module


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, -1)


def softmax_in_place(x: torch.Tensor) -> None:
    x.copy_(torch.softmax(x, -1))


def largest_and_total(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The maximum itself is a result, too."""
    largest = x.amax(-1, keepdim=True)
    return largest, (x - largest).exp().sum(-1)


def total_and_smallest(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The second reduction needs a loop of its own."""
    distance = x - x.amax(-1, keepdim=True)
    return distance.exp().sum(-1), distance.amin(-1)


def other_distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """No softmax: the maximum is another tensor's."""
    return (x - y.amax(-1, keepdim=True)).exp().sum(-1)


def places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.argmax(-1), x.argmin(-1), *x.max(-1), *x.min(-1)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight)


def sum_of_planes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * y).sum((1, 2)), x.amax((1, 2))


def moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.var_mean(x, -1)


def moments_of_columns(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.var_mean(x, 0)


def two_norms(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Moments of two tensors in one run, which a run over the rows follows."""
    return F.layer_norm(x, x.shape[-1:]) + F.layer_norm(y, y.shape[-1:])


def softmax_of_columns(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 0)


def one_of_each_row(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The gradient of a cross entropy: sums of rows that are zero but in one place, or everywhere."""
    chosen = torch.where(torch.arange(x.shape[1]) == places[:, None], x[:, :1], 0).to(HALF).float()
    return chosen - x.exp() * chosen.sum(-1, keepdim=True), chosen.sum(-1)


def gradient_of_logits(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Nothing is reduced and nothing stored for a whole row: programs share rows."""
    chosen = torch.where(torch.arange(x.shape[1]) == places[:, None], x[:, :1].float(), 0)
    return chosen - x.exp() * chosen.sum(-1, keepdim=True)


def running_sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows and columns, and what follows in the same loops."""
    total = x.cumsum(-1)
    return total * 2 - x, x.cumsum(0), (x > 0).cumsum(-1)


def softmax_of_running_sums(x: torch.Tensor) -> torch.Tensor:
    """Each run over a row computes the scan again."""
    return torch.softmax(x.cumsum(-1), -1)


def sums_of_running_sums(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Reductions over more loops than the scan runs over, over others, and over these."""
    return x.cumsum(1).sum((1, 2)), x.cumsum(1).sum(1), x.cumsum(2).amax(1), x.cumsum(2).flip(2)


def running_sums_in_place(x: torch.Tensor) -> None:
    x.copy_(x.cumsum(-1) + x)


def running_logarithms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.logcumsumexp(-1), x.logcumsumexp(0), torch.ones_like(x).cumsum(1)


def running_products(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.cumprod(-1), x.cumprod(0)


def far_from_zero(*shape: int) -> torch.Tensor:
    """The first elements are far from the others, and all are far from zero."""
    x = torch.randn(shape) + 1000
    x[..., :40] += 300
    return x


def special_rows(length: int) -> Iterator[torch.Tensor]:
    """Rows of numbers with infinities and NaN in some places."""
    inf, nan = math.inf, math.nan
    cases: list[list[float]] = [
        [],
        [-inf],
        [inf],
        [inf, inf],
        [nan],
        [nan, inf],
        [-inf, inf],
        [torch.finfo(torch.float32).min],
    ]
    torch.manual_seed(0)
    for case in cases:
        row = torch.randn(length) * 3
        for value in case:
            row[torch.randint(length, ())] = value
        yield row
    yield torch.full((length,), -inf)
    yield torch.full((length,), torch.finfo(torch.float32).min)
    for value in (inf, nan, 2.5):
        row = torch.full((length,), -inf)
        row[torch.randint(length, (3,))] = value
        yield row
    yield torch.where(torch.arange(length) < length // 2, -inf, torch.randn(length))


def special(length: int) -> torch.Tensor:
    return torch.stack([*special_rows(length)])


def tied(*shape: int) -> torch.Tensor:
    return torch.randint(3, shape)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


# The function, its arguments, and whether it is also compiled for all sizes
PROGRAMS: list[tuple[Callable[..., Any], Callable[[], list[torch.Tensor]], bool]] = [
    (log_softmax, lambda: [special(16386)], False),
    (log_softmax, lambda: [randn(2, 16400)], True),
    (softmax_in_place, lambda: [randn(3, 17003, dtype=HALF)], True),
    (largest_and_total, lambda: [special(16387)[1:7]], False),
    (total_and_smallest, lambda: [randn(2, 17001)], False),
    (other_distances, lambda: [randn(2, 17001), randn(2, 17001) + 9], False),
    (places, lambda: [tied(2, 4103).float()], True),
    (places, lambda: [tied(2, 4103).to(torch.int32)], False),
    (places, lambda: [special(4105)[::2]], False),
    (places, lambda: [special(8192)[::3]], False),
    (norm, lambda: [randn(2, 16401, dtype=HALF), randn(16401, dtype=HALF)], True),
    (sum_of_planes, lambda: [torch.rand(3, 101, 103), torch.rand(3, 101, 103)], True),
    (sum_of_planes, lambda: [torch.rand(3, 103, 101).transpose(1, 2), torch.rand(3, 103, 101).transpose(1, 2)], False),
    (moments, lambda: [far_from_zero(3, 20001)], True),
    (moments, lambda: [special(16387)[:7:3]], False),
    (moments_of_columns, lambda: [far_from_zero(70, 3000).t().contiguous()], True),
    (two_norms, lambda: [randn(2, 17001), far_from_zero(2, 17001)], True),
    (softmax_of_columns, lambda: [randn(2000, 40)], False),
    (one_of_each_row, lambda: [randn(5, 9001), torch.tensor([0, 9000, -1, 9001, 77])], True),
    (gradient_of_logits, lambda: [randn(3, 9001, dtype=HALF), torch.tensor([0, 9000, 5000])], True),
    (gradient_of_logits, lambda: [randn(2, 8192), torch.tensor([8191, 17])], True),
    (running_sums, lambda: [tied(300, 130).float()], True),
    (running_sums, lambda: [tied(40, 3, 70).transpose(0, 2)], True),
    (softmax_of_running_sums, lambda: [randn(3, 1000)], True),
    (running_logarithms, lambda: [special(301)], True),
    (sums_of_running_sums, lambda: [randn(3, 20, 30)], True),
    (running_sums_in_place, lambda: [randn(5, 700)], True),
    (running_products, lambda: [1 + randn(40, 300) / 10], True),
    (F.cross_entropy, lambda: [randn(5, 17003, dtype=HALF), torch.tensor([0, 17002, 5, -100, 7])], False),
]


def check(function: Callable[..., Any], given: list[torch.Tensor], dynamic: bool) -> None:
    expected, mine = ([one.clone() for one in given] for _ in range(2))
    results = [function(*expected), stator.compile(function, dynamic=dynamic)(*mine)]
    flat = [[*(result if isinstance(result, tuple) else [result])] for result in results]
    for one, other in zip([*flat[1], *mine], [*flat[0], *expected], strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, equal_nan=True)


def main() -> None:
    for function, make, dynamic in [
        *((f, make, False) for f, make, _ in PROGRAMS),
        *(one for one in PROGRAMS if one[2]),
    ]:
        if sys.argv[1:] and function.__name__ not in sys.argv[1:]:
            continue
        torch.manual_seed(0)
        given = make()
        stator.reset()
        try:
            check(function, given, dynamic)
        except Exception as error:
            shape = [*given[0].shape]
            print(f"FAILED {function.__name__} of {shape}, dynamic={dynamic}: {type(error).__name__}: {error}")
    print("done")


if __name__ == "__main__":
    main()
