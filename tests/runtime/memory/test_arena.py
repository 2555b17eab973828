"""Blocks of memory for intermediates: kept, shared, grown, given back; safe when calls overlap."""

from __future__ import annotations

import pytest
import torch

from stator.runtime.memory import arena
from stator.runtime.memory.arena import ArenaUser, Block


@pytest.fixture(autouse=True)
def no_idle_blocks():
    arena.clear()
    yield
    arena.clear()


def user(size: int) -> ArenaUser:
    return ArenaUser(size, [(0, (4,), (1,), torch.float32), (64, (2, 3), (1, 2), torch.int64)])


def take(mine: ArenaUser) -> Block:
    """A block, as a printed program takes it."""
    block = arena.idle.pop() if arena.idle else Block()
    assert block.tensors.get(mine.token) or mine.fit(block)
    return block


def test_slots_are_tensors_at_their_offsets() -> None:
    mine = user(256)
    first, second = take(mine).tensors[mine.token]
    assert (first.shape, first.dtype, second.stride(), second.dtype) == ((4,), torch.float32, (1, 2), torch.int64)
    assert second.data_ptr() - first.data_ptr() == 64
    assert first.data_ptr() % 64 == 0


def test_a_block_given_back_is_taken_again_with_the_same_tensors() -> None:
    mine = user(256)
    block = take(mine)
    tensors = block.tensors[mine.token]
    arena.idle.append(block)
    assert take(mine).tensors[mine.token] is tensors


def test_overlapping_calls_get_different_memory() -> None:
    mine = user(256)
    one, two = take(mine), take(mine)
    assert one.memory.data_ptr() != two.memory.data_ptr()


def test_programs_share_memory_when_their_calls_do_not_overlap() -> None:
    small, large = user(256), user(8192)
    block = take(large)
    arena.idle.append(block)
    assert take(small) is block


def test_a_block_too_small_grows_until_it_fits_all() -> None:
    small = user(256)
    arena.idle.append(take(small))
    large = user(1 << 20)
    block = take(large)
    assert block.bytes >= 1 << 20
    arena.idle.append(block)
    assert arena.idle_bytes() == block.bytes


def test_memory_that_nobody_left_needs_is_given_back() -> None:
    small, large = user(256), user(1 << 20)
    arena.idle.append(take(large))
    assert arena.idle_bytes() >= 1 << 20
    del large
    assert arena.idle_bytes() < 1 << 20
    arena.idle.append(take(small))


def test_large_blocks_are_aligned_and_usable() -> None:
    mine = ArenaUser(5 << 20, [(0, (5 << 18,), (1,), torch.float32)])
    (tensor,) = take(mine).tensors[mine.token]
    tensor.fill_(1.0)
    assert tensor.sum().item() == 5 << 18


def test_tensors_made_in_inference_mode_work_outside_of_it() -> None:
    mine = user(256)
    with torch.inference_mode():
        block = take(mine)
    first, _ = block.tensors[mine.token]
    assert not first.is_inference()
    torch.add(torch.ones(4), 1.0, out=first)


@pytest.fixture
def gpu(monkeypatch):
    """The state of a GPU: the current stream, and whether a graph is being captured."""
    state = {"stream": 1, "capturing": False}
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: state["stream"], raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: state["capturing"], raising=False)
    yield state
    arena._of_streams.clear()


GPU = torch.device("cuda", 0)


def test_each_stream_of_a_gpu_has_blocks_of_its_own(gpu) -> None:
    find = arena.idle_on(GPU)
    block = Block()
    find().append(block)
    gpu["stream"] = 2
    assert not find()
    gpu["stream"] = 1
    assert find().pop() is block


def test_a_block_of_a_graph_that_somebody_captures_is_taken_by_nobody_else(gpu) -> None:
    find = arena.idle_on(GPU)
    find().append(Block())
    gpu["capturing"] = True
    assert not find()
    find().append(Block())
    assert not find()
    gpu["capturing"] = False
    assert len(find()) == 1
