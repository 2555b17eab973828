"""The cost of a graph break: what the code around a break takes beyond two compiled functions without one.

`python -m benchmarks.breaks` prints microseconds for each break, of stator and torch.compile. Each program runs with a
call of a C function that breaks the graph, and with a call that is captured; the native call is taken off. "graph" is
what one graph more costs by itself: a compiled function called apart. "By hand" is what PyTorch takes at least: in the
place of graphs, functions that only make their results, as autograd functions where there are gradients: two for a
graph with a result that is computed from another result, because hooks and `torch.autograd.grad` see both. Figures are
minima of alternating batches, in this thread's own time on the processor: other work on the machine must not count.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import torch

import stator

Program = Callable[[torch.Tensor, Callable[[bytes], object]], torch.Tensor]
TURNS = 8
TEXT = b"text"
BREAKS, CAPTURED = zlib.crc32, len


def half(x: torch.Tensor) -> torch.Tensor:
    return (x * 0.5 + 1).tanh()


def two_locals(x: torch.Tensor, call: Callable[[bytes], object]) -> torch.Tensor:
    y = half(x)
    call(TEXT)
    return half(y * x)


def twenty_locals(x: torch.Tensor, call: Callable[[bytes], object]) -> torch.Tensor:
    a, b, c, d, e, f, g, h, i, j = (x * factor for factor in range(1, 11))
    k, m, n, o, p, q, r, s = 1, 2.5, "three", None, (4, x), [5], {"six": 6}, range(7)
    call(TEXT)
    x = x * k + m * len(n) + p[0] + q[0] + r["six"] + len(s) if o is None else x
    return half(x + a + b + c + d + e + f + g + h + i + j)


def callee(x: torch.Tensor, call: Callable[[bytes], object]) -> torch.Tensor:
    y = half(x)
    call(TEXT)
    return half(y * x)


def in_a_callee(x: torch.Tensor, call: Callable[[bytes], object]) -> torch.Tensor:
    y = x + 1
    return callee(y, call) * y


def in_a_loop(x: torch.Tensor, call: Callable[[bytes], object]) -> torch.Tensor:
    for _ in range(TURNS):
        x = half(x)
        call(TEXT)
    return half(x)


# By name: a program, and for each of its graphs how many results the functions by hand have
PROGRAMS: dict[str, tuple[Program, tuple[tuple[int, ...], ...]]] = {
    "2 live locals": (two_locals, ((1,), (1,))),
    "20 live locals": (twenty_locals, ((10,), (1,))),
    "in a callee": (in_a_callee, ((1, 1), (1,))),
    f"in a loop of {TURNS} turns": (in_a_loop, ((1,),) * (TURNS + 1)),
}


def microseconds(calls: dict[str, Callable[[], object]], batches: int = 40, times: int = 200) -> dict[str, float]:
    """The least microseconds of one call, over alternating batches."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(batches):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(times):
                call()
            least[name] = min(least[name], (time.thread_time() - start) * 1e6 / times)
    return least


def costs(compiler: Callable[..., Any], program: Program, breaks: int, x: torch.Tensor) -> tuple[float, float]:
    """Microseconds that one break adds, and that one graph takes."""
    broken, whole, alone = compiler(program), compiler(program), compiler(half)
    calls: dict[str, Callable[[], object]] = {
        "broken": lambda: broken(x, BREAKS),
        "whole": lambda: whole(x, CAPTURED),
        "alone": lambda: alone(x),
        "native": lambda: BREAKS(TEXT),
    }
    for call in calls.values():
        for _ in range(3):
            call()
    least = microseconds(calls)
    return (least["broken"] - least["whole"]) / breaks - least["native"], least["alone"]


def made_by_hand(results: int, grad: bool) -> Callable[..., Any]:
    like = torch.empty(8)

    def make(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([torch.empty_like(like) for _ in range(results)])

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ctx.save_for_backward(given[0])
            return make()

    return Step.apply if grad else make


def cost_by_hand(graphs: tuple[tuple[int, ...], ...], x: torch.Tensor) -> float:
    """Microseconds that one break adds where functions by hand stand for the graphs."""
    grad = x.requires_grad
    functions = [[made_by_hand(count, grad) for count in (counts if grad else (sum(counts),))] for counts in graphs]
    last = functions[-1][-1]

    def broken() -> None:
        found: tuple[torch.Tensor, ...] = (x,)
        for graph in functions:
            results = graph[0](*found)
            for other in graph[1:]:
                results += other(*results)
            found = results

    least = microseconds({"broken": broken, "whole": lambda: last(x)})
    return (least["broken"] - least["whole"]) / (len(graphs) - 1)


def main() -> None:
    texts: dict[tuple[bool, str], list[str]] = {(grad, name): [] for grad in (False, True) for name in PROGRAMS}
    # torch.compile comes last: from its first use on, its hook for frames makes all calls of this thread dearer
    for system, compiler in (("by hand", None), ("stator", stator.compile), ("torch.compile", torch.compile)):
        for (grad, name), found in texts.items():
            program, graphs = PROGRAMS[name]
            x = torch.randn(8, requires_grad=grad)
            if compiler is None:
                found.append(f"{system} {cost_by_hand(graphs, x):.1f} us a break")
            else:
                cost, graph = costs(compiler, program, len(graphs) - 1, x)
                found.append(f"{system} {cost:.1f} us a break (a graph by itself: {graph:.1f})")
    for (grad, name), found in texts.items():
        print(f"{'with' if grad else 'without'} gradients, {name}: {', '.join(found)}")


if __name__ == "__main__":
    main()
