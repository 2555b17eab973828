"""torch.use_deterministic_algorithms between calls of compiled programs: what they compute, how often compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import stator
from stator.base import counters


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def plain(x):
    return x.sin() + 1


def asks(x):
    return x + 1 if torch.are_deterministic_algorithms_enabled() else x - 1


def asks_what_happens(x):
    return x + 1 if torch.is_deterministic_algorithms_warn_only_enabled() else x - 1


def asks_for_the_mode(x):
    return x * torch.get_deterministic_debug_mode()


def asks_whether_memory_is_filled(x):
    return x + 1 if torch.utils.deterministic.fill_uninitialized_memory else x - 1


def turns_on_for_a_while(x):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        inside = x + torch.get_deterministic_debug_mode()
    finally:
        torch.use_deterministic_algorithms(before)
    return inside, x + torch.get_deterministic_debug_mode()


# (on, only warn, fill memory), there and back
STATES = [(False, False, True), (True, False, True), (True, True, True), (True, False, False), (False, False, False)]
# so many versions are for all of these: (on), (on, warn), (mode), ...
VERSIONS = {plain: 2, asks: 2, asks_what_happens: 3, asks_for_the_mode: 3, asks_whether_memory_is_filled: 4}


def set_state(on: bool, warn_only: bool, fill: bool) -> None:
    torch.use_deterministic_algorithms(on, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill


@pytest.mark.parametrize("program", VERSIONS, ids=lambda program: program.__name__)
def test_a_version_for_each_answer_and_none_when_it_comes_back(program: Callable[..., torch.Tensor]) -> None:
    compiled, x = stator.compile(program, backend="eager", fullgraph=True), torch.randn(3)
    counters.clear()
    for state in STATES * 2:
        set_state(*state)
        assert torch.equal(compiled(x), program(x)), state
    assert counters.counts["captured_frames"] == VERSIONS[program]


def test_a_frame_may_turn_it_on_for_a_while() -> None:
    compiled, x = stator.compile(turns_on_for_a_while, backend="eager"), torch.randn(3)
    for state in STATES[:3] * 2:
        set_state(*state)
        got = compiled(x)
        mode = torch.get_deterministic_debug_mode()
        set_state(*state)
        expected = turns_on_for_a_while(x)
        assert mode == torch.get_deterministic_debug_mode()
        assert all(map(torch.equal, got, expected)), state
