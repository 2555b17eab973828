"""Measures what calls of small training programs cost, and fits the table of `stator.aot.partition.call_costs`.

`python -m benchmarks.call_costs` prints the table, then each program's microseconds beside the estimates. Backward
passes share the costs of the engine, of each leaf and of each result that the backward begins at, which the fit takes
off. Times are this thread's own on the processor: other work on the machine must not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import stator
from stator.aot import training
from stator.aot.partition import call_costs
from stator.aot.partition.call_costs import Calls

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def positive_definite(size: int) -> Tensor:
    factor = torch.randn(size, size)
    return (factor @ factor.T + size * torch.eye(size)).requires_grad_()


def programs() -> dict[str, Case]:
    x, y, m, w, b, spd, rhs = leaf(8), leaf(8), leaf(4, 8), leaf(4, 4), leaf(4), positive_definite(4), leaf(4, 2)
    linalg, eye, labels = torch.linalg, torch.eye(4), torch.tensor([1, 2, 3, 4])
    return {
        "x * 2": (lambda x: x * 2, (x,)),
        "x * y": (lambda x, y: x * y, (x, y)),
        "tanh": (lambda x: x.tanh(), (x,)),
        "2 in a row": (lambda x: (x * 0.5).tanh(), (x,)),
        "3 in a row": (lambda x: (x * 0.5 + 1).tanh(), (x,)),
        "4 functions": (lambda x: x.tanh().sin().exp().sigmoid(), (x,)),
        "7 in a row": (lambda x: (((x * 0.5 + 1).tanh() * 2).sin() + 1).exp() * 3, (x,)),
        "polynomial": (lambda x, y: x * y + x * x - y * y * x, (x, y)),
        "sum of squares": (lambda x: (x * x).sum(), (x,)),
        "mean of squares": (lambda x: ((x - 1) ** 2).mean(), (x,)),
        "normalized": (lambda m: (m - m.mean(-1, keepdim=True)) / (m.var(-1, keepdim=True) + 1).sqrt(), (m,)),
        "softmax": (lambda m: (m * 2).softmax(-1), (m,)),
        "log_softmax": (lambda m: m.log_softmax(-1).mean(), (m,)),
        "views": (lambda x: (x * 2).view(2, 4).t() + 1, (x,)),
        "rows": (lambda m: m[0] * m[1] + m[2], (m,)),
        "cat": (lambda x, y: torch.cat([x, y]) * x.sum(), (x, y)),
        "2 results": (lambda x: (x * 2, x + 1), (x,)),
        "5 results": (lambda x: [x * i for i in range(2, 7)], (x,)),
        "10 results": (lambda x: [x * i for i in range(2, 12)], (x,)),
        "results in a chain": (lambda x: (y := x.sin(), (y * 2).exp()), (x,)),
        "3 results in a chain": (lambda x: (y := x.sin(), z := y.exp() + 1, (z * 2).tanh()), (x,)),
        "2 groups of inputs": (lambda x, y: (x.sin() * 2, (x + y).tanh() * y), (x, y)),
        "groups and a chain": (lambda x, y: (z := x.sin() + 1, (z * y).tanh() * y), (x, y)),
        "mm": (lambda w: w @ w, (w,)),
        "mm mm mm": (lambda w: w @ w @ w @ w, (w,)),
        "bmm": (lambda w: (w.view(1, 4, 4) @ w.view(1, 4, 4)).view(4, 4), (w,)),
        "linear": (lambda m, w, b: F.linear(m.view(8, 4), w, b), (m, w, b)),
        "linear relu": (lambda m, w, b: F.linear(m.view(8, 4), w, b).relu(), (m, w, b)),
        "two layers": (lambda m, w, b: F.linear(F.linear(m.view(8, 4), w, b).relu(), w, b), (m, w, b)),
        "step of Euler": (lambda w, b: b + 0.1 * torch.tanh(b @ w), (w, b)),
        "attention": (lambda w: (w @ w.t() * 0.5).softmax(-1) @ w, (w,)),
        "cholesky": (lambda a: linalg.cholesky(a), (spd,)),
        "triangular solve": (lambda a, r: linalg.solve_triangular(a, r, upper=False), (spd, rhs)),
        "cholesky solve": (lambda a, r: torch.cholesky_solve(r, linalg.cholesky(a)), (spd, rhs)),
        "quadratic form": (
            lambda a, r: linalg.solve_triangular(linalg.cholesky(a + eye), r, upper=False).square().sum(),
            (spd, rhs),
        ),
        "solve": (lambda a, r: linalg.solve(a, r), (spd, rhs)),
        "log determinant": (lambda a: 2 * linalg.cholesky(a).diagonal().log().sum(), (spd,)),
        "kernel": (lambda r: torch.exp(-0.5 * (r[:, None] - r[None]).square().sum(-1)), (rhs,)),
        "layer_norm": (lambda m, x, y: F.layer_norm(m, (8,), x, y) * 2, (m, x, y)),
        "gelu": (lambda m: F.gelu(m) * 2, (m,)),
        "silu": (lambda m: F.silu(m) * 2, (m,)),
        "mse": (lambda m, x: F.mse_loss(m, x.expand(4, 8)), (m, x)),
        "cross entropy": (lambda m: F.cross_entropy(m, labels), (m,)),
        "clamp": (lambda x, y: torch.where(x > 0, x, y).clamp(min=-1), (x, y)),
    }


def microseconds(calls: dict[str, Callable[[], object]], batches: int = 25, times: int = 40) -> dict[str, float]:
    """The least microseconds of one call, over alternating batches."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(batches):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(times):
                call()
            least[name] = min(least[name], (time.thread_time() - start) * 1e6 / times)
    return least


def measure(case: Case) -> tuple[Calls, dict[str, float]]:
    """What the program calls, and the microseconds of forward and backward: by operators, and as a compiled step."""
    function, inputs = case
    seen: list[Calls] = []
    with (
        mock.patch.object(training, "too_small", lambda _, calls: seen.append(calls)),
        mock.patch.object(call_costs, "MUCH_DATA", -1),
    ):
        compiled = stator.compile(function)
        compiled(*inputs)

    def backward(results: Any) -> None:
        one_or_more = [results] if isinstance(results, Tensor) else list(results)
        torch.autograd.backward(one_or_more, [torch.ones_like(one) for one in one_or_more])

    calls: dict[str, Callable[[], object]] = {
        "operators_forward": lambda: function(*inputs),
        "step_forward": lambda: compiled(*inputs),
        "operators": lambda: backward(function(*inputs)),
        "step": lambda: backward(compiled(*inputs)),
    }
    for call in calls.values():
        for _ in range(3):
            call()
    least = microseconds(calls)
    for way in ("operators", "step"):
        least[f"{way}_backward"] = least.pop(way) - least[f"{way}_forward"]
    return seen[0], least


def fit(rows: list[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Numbers of at least zero by which the counts of each row add up to its value, by least relative squares."""
    names = sorted({name for counts, _ in rows for name, count in counts.items() if count})
    while True:
        matrix = torch.tensor([[counts.get(name, 0) / value for name in names] for counts, value in rows])
        found = torch.linalg.lstsq(matrix.double(), torch.ones(len(rows), 1, dtype=torch.float64)).solution.flatten()
        if found.min() >= 0:
            return dict(zip(names, found.tolist(), strict=True))
        del names[int(found.argmin())]


def main() -> None:
    measured = {name: (*measure(case), len(case[1])) for name, case in programs().items()}
    for way in ("operators", "step"):
        found = fit(
            [(getattr(calls, f"{way}_forward"), least[f"{way}_forward"]) for calls, least, _ in measured.values()]
        )
        print_table(f"{way}_forward", found)
    rows: list[tuple[Mapping[str, float], float]] = []
    for calls, least, leaves in measured.values():
        for way in ("operators", "step"):
            counts = {f"{way}_{kind}": count for kind, count in getattr(calls, f"{way}_backward").items()}
            rows.append(({**counts, **shared_by_both(calls, leaves)}, least[f"{way}_backward"]))
    found = fit(rows)
    shared = {kind: found.get(kind, 0.0) for kind in ("engine", "leaf", "root")}
    print(", ".join(f"{kind} {cost:.1f}" for kind, cost in shared.items()))
    for way in ("operators", "step"):
        table = {name.removeprefix(f"{way}_"): cost for name, cost in found.items() if name.startswith(f"{way}_")}
        print_table(f"{way}_backward", table)
    print("\nmicroseconds, measured/estimated by the table in use: by operators; as a step; ratio of both")
    for name, (calls, least, leaves) in measured.items():
        common = sum(shared[kind] * count for kind, count in shared_by_both(calls, leaves).items())
        ways = {"operators": calls.by_operators(), "step": calls.as_step()}
        texts = [
            f"{least[f'{way}_forward']:.1f}/{forward:.1f} + {least[f'{way}_backward'] - common:.1f}/{backward:.1f}"
            for way, (forward, backward) in ways.items()
        ]
        totals = {way: least[f"{way}_forward"] + least[f"{way}_backward"] for way in ways}
        estimate = " left" if not call_costs.gains(calls) else ""
        print(f"{name:20}{texts[0]:28}{texts[1]:28}{totals['operators'] / totals['step']:.2f}{estimate}")


def shared_by_both(calls: Calls, leaves: int) -> dict[str, int]:
    """What a backward costs either way, by kind: the engine, and each leaf and root with its gradient."""
    return {"engine": 1, "leaf": leaves, "root": calls.step_forward["result"]}


def print_table(name: str, costs: Mapping[str, float]) -> None:
    print(f"{name.upper()} = {{{', '.join(f'{kind!r}: {cost:.1f}' for kind, cost in costs.items())}}}")


if __name__ == "__main__":
    main()
