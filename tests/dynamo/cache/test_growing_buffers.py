"""Buffers whose sizes change from call to call: one program for all sizes from the second one on."""

from __future__ import annotations

import pytest
import torch
from tests.differential import Counts

import stator


class Appending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.zeros(1, 4))
        self.scale = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.buf = torch.cat([self.buf, x])
        return (self.buf * self.scale).cumsum(0)


class Reading(Appending):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.buf * self.scale).sum(0) + x


def step(module: torch.nn.Module, run, x: torch.Tensor) -> torch.Tensor:
    if type(module) is Reading:
        module.buf = torch.cat([module.buf, x])
    found = run(x)
    found.sum().backward()
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(("kind", "versions"), [(Appending, 1), (Reading, 2)])
def test_a_buffer_that_grows_is_compiled_once_where_the_frame_replaces_it(
    kind: type[Appending], versions: int, dynamic: bool | None
) -> None:
    first, second = kind(), kind()
    second.load_state_dict(first.state_dict())
    compiled = stator.compile(first, backend="aot_eager", dynamic=dynamic)
    counts = Counts()
    for _ in range(6):
        x = torch.randn(2, 4)
        torch.testing.assert_close(step(first, compiled, x), step(second, second, x))
        torch.testing.assert_close(first.buf, second.buf)
    torch.testing.assert_close(first.scale.grad, second.scale.grad)
    assert counts.compilations == versions


def test_a_tensor_that_grows_in_a_dictionary_is_compiled_once() -> None:
    def program(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        state["keys"] = torch.cat([state["keys"], x])
        return state["keys"] @ x.T

    compiled, counts, x = stator.compile(program, backend="aot_eager"), Counts(), torch.randn(2, 4)
    found, expected = ({"keys": torch.zeros(3, 4)} for _ in range(2))
    for _ in range(4):
        torch.testing.assert_close(compiled(found, x), program(expected, x))
        torch.testing.assert_close(found, expected)
    assert counts.compilations == 1


@pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing
def test_a_table_of_positions_that_grows_has_a_version_for_each_branch_and_two_for_first_sizes() -> None:
    class Positions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(8.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > self.table.shape[0]:
                self.table = torch.arange(float(x.shape[0]))
            return x + self.table[: x.shape[0], None]

    module = Positions()
    compiled, counts = stator.compile(module, backend="aot_eager"), Counts()
    for rows in (5, 7, 12, 20, 30, 6, 40, 33):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x + torch.arange(float(rows))[:, None])
    assert counts.compilations == 4  # the first size, a short table, longer rows, a longer table


def test_sizes_of_other_modules_buffers_are_constants() -> None:
    compiled = stator.compile(Reading.forward, backend="aot_eager")
    counts, x = Counts(), torch.randn(5, 4)
    for rows in (2, 3, 4, 5):
        module = Reading()
        module.buf = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(module, x), module(x))
    assert counts.compilations == 4
