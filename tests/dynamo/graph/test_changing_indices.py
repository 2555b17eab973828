"""Ints that change between calls as indices, and calls that torch refuses: one version serves all that succeed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stator
from stator.base import counters


def written(x: torch.Tensor, at: int) -> torch.Tensor:
    made = x.clone()
    made[at] = 0.0
    made[:, at] = 1.0
    made[at, 1:] += 2.0
    return made


INDEXED: dict[str, Any] = {
    "row": lambda x, at: x[at] * 2,
    "column": lambda x, at: x[:, at] * 2,
    "row of a part": lambda x, at: x[1:, at, None] * 2,
    "behind ...": lambda x, at: x[..., at] * 2,
    "beside a mask": lambda x, at: x[x[:, 0] > 0, at] * 2,
    "two": lambda x, at: x[at, at] * 2,
    "written": written,
    "in a tensor": lambda x, at: x[torch.tensor([at, 1])] * 2,
    "alone in a tensor": lambda x, at: x + torch.tensor(at),
    "an end of whole numbers": lambda x, at: x[torch.linspace(0, at, 5, dtype=torch.int64)] * 2,
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("numbers", [(3, 5, 7, 0, 1, 6, 2), (-3, -5, -1, -8, -2, -4)], ids=["from 0", "from the end"])
@pytest.mark.fixed_sizes
def test_two_versions_serve_all_indices(name: str, numbers: tuple[int, ...]) -> None:
    compiled = stator.compile(INDEXED[name])
    before = counters.counts["dynamo.compiled_frames"]
    for number in numbers:
        x = torch.randn(8, 8)
        torch.testing.assert_close(compiled(x, number), INDEXED[name](x, number))
    assert counters.counts["dynamo.compiled_frames"] - before <= 2


def test_an_index_beyond_the_end_is_eagers_error() -> None:
    compiled = stator.compile(lambda x, at: x[at] * 2)
    x = torch.randn(8, 8)
    for at in (3, 5, 2):
        compiled(x, at)
    with pytest.raises(IndexError, match="index 8 is out of bounds for dimension 0 with size 8"):
        compiled(x, 8)


REFUSED: dict[str, tuple[Any, list[Any], Any]] = {
    "an int": (lambda n: torch.ones(n) * 2, [(3,), (5,), (7,)], (-1,)),
    "an index": (lambda n: torch.arange(9)[n] * 2, [(3,), (5,), (7,)], (9,)),
    "sizes": (
        lambda x, y: (x * 2 @ y).relu(),
        [(torch.ones(2, n), torch.ones(n, 2)) for n in (3, 5, 7)],
        (torch.ones(2, 4), torch.ones(6, 2)),
    ),
    "sizes that never changed": (
        lambda x, y: (x * 2 @ y).relu(),
        [(torch.ones(2, 3), torch.ones(3, 2))],
        (torch.ones(2, 4), torch.ones(6, 2)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_leaves_later_calls_to_their_versions(name: str) -> None:
    function, calls, refused = REFUSED[name]
    ran: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            ran.append(id(gm))
            return gm.forward(*args)

        return run

    def graphs_of_calls() -> list[int]:
        ran.clear()
        for arguments in calls:
            torch.testing.assert_close(compiled(*arguments), function(*arguments))
        return list(ran)

    compiled = stator.compile(function, backend=backend)
    graphs_of_calls()
    before = graphs_of_calls()
    with pytest.raises((RuntimeError, IndexError)):
        compiled(*refused)
    assert graphs_of_calls() == before


@pytest.mark.parametrize("dynamic", [True, None, False])
def test_an_int_that_the_graph_needs_as_a_constant_is_used_once(dynamic: bool | None) -> None:
    compiled = stator.compile(lambda x, i: x[i], backend="eager", dynamic=dynamic)
    x = torch.randn(3, 5, 4)
    for i in (0, 1, 2, 0, 1):
        assert torch.equal(compiled(x, i), x[i])
