"""Indices that were chosen among so many are known to be classes: one_hot of them ends no graph where the program would
notice that it fails; of all others it does, and the errors are eager's."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import one_hot

import stator
from stator.base.errors import Unsupported

Choice = Callable[[torch.Tensor], torch.Tensor]

KNOWN: list[Choice] = [
    lambda x: torch.topk(x, 2, dim=-1)[1],
    lambda x: x.topk(2).indices.reshape(-1),
    lambda x: torch.argmax(x, -1),
    lambda x: x.argmin(dim=1).unsqueeze(0)[:, 1:],
    lambda x: x.argmax(axis=1).clone().detach(),
    lambda x: x.t().argmax(0),
    lambda x: torch.max(x, 1).indices.long(),
    lambda x: torch.sort(x, descending=True).indices.permute(1, 0),
    lambda x: x.argsort(-1).select(1, 0),
    lambda x: x.min(dim=1)[1].view(2, 3),
]
UNKNOWN: list[Choice] = [
    lambda x: x.argmax(),  # among 24
    lambda x: x.argmax(0),
    lambda x: torch.topk(x, 2, dim=0)[1],
    lambda x: x.argmax(1).add_(1),
    lambda x: x.argmax(1) + 1,
    lambda x: x.argmax(1).to(torch.int8).long(),
    lambda x: torch.maximum(x, -x)[1].long(),
    lambda x: torch.max(x, -x)[1].long(),
    lambda x: torch.topk(x, 2, dim=-1)[0].long(),
    lambda x: x.abs().long(),
]


def run(choose: Choice, x: torch.Tensor, memory: torch.Tensor, log: list[str]) -> torch.Tensor:
    memory.add_(1)  # so the graph cannot be run again
    try:
        return one_hot(choose(x), 4) * 2
    finally:
        log.append("noticed")


def outcome(program: Callable[..., torch.Tensor], choose: Choice, x: torch.Tensor) -> tuple[object, ...]:
    memory, log = torch.zeros(2), list[str]()
    try:
        result: object = program(choose, x, memory, log).tolist()
    except RuntimeError as error:
        result = str(error)
    return result, memory.tolist(), log


@pytest.mark.parametrize("index", range(len(KNOWN)))
def test_chosen_indices_stay_in_the_graph(index: int) -> None:
    compiled = stator.compile(run, backend="eager", fullgraph=True)
    generator = torch.Generator().manual_seed(index)
    for special in (0.0, float("nan"), float("inf")):
        x = torch.randn(6, 4, generator=generator)
        x[1:3, 2] += special
        assert outcome(compiled, KNOWN[index], x) == outcome(run, KNOWN[index], x)


@pytest.mark.parametrize("index", range(len(UNKNOWN)))
def test_others_are_looked_at_and_raise_as_in_eager(index: int) -> None:
    compiled, generator = stator.compile(run, backend="eager"), torch.Generator().manual_seed(index)
    for size in (0.5, 3.0, 100.0):
        x = torch.randn(6, 4, generator=generator) * size
        assert outcome(compiled, UNKNOWN[index], x) == outcome(run, UNKNOWN[index], x)
    whole = stator.compile(run, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match="one_hot, inside of `try` or `with`, may fail on its data"):
        whole(UNKNOWN[index], x, torch.zeros(2), [])


def test_indices_that_are_written_to_after_they_were_seen() -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        indices = x.argmax(1)
        seen = indices.view(-1)
        indices[0] = 9
        return seen

    compiled, x = stator.compile(run, backend="eager"), torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert outcome(compiled, choose, x) == outcome(run, choose, x)
    assert "smaller than num_classes" in str(outcome(compiled, choose, x)[0])


def test_a_number_of_classes_that_changes() -> None:
    def program(x: torch.Tensor, classes: int, memory: torch.Tensor, log: list[str]) -> torch.Tensor:
        memory.add_(1)
        try:
            return one_hot(x.argmax(-1), classes) * 2
        finally:
            log.append("noticed")

    compiled, x = stator.compile(program, backend="eager"), torch.eye(6)
    for classes in (6, 7, 8, 5, 9, 4):
        results = []
        for which in (compiled, program):
            memory, log = torch.zeros(2), list[str]()
            try:
                result: object = which(x, classes, memory, log).tolist()
            except RuntimeError as error:
                result = str(error)
            results.append((result, memory.tolist(), log))
        assert results[0] == results[1]
