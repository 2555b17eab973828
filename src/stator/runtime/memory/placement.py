"""Places pieces of memory with known lifetimes in one block. Arithmetic only: compilers use it for constant sizes, and
running programs for sizes that change between calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Spacing:
    """alignment: of each buffer, in bytes. stagger: more bytes behind each buffer of at least a page."""

    alignment: int
    stagger: int


# Buffers with sizes that are powers of two would all start at the same distance from a page's start. Loads of a CPU
# then wait for stores to other buffers at the same distance (4K aliasing). Padding keeps the buffers apart.
CPU = Spacing(64, 192)
# As torch's allocator does. The library's products and attention read whole lines of 128 bytes, and a row that begins
# in the middle of a line touches one line more.
GPU = Spacing(512, 0)

# (first step, last step, bytes)
Piece = tuple[int, int, int]


def place(pieces: Sequence[Piece]) -> tuple[list[int], int]:
    """Return the offset of each piece, and the bytes of the whole. The largest are placed first, each at its lowest
    free offset. Pieces that live at the same time do not overlap."""
    offsets = [0] * len(pieces)
    placed: list[int] = []
    for at in sorted(range(len(pieces)), key=lambda at: (-pieces[at][2], pieces[at][0])):
        start, end, size = pieces[at]
        others = sorted(
            (other for other in placed if pieces[other][0] <= end and start <= pieces[other][1]),
            key=offsets.__getitem__,
        )
        offset = 0
        for other in others:
            if offset + size <= offsets[other]:
                break
            offset = max(offset, offsets[other] + pieces[other][2])
        offsets[at] = offset
        placed.append(at)
    total = max((offset + piece[2] for offset, piece in zip(offsets, pieces, strict=True)), default=0)
    return offsets, total


def spacing_on(device_type: str) -> Spacing:
    return CPU if device_type == "cpu" else GPU


def aligned(count: int, spacing: Spacing) -> int:
    return -(-count // spacing.alignment) * spacing.alignment


def padded(count: int, spacing: Spacing) -> int:
    """The bytes to reserve for a buffer of `count` bytes."""
    return aligned(count, spacing) + (spacing.stagger if count >= _PAGE else 0)
