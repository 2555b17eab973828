"""Where intermediates lie in one block of memory."""

from __future__ import annotations

import itertools

import pytest

from stator.runtime.memory.placement import CPU, GPU, padded, place, spacing_on

# The bytes of intermediates of a step over 16 x 197 rows
SIZES = (12608, 4841472, 300, 12608, 151296, 4841472)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_buffers_do_not_overlap_and_begin_at_aligned_addresses(device):
    spacing = spacing_on(device)
    offsets, size = place([(0, 1, padded(one, spacing)) for one in SIZES])
    spans = sorted((offset, offset + one) for offset, one in zip(offsets, SIZES, strict=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)) and spans[-1][1] <= size
    assert all(offset % spacing.alignment == 0 for offset in offsets)


def test_lines_of_gpus_begin_where_buffers_do():
    assert GPU.alignment % 128 == 0 and padded(4096, GPU) == 4096


def test_buffers_of_cpus_lie_at_different_distances_from_their_pages():
    assert padded(4096, CPU) % 4096 != 0
