"""Random programs that write to their inputs, in between reading them in other places, equal eager."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from stator.base.config import Options
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower
from stator.pipeline import compile_graph

SIZE = 20


def values_of(x: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    """Ways to compute a matrix from one: in the same place, elsewhere, from whole rows or columns."""
    return [
        lambda: x * 0.5,
        lambda: x.sin(),
        lambda: x.t() * 0.5,
        lambda: x.flip(0),
        lambda: x.roll(1, 1),
        lambda: x - x.mean(-1, keepdim=True),
        lambda: x.mean(0, keepdim=True) - x,
        lambda: x.softmax(-1),
        lambda: x[:1] + x[:, :1],
        lambda: (x @ x.t()) * 0.05,
        lambda: torch.mm(x, x) * 0.05,
        lambda: x.cumsum(0) * 0.1,
        lambda: x.sum() * 0.01 + x,
        lambda: torch.where(x > 0, x, -x),
    ]


def program(seed: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Some writes to inputs and some results, the same for one seed."""

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        choose = random.Random(seed)
        results = []
        for _ in range(choose.randint(2, 6)):
            source, target = choose.choice(inputs), choose.choice(inputs)
            value = choose.choice(values_of(source))()
            if choose.random() < 0.3:
                value = value + choose.choice(values_of(choose.choice(inputs)))()
            kind = choose.randrange(6)
            if kind == 0:
                results.append(value)
            elif kind == 1:
                target.add_(value.clone())
            elif kind == 2:
                target.copy_(value.clone())
            elif kind == 3:
                target[2:9].mul_(value.clone().expand(SIZE, SIZE)[4:11])
            elif kind == 4:
                target.lerp_(value.clone().expand(SIZE, SIZE), 0.3)
                results.append(target * 2)
            else:
                results.append(target.clone())
                target.sub_(value.clone())
        return tuple(results)

    return run


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    torch.manual_seed(seed)
    layouts = [lambda x: x, lambda x: x.t().contiguous().t(), lambda x: x.repeat_interleave(2, 1)[:, ::2]]
    inputs = [layouts[(seed + at) % 3](torch.randn(SIZE, SIZE)) for at in range(3)]
    expected = [torch.empty_strided(x.shape, x.stride()).copy_(x) for x in inputs]
    function = program(seed)
    traced = trace(function, inputs, keep=can_lower)
    traced.graph.meta["mutated"] = list(traced.mutated)
    call = compile_graph(traced.graph, inputs, options=Options(verify=True))
    outputs = function(*expected)
    results = call(*inputs)
    for index, position in traced.mutated:
        if results[position] is not None:
            inputs[index].copy_(results[position])
    torch.testing.assert_close(inputs, expected, rtol=1e-4, atol=1e-4)
    fresh = [results[output.position] for output in traced.outputs]
    torch.testing.assert_close(fresh, list(outputs), rtol=1e-4, atol=1e-4)
