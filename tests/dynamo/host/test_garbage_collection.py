"""Full collections wait for the end of a compilation, within bounds; nothing of it stays behind."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.dynamo.host.garbage_collection import full_collections_put_off


@pytest.fixture
def full() -> Iterator[Callable[[], int]]:
    """How many full collections started since the last question. Begins right after one."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(0)

    def count() -> int:
        found = len(seen)
        seen.clear()
        return found

    thresholds, old = gc.get_threshold(), [[] for _ in range(20_000)]  # other tests' objects are out of its sight
    gc.collect()
    gc.set_threshold(100, 2, 2)
    gc.callbacks.append(note)
    try:
        yield count
    finally:
        old.clear()
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)


def grow(share: float, kept: list[Any]) -> None:
    """Make objects that stay, as many as this share of all old ones."""
    kept.append([[] for _ in range(int(share * len(gc.get_objects(2))))])


def test_a_full_collection_waits_for_the_end_of_the_block(full: Callable[[], int]) -> None:
    kept: list[Any] = []
    grow(0.5, kept)
    assert full() > 0  # what the block is for
    kept.clear()
    gc.collect()
    full()
    with full_collections_put_off():
        with full_collections_put_off():
            grow(0.5, kept)
        grow(0.1, kept)
        assert full() == 0 and gc.isenabled()
    grow(0.01, kept)
    assert full() == 1


def test_objects_cannot_become_more_without_end(full: Callable[[], int]) -> None:
    kept: list[Any] = []
    with full_collections_put_off():
        grow(1.5, kept)
        assert full() == 1
    grow(0.1, kept)
    assert full() == 0


def test_a_collection_that_the_program_asks_for_runs(full: Callable[[], int]) -> None:
    class Node:
        pass

    kept: list[Any] = []
    with full_collections_put_off():
        node: Any = Node()
        node.itself = node
        dies = weakref.ref(node)
        grow(0.3, kept)
        del node
        assert dies() is not None
        gc.collect()
        assert dies() is None and full() == 1
    grow(0.1, kept)
    assert full() == 0  # the time until the next one counts from there
    grow(0.3, kept)
    assert full() == 1


def test_an_error_ends_the_block(full: Callable[[], int]) -> None:
    with pytest.raises(KeyError), full_collections_put_off():
        raise KeyError
    kept: list[Any] = []
    grow(0.3, kept)
    assert full() == 1


def test_a_forked_child_collects_although_other_threads_compiled(full: Callable[[], int]) -> None:
    kept: list[Any] = []
    with full_collections_put_off():
        child = os.fork()
        if child == 0:
            grow(0.3, kept)
            os._exit(full() != 1)
    assert os.waitpid(child, 0)[1] == 0


def test_compiling_starts_no_full_collection(full: Callable[[], int]) -> None:
    kept: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        grow(0.3, kept)
        return gm.forward

    compiled = stator.compile(lambda x: x.sin(), backend=backend)
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())
    assert kept and full() == 0
