"""Results of one operator are of one node for autograd, as in eager: hooks, prehooks and places among its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

Tensor = torch.Tensor


class Both(torch.autograd.Function):
    """A backward that is not a sum of what each gradient gives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None or second is None:
            return first if second is None else second * 2
        return first * second


def maximum(x: Tensor) -> Any:
    largest, at = (x * 2).max(1)
    return largest, at, largest.sin()


PROGRAMS: dict[str, Callable[..., Any]] = {
    "custom": lambda x: Both.apply(x * 2),
    "custom and what was computed from it": lambda x: (*(both := Both.apply(x * 2)), both[0].exp()),
    "only the second": lambda x: (Both.apply(x * 2)[1], x.exp()),
    "deviation and mean": lambda x: torch.std_mean(x * 2, 1),
    "with an index": maximum,
    "sorted": lambda x: ((x * 2).sort(1)[0], x.sin()),
    "beside other inputs": lambda x: (*torch.std_mean(x * 2, 1), x[0] * 1),
}


def _seen(call: Callable[..., Any], roots: tuple[int, ...], kind: str) -> Any:
    x = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    results = [one for one in call(x) if one.requires_grad]
    log: list[Any] = []
    for at, one in enumerate(results):
        if kind == "hooks":
            one.register_hook(lambda gradient, at=at: log.append((at, gradient)))
        elif kind == "prehooks":
            one.grad_fn.register_prehook(lambda gradients, at=at: log.append((at, *gradients)))
        elif kind == "changing":
            one.register_hook(lambda gradient: None if gradient is None else gradient * 3)
        elif kind == "retained":
            one.retain_grad()
    chosen = [results[at] for at in roots if at < len(results)]
    sum((one * (at + 2)).sum() for at, one in enumerate(chosen)).backward(create_graph=kind == "again")
    found = [x.grad, [one.output_nr for one in results]]
    found.append([len(one.grad_fn._input_metadata) for one in results])
    if kind == "retained":
        found += [one.grad for one in results]
    return sorted(log, key=lambda entry: entry[0]), found


@pytest.mark.parametrize("kind", ["hooks", "prehooks", "changing", "retained", "again"])
@pytest.mark.parametrize("roots", [(0,), (1,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str, roots: tuple[int, ...], kind: str) -> None:
    program = PROGRAMS[name]
    expected = _seen(program, roots, kind)
    found = _seen(stator.compile(program, backend="aot_eager", fullgraph=True), roots, kind)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
