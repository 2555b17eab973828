"""The check that no written input shares memory with another input."""

from __future__ import annotations

import torch

from stator.aot.runtime.overlap_check import InputSpans


def apart(tensors: list[torch.Tensor], written: list[int]) -> bool:
    return InputSpans(tensors, written).are_disjoint(tensors)


def test_tensors_of_their_own_lie_apart() -> None:
    assert apart([torch.ones(4), torch.ones(2, 3), torch.ones(0)], [0, 1, 2])


def test_parts_of_one_storage_that_do_not_meet_lie_apart() -> None:
    base = torch.ones(8)
    assert apart([base[:4], base[4:]], [0])
    assert apart([base[4:], base[:4], torch.ones(3)], [0, 1])


def test_what_is_written_may_not_meet_another() -> None:
    base = torch.ones(8)
    assert not apart([base[:5], base[4:]], [0])
    assert not apart([base[:5], base[4:]], [1])
    assert not apart([base, base[6:], torch.ones(2)], [1])
    assert not apart([base[2:3], torch.ones(2), base], [0])


def test_what_is_only_read_may_meet() -> None:
    base = torch.ones(8)
    assert apart([base, base[2:], torch.ones(3)], [2])


def test_the_same_tensor_twice_meets_itself() -> None:
    x = torch.ones(3)
    assert not apart([x, x], [0])


def test_interleaved_views_are_said_to_meet() -> None:
    base = torch.ones(8)
    assert not apart([base[::2], base[1::2]], [0])
    square = torch.ones(4, 4)
    assert not apart([square[:, :2], square[:, 2:]], [0])


def test_layouts_are_those_of_the_first_call() -> None:
    first = [torch.ones(4), torch.ones(4)]
    extents = InputSpans(first, [0])
    base = torch.ones(6)
    assert extents.are_disjoint([torch.ones(4), torch.ones(4)])
    assert not extents.are_disjoint([base[:4], base[2:]])


def test_inputs_whose_sizes_vary_are_measured_in_each_call() -> None:
    extents = InputSpans([torch.ones(4), torch.ones(4)], [0], varying=[1])
    base = torch.ones(12)
    assert extents.are_disjoint([base[8:], base[:8]])
    assert not extents.are_disjoint([base[8:], base[:9]])
