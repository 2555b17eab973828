"""Branches on truths about masks and ids among the inputs: guarded, so that graphs go on; right when they change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base import counters

X = torch.arange(12.0).reshape(2, 6)
ALL = torch.ones(2, 6, dtype=torch.long)
SOME = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]])


def skips(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x + 1 if mask.all() else x * mask


def padded_where(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if (mask == 1).all():
        return y
    if (mask[:, -1] == 0).any() and not (~mask.bool())[:, 0].any():
        return y * 2
    return y * mask


def packed(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    lengths = mask.sum(dim=-1)
    return x[:, :3] if (lengths > 4).any() and bool(mask.to(torch.bool)[0, 0]) else x - lengths.unsqueeze(1)


def read_out(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, bool]:
    hidden = (mask < 1).flatten().any().item()
    own = torch.ones(2, 6, dtype=torch.long)
    if not own.all() or (torch.zeros_like(own) > 0).any().item():
        return x, hidden
    return x * mask if hidden else x + 3, hidden


@pytest.mark.parametrize("program", [skips, padded_where, packed, read_out])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_each_way_is_one_graph(program: Callable[..., Any], backend: str) -> None:
    counters.clear()
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for mask in (ALL, SOME, LEFT, 1 - ALL, ALL, SOME, LEFT, 1 - ALL):
        torch.testing.assert_close(compiled(X, mask), program(X, mask), rtol=0, atol=0)
    assert counters.counts["graph_breaks"] == 0
    made = counters.counts["frames"]
    for mask in (ALL, SOME, LEFT):  # nothing is compiled for contents that differ where nobody looks
        compiled(X, mask)
    assert counters.counts["frames"] == made <= 4


def test_contents_may_change_as_long_as_the_fact_stays() -> None:
    compiled = stator.compile(lambda x, ids: x if (ids == 7).any() else x + 1, backend="eager", fullgraph=True)
    counters.clear()
    for seed in range(6):
        ids = torch.randint(10, 20, (2, 6), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(compiled(X, ids), X + 1)
    assert counters.counts["frames"] == 1
    assert torch.equal(compiled(X, torch.full((2, 6), 7)), X)


def test_what_was_written_to_meanwhile_is_not_relied_on() -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask[0, 0] = 0
        return x + 1 if mask.all() else x - 1

    def through_another(x: torch.Tensor, mask: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
        view.zero_()
        return x + 1 if mask.all() else x - 1

    assert torch.equal(stator.compile(program, backend="eager")(X, ALL.clone()), X - 1)
    mask = ALL.clone()
    assert torch.equal(stator.compile(through_another, backend="eager")(X, mask, mask[0]), X - 1)
    compiled = stator.compile(through_another, backend="eager")
    assert torch.equal(compiled(X, ALL.clone(), ALL[0].clone()), X + 1)
    mask = ALL.clone()
    assert torch.equal(compiled(X, mask, mask[0]), X - 1)


def test_other_shapes_and_kinds_of_inputs_are_compiled_anew() -> None:
    compiled = stator.compile(skips, backend="eager")
    assert torch.equal(compiled(X, ALL), X + 1)
    assert torch.equal(compiled(X[:, :4], ALL[:, :4]), X[:, :4] + 1)
    assert torch.equal(compiled(X, ALL.bool()), X + 1)
    assert torch.equal(compiled(X, torch.ones(2, 6)), X + 1)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, mask: x + 1 if x.any() else x,
        lambda x, mask: x + 1 if (x * mask).any() else x,
        lambda x, mask: x + 1 if (mask + torch.rand(())).any() else x,
        lambda x, mask: x + 1 if mask.expand(4096, 6)[0].any() else x,
    ],
    ids=["data", "data of both", "random numbers", "large tensors"],
)
def test_other_data_ends_the_graph(program: Callable[..., Any]) -> None:
    with pytest.raises(stator.Unsupported, match="data-dependent-jump"):
        stator.compile(program, backend="eager", fullgraph=True)(X, ALL[:1])
    assert torch.equal(stator.compile(program, backend="eager")(X, ALL[:1]), program(X, ALL[:1]))


def test_facts_that_change_again_and_again_end_the_graph() -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for at in range(6):
            if mask[0, at] > 0:
                x = x + at
        return x

    compiled = stator.compile(program, backend="eager")
    generator = torch.Generator().manual_seed(0)
    counters.clear()
    for _ in range(40):
        mask = torch.randint(0, 2, (3, 6), generator=generator)
        assert torch.equal(compiled(X, mask), program(X, mask))
    assert counters.counts["graph_breaks"] > 0


COEFFICIENTS = torch.tensor([0.2, 0.5, 1.0, 1.0], dtype=torch.float64)
TIMES = torch.linspace(0, 1, 8)


def weighted(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    for at, coefficient in enumerate(table.to(x.dtype)):
        x = x + at if coefficient == 1.0 else x * coefficient
    return x


def in_time(x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    assert (times[1:] > times[:-1]).all()
    for before, after in itertools.pairwise(times):
        x = x + (after - before) if after <= times[5] else x * after
    return x


class Integrate(torch.autograd.Function):
    """Follows branches on times in a forward that autograd does not see."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return in_time(x, times)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad * 2, None


def inside_a_function(x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    return Integrate.apply(x.clone().requires_grad_(), times).detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("program", "vector"), [(weighted, COEFFICIENTS), (in_time, TIMES), (inside_a_function, TIMES)]
)
def test_comparisons_in_vectors_of_floats_are_one_graph(program: Callable[..., Any], vector: torch.Tensor) -> None:
    compiled = stator.compile(program, backend="aot_eager", fullgraph=True)
    for one in (vector, vector.clone(), vector**2, vector * 1.5, vector):
        torch.testing.assert_close(compiled(X, one), program(X, one))


def test_vectors_of_floats_may_change_in_each_call() -> None:
    compiled = stator.compile(in_time, backend="eager")
    generator = torch.Generator().manual_seed(0)
    for number in range(12):
        if number == 8:
            counters.clear()
        times = torch.rand(8, generator=generator).sort().values
        assert torch.equal(compiled(X, times), in_time(X, times))
    assert counters.counts["frames"] == counters.counts["graph_breaks"] == 0


class Inverse(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([0.0, 1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if (1 / self.table)[0] > 0 else x - 1


def test_contents_tell_zeros_of_both_signs_apart() -> None:
    module = Inverse()
    compiled = stator.compile(module, backend="eager", fullgraph=True)
    for zero in (0.0, -0.0, 0.0):
        module.table[0] = zero
        assert torch.equal(compiled(X), module(X))
