"""Taking over a tensor's memory: only where nobody else could notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stator.runtime.memory.ownership import memory_reuser

COUNT = 1024
take = memory_reuser((32, 32), (1, 32), torch.float32, 4 * COUNT)


def taken(make: Callable[[], torch.Tensor]) -> bool:
    """Does `take` give the memory of the tensor that `make` returns?"""
    old = make()
    address = old.data_ptr()
    new = take(old)
    assert new.shape == (32, 32) and new.stride() == (1, 32) and new.dtype == torch.float32
    return new.data_ptr() == address


def test_memory_that_only_a_variable_holds_is_taken_over_in_another_layout_and_dtype() -> None:
    assert taken(lambda: torch.zeros(COUNT))
    assert taken(lambda: torch.zeros(COUNT // 2, dtype=torch.int64))


def test_what_is_taken_over_is_no_view_and_has_a_version_of_its_own() -> None:
    old = torch.zeros(COUNT)
    old.add_(1)
    new = take(old)
    assert new.data_ptr() == old.data_ptr()
    before = old._version
    new.add_(1)
    assert not new._is_view() and not new.requires_grad and old._version == before


def test_a_tensor_that_somebody_else_has_is_left_alone() -> None:
    others: list[torch.Tensor] = []

    def shared() -> torch.Tensor:
        others.append(torch.zeros(COUNT))
        return others[-1]

    assert not taken(shared)


@pytest.mark.parametrize(
    "other",
    [
        lambda tensor: tensor[3:],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor.numpy(),
        lambda tensor: memoryview(tensor.numpy()),
    ],
    ids=("view", "detached", "storage", "array", "buffer"),
)
def test_memory_that_somebody_else_sees_is_left_alone(other: Callable[[torch.Tensor], object]) -> None:
    others = []

    def seen() -> torch.Tensor:
        made = torch.zeros(COUNT)
        others.append(other(made))
        return made

    assert not taken(seen)


def test_memory_of_an_array_is_left_alone() -> None:
    array = torch.zeros(COUNT).numpy().copy()
    assert not taken(lambda: torch.from_numpy(array))
    assert not taken(lambda: torch.frombuffer(bytearray(4 * COUNT), dtype=torch.float32))


def test_memory_that_other_processes_may_see_is_left_alone() -> None:
    assert not taken(lambda: torch.zeros(COUNT).share_memory_())


def test_memory_of_another_size_is_left_alone() -> None:
    assert not taken(lambda: torch.zeros(2 * COUNT))
    assert not taken(lambda: torch.zeros(2 * COUNT)[:COUNT])


def test_a_tensor_that_a_graph_saved_is_left_alone() -> None:
    weight = torch.ones(COUNT, requires_grad=True)
    results = []

    def saved() -> torch.Tensor:
        made = torch.full((COUNT,), 3.0)
        results.append(weight * made)
        return made

    assert not taken(saved)
