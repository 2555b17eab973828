"""Moving pages of dead memory under fresh memory: only where nobody could notice."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stator.runtime import pages
from stator.runtime.pages import move

PAGE = mmap.PAGESIZE
COUNT = 1 << 20
DONT_NEED = 4  # of madvise

pytestmark = pytest.mark.skipif(not pages.is_supported(), reason="the system cannot move pages")


def bytes_of(value: int, count: int = COUNT) -> torch.Tensor:
    """In one mapping: what moves put together from parts is moved in parts, and pages around seams stay."""
    in_parts = []
    while not is_one_mapping(made := torch.full((count,), value, dtype=torch.uint8)):
        in_parts.append(made)
    return made


def is_one_mapping(tensor: torch.Tensor) -> bool:
    first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() - 1
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= first and last < int(end, 16) for start, end in ranges)


def fresh() -> torch.Tensor:
    """Memory without pages, which reads as zeros."""
    made = bytes_of(9, 8 * COUNT)
    whole = inside(made, 0, made.numel())
    assert ctypes.CDLL(None).madvise(ctypes.c_void_p(whole.data_ptr()), whole.numel(), DONT_NEED) == 0
    made[: -made.data_ptr() % PAGE] = 0  # before the first whole page
    return made


def inside(tensor: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """The whole pages among these bytes."""
    first = -(tensor.data_ptr() + start) % PAGE
    return tensor[start + first :][: (count - first) // PAGE * PAGE]


def resident(tensor: torch.Tensor) -> int:
    return pages._resident(tensor.data_ptr(), tensor.numel())


def moved(make: Callable[[], torch.Tensor], start: int = 0) -> torch.Tensor:
    """What a move from what `make` returns leaves in fresh memory."""
    old = make()
    new = fresh()
    move(old, 0, new, start, COUNT)
    return new


def test_pages_go_from_dead_memory_to_fresh_memory() -> None:
    old = bytes_of(7)
    source = old.data_ptr()
    new = fresh()
    assert resident(inside(new, 0, 8 * COUNT)) == 0
    move(old, 0, new, 3 * PAGE, COUNT)
    got = inside(new, 3 * PAGE, COUNT)[: COUNT - 2 * PAGE]
    assert got.eq(7).all() and resident(got) == got.numel()
    left = -(-source // PAGE) * PAGE
    assert pages._resident(left, COUNT - 2 * PAGE) == 0
    old.fill_(5)  # it stays memory like any other
    assert old.eq(5).all() and got.eq(7).all()


def test_a_part_of_dead_memory_can_be_moved() -> None:
    old = bytes_of(1, 2 * COUNT)
    old[COUNT:] = 2
    new = fresh()
    move(old, COUNT, new, 0, COUNT)
    got = inside(new, 0, COUNT)[: COUNT - 2 * PAGE]
    assert got.eq(2).all()
    assert old[:COUNT].eq(1).all()  # up to the page where the other half begins


def test_memory_that_was_put_together_from_pages_of_several_is_moved_in_parts() -> None:
    first = fresh()
    for number in range(4):
        old = bytes_of(number + 1)
        move(old, 0, first, number * COUNT, COUNT)
        del old
    before = first[: 4 * COUNT].clone()
    second = fresh()
    move(first, 0, second, 0, 4 * COUNT)
    got = inside(second, 0, 4 * COUNT)[: 4 * COUNT - 2 * PAGE]
    shift = -first.data_ptr() % PAGE
    arrived = got.eq(before[shift:][: got.numel()])
    assert arrived.float().mean() > 0.9  # but parts around the seams
    assert resident(got) > 0.9 * got.numel()


def test_memory_that_has_pages_keeps_them() -> None:
    old, new = bytes_of(7), bytes_of(3)
    move(old, 0, new, 0, COUNT)
    assert new.eq(3).all() and old.eq(7).all()


@pytest.mark.parametrize(
    "other",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[3:],
        lambda tensor: tensor.detach(),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor.numpy(),
        lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    ],
    ids=("tensor", "view", "detached", "storage", "array", "capsule"),
)
def test_memory_that_somebody_else_sees_is_left_alone(other: Callable[[torch.Tensor], object]) -> None:
    others, addresses = [], []

    def seen() -> torch.Tensor:
        made = bytes_of(7)
        others.append(other(made))
        addresses.append(made.data_ptr())
        return made

    new = moved(seen)
    assert new[:COUNT].eq(0).all()
    assert ctypes.string_at(addresses[0], COUNT) == b"\7" * COUNT


def test_memory_that_torch_did_not_allocate_is_left_alone() -> None:
    array = bytearray(b"\7" * COUNT)
    assert moved(lambda: torch.frombuffer(array, dtype=torch.uint8))[:COUNT].eq(0).all()
    assert array == b"\7" * COUNT


def test_memory_that_other_processes_may_see_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_bytes(b"\7" * COUNT)
    of_file = functools.partial(torch.from_file, str(file), shared=True, size=COUNT, dtype=torch.uint8)
    assert moved(of_file)[:COUNT].eq(0).all()
    assert file.read_bytes() == b"\7" * COUNT
    assert moved(lambda: bytes_of(7).share_memory_())[:COUNT].eq(0).all()


def test_what_a_graph_saved_is_left_alone() -> None:
    weight = torch.ones(COUNT // 4, requires_grad=True)
    results = []

    def saved() -> torch.Tensor:
        made = torch.full((COUNT // 4,), 3.0)
        results.append(weight * made)
        return made

    assert moved(saved)[:COUNT].eq(0).all()
    results[0].sum().backward()
    assert weight.grad is not None and weight.grad.eq(3).all()


def test_nothing_is_moved_when_there_are_too_many_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_SHARE_OF_MAPPINGS", 1 << 20)
    monkeypatch.setattr(pages, "_room", pages._Room())
    assert moved(lambda: bytes_of(7))[:COUNT].eq(0).all()
    monkeypatch.undo()
    assert moved(lambda: bytes_of(7))[PAGE : COUNT - PAGE].eq(7).any()


def test_nothing_is_moved_where_the_system_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "is_supported", lambda: False)
    assert moved(lambda: bytes_of(7))[:COUNT].eq(0).all()


def test_memory_stays_memory_where_a_move_is_refused() -> None:
    old, new = [bytes_of(7)], fresh()
    child = os.fork()
    if child == 0:  # with more addresses than it may have: the kernel refuses
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))
        move(old.pop(), 0, new, 0, COUNT)
        ctypes.memset(new.data_ptr(), 3, new.numel())  # an operator of torch would want threads: none are left
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_is_moved_where_mappings_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pages, "_room", pages._Room())
    with monkeypatch.context() as context:
        context.setattr(pages, "open", refused, raising=False)
        assert moved(lambda: bytes_of(7))[:COUNT].eq(0).all()
