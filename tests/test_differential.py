"""tests/differential.py sees every difference that it says it compares."""

from __future__ import annotations

import random

import pytest
import torch
from tests.differential import DOUBLE, EXACT, Counts, assert_same, assert_same_outcome, check, corpus, observe

import stator

LOG: list[int] = []
PROGRAMS, program = corpus()


def make() -> tuple[torch.Tensor, list[int]]:
    return torch.arange(3.0, requires_grad=True), [1, 2]


def honest(x: torch.Tensor, items: list[int]) -> object:
    return x * 2


DIFFERENT = {
    "result": lambda x, items: x * 3,
    "dtype": lambda x, items: (x * 2).double(),
    "requires_grad": lambda x, items: (x * 2).detach(),
    "kind": lambda x, items: [x * 2],
    "mutation": lambda x, items: (items.append(3), x * 2)[1],
    "sharing": lambda x, items: x.detach().mul_(2).requires_grad_(),
    "output": lambda x, items: (print("here"), x * 2)[1],
    "random state": lambda x, items: (random.random(), x * 2)[1],
    "torch's random state": lambda x, items: (torch.rand(1), x * 2)[1],
    "gradient": lambda x, items: (x * 2).detach() + x - x.detach(),
    "mode": lambda x, items: (x * 2, torch.set_grad_enabled(False))[0],
    "error": lambda x, items: 1 / 0,
    "log": lambda x, items: (LOG.append(1), x * 2)[1],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_difference_is_seen(name: str) -> None:
    expected, again, found = (
        observe(function, make(), gradients=True, log=LOG) for function in (honest, honest, DIFFERENT[name])
    )
    assert_same_outcome(again, expected)
    with pytest.raises(AssertionError):
        assert_same_outcome(found, expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (0.0, -0.0),
        (1, True),
        ((1,), [1]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (ValueError("a"), ValueError("b")),
        (torch.zeros(2, 2), torch.zeros(2, 2).t()),
        (torch.zeros(1), torch.zeros(1, dtype=torch.float64)),
        (range(2), range(3)),
        ({1}, {2}),
    ],
    ids=str,
)
def test_values_that_differ(found: object, expected: object) -> None:
    if not (isinstance(found, torch.Tensor) and found.dtype == expected.dtype):  # type: ignore[attr-defined]
        with pytest.raises(AssertionError):
            assert_same(found, expected)
    else:  # a transposed square: only the strides differ
        with pytest.raises(AssertionError, match="strides"):
            assert_same(found, expected)


def test_values_that_agree() -> None:
    class Own:
        def __init__(self) -> None:
            self.items, self.me = [float("nan"), torch.tensor([float("nan")])], self

    assert_same(Own(), Own())
    assert_same(1.0 + 1e-12, 1.0, DOUBLE)
    with pytest.raises(AssertionError):
        assert_same(1.0 + 1e-12, 1.0, EXACT)


def test_graphs_and_breaks_are_counted() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        stator.graph_break()
        return x * 2

    counts = Counts()
    check(broken, torch.ones(2), graphs=2, breaks=1)
    assert (counts.graphs, counts.breaks) == (2, 1)
    with pytest.raises(AssertionError, match="1 breaks instead of 0") as raised:
        check(broken, torch.ones(2), breaks=0)
    assert "rerun: python -m pytest -n0 'tests/test_differential.py::test_graphs_and_breaks" in str(raised.value)


@program(lambda: torch.ones(2))
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_a_corpus_get_arguments_of_their_own(program: object) -> None:
    check(program, fullgraph=True, graphs=1, breaks=0)  # type: ignore[arg-type]
