"""Values that eager refuses after a look at them are refused by what operators are decomposed into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stator

BACKENDS = ("eager", "aot_eager", "inductor")
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {
    "class too large": (lambda x: F.one_hot(x, 3), (torch.tensor([1, 2]),), (torch.tensor([1, 5]),)),
    "class negative": (lambda x: F.one_hot(x, 3) + 1, (torch.tensor([0, 2]),), (torch.tensor([1, -1]),)),
    "class beside what is differentiated": (
        lambda x, weight: F.one_hot(x, 3) * weight,
        (torch.tensor([0, 2]), torch.ones(3, requires_grad=True)),
        (torch.tensor([1, 3]), torch.ones(3, requires_grad=True)),
    ),
    "probability": (
        lambda x: F.binary_cross_entropy(x, x * 0),
        (torch.tensor([0.3, 0.7]),),
        (torch.tensor([2.0, 0.7]),),
    ),
    "no number": (
        lambda x: F.binary_cross_entropy(x, x * 0),
        (torch.tensor([0.3, 0.7]),),
        (torch.tensor([float("nan"), 0.7]),),
    ),
    "target": (
        lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
        (torch.tensor([0.3]), torch.tensor([1.0])),
        (torch.tensor([0.3]), torch.tensor([1.5])),
    ),
    "assertion": (
        lambda x: (torch._assert_async(x.any(), "nothing there"), x + 1)[1],
        (torch.tensor([0.0, 1.0]),),
        (torch.zeros(2),),
    ),
}


def outcome(function: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_what_eager_refuses(case: str, backend: str) -> None:
    function, taken, refused = CASES[case]
    compiled = stator.compile(function, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(*taken), function(*taken))
        assert outcome(compiled, refused) == outcome(function, refused) != ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_handler_of_the_program_gets_the_error(backend: str) -> None:
    def program(x: torch.Tensor, seen: torch.Tensor) -> Any:
        seen.add_(1)
        try:
            return F.one_hot(x, 3)
        except RuntimeError as error:
            return str(error), seen.clone()

    compiled, seen, expected = stator.compile(program, backend=backend), torch.zeros(1), torch.zeros(1)
    assert compiled(torch.tensor([7]), seen) == program(torch.tensor([7]), expected)
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_classes_for_nothing(backend: str) -> None:
    with pytest.raises(RuntimeError, match="Can not infer total number of classes from empty tensor"):
        stator.compile(lambda x: F.one_hot(x[:0], 0), backend=backend)(torch.tensor([1]))
