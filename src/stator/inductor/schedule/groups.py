"""The schedule as data: fused groups of loop nodes, and library calls, in order of execution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from stator.inductor.buffers import Extern, Loops, View
from stator.inductor.convolutions import DirectConvolution


@dataclass(frozen=True, slots=True)
class Matrices:
    """A side of a batch of products: element (batch, row, column) lies in `buffer` at `offset`, plus the three indices
    times `strides`."""

    buffer: str
    offset: Any
    strides: tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Ends:
    """Where groups end that data divides rows or the depth into; each begins where the one before ends. `place`: of
    `count` numbers, int32, in the order of columns.

    Rows of a group are multiplied by a matrix of its own on the right, which lies there in the place of a batch; rows
    behind all groups have sums of zero. A group of the depth is what one product of a batch adds up.
    """

    place: Matrices
    count: int
    along_depth: bool


@dataclass(frozen=True, slots=True)
class Windows:
    """The rows of a left side, where these are windows of images between zeros: row (image, position) is what a kernel
    of a convolution multiplies there, along the depth (tap, channel). An element outside of its image is zero.

    By axis of the images: their sizes, those of the result (the positions), the taps, and the distance in memory of
    neighbours; `apart`: of images.
    """

    images: tuple[Any, ...]
    positions: tuple[Any, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    strides: tuple[Any, ...]
    apart: Any


@dataclass(frozen=True, slots=True)
class ProductPart:
    """Products with one left side and equally many columns, computed tile by tile, and the loops that follow.

    The first members of `epilogue` load the sums of products, in float32, from `sums`, names without memory. Each
    member loops over (batch, rows, columns).
    """

    rights: tuple[Matrices, ...]
    sums: tuple[str, ...]
    columns: Any
    epilogue: tuple[Loops, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """How programs share the work: each computes rows x columns of a result, in steps of `depth`. split: programs that
    share the depth; each stores sums of its own, which the loops behind add up. programs: at most so many, which
    compute one tile after the other, of a launch of one part; 0 stands for a program for each tile."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    split: int = 1
    programs: int = 0


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products of one left side that run in one launch. Programs are divided between the parts.

    ends: of groups of rows, then batch is 1, or of groups of the depth, one for each of the batch.
    windows: what rows of the left side are, in place of rows at one distance: the batch are groups of channels.
    steps: the library calls and groups that this launch replaces, by parts.
    """

    left: Matrices
    batch: Any
    rows: Any
    depth: Any
    dtype: torch.dtype  # of all sides
    parts: tuple[ProductPart, ...]
    steps: tuple[tuple[Group | Extern, ...], ...]
    tile: Tile | None = None
    ends: Ends | None = None
    windows: Windows | None = None

    @property
    def operands(self) -> tuple[str, ...]:
        """The buffers that programs read in other places than they write."""
        rights = [right.buffer for part in self.parts for right in part.rights]
        ends = [] if self.ends is None else [self.ends.place.buffer]
        return tuple(dict.fromkeys([self.left.buffer, *rights, *ends]))


@dataclass(frozen=True, slots=True)
class Group:
    """Loop nodes that become one kernel. They share their outer loops, `ranges`; a member with a body over other loops
    has been re-indexed to these. `internal`: buffers that live and die inside the kernel and need no memory (codegen
    keeps them in registers or in a scratch row). `reads`/`writes`: buffers in memory, in argument order.

    The first len(ranges) `vars` of every member are the shared loops, under the same symbols in all members. The
    further loops of a member, `vars` (pointwise) or `reduction_vars`, are the inner loops, `inner_ranges`: a member
    has either none or all of them, under the same symbols as other members.

    rows_each: so many iterations of the only shared loop run one after the other, and add up what stores of mode
    "row_sum" store; 0 where no member has such stores.
    """

    name: str
    members: tuple[Loops, ...]
    ranges: tuple[Any, ...]
    internal: frozenset[str]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    inner_ranges: tuple[Any, ...] = ()
    rows_each: int = 0


@dataclass(frozen=True, slots=True)
class TiledGroup(Group):
    """A group computed in tiles. Its members loop over different ranges, so `ranges` is empty."""

    @property
    def operands(self) -> frozenset[str]:
        """The buffers that programs read in other places than they write."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductGroup(TiledGroup):
    """Matrix products, and the loop nodes that read their sums: the members of all parts, in order."""

    products: Products

    @property
    def operands(self) -> frozenset[str]:
        return frozenset(self.products.operands)


# Names of the values that the loops of an attention exchange, which have no memory
QUERIES, KEYS, VALUES, PRODUCTS, SCORES, WEIGHTED = (
    f"the {name}" for name in ("queries", "keys", "values", "products", "scores", "weighted values")
)


# Names of what its gradients exchange: of the result, which is given, and of what a program computes
TANGENT, OF_QUERIES, OF_KEYS, OF_VALUES, OF_SCORES = (
    f"the gradient of {name}" for name in ("the result", "queries", "keys", "values", "scores")
)


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """How a program works: on so many rows at a time, in steps of so many keys. parts: programs that share the keys of
    a row; each stores what it found for its own keys, and loops behind join this."""

    rows: int
    keys: int
    warps: int
    stages: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Attention:
    """The softmax, along keys, of scores, multiplied by values. Scores are what loops make of the products of queries
    and keys.

    queries, keys, values: loops over (batch, row, depth), (batch, depth, key) and (batch, key, width) that store
    QUERIES, KEYS and VALUES. scores: loops over (batch, row, key) that load PRODUCTS, in float32, and store SCORES.
    epilogue: loops over (batch, row, width) that load WEIGHTED, in float32. Each kind of loops has symbols of its own.
    hidden_rows_are_zero: the result of a row whose scores are all minus infinity; otherwise NaN. causal: scores of keys
    behind a row's own place are minus infinity, and nothing asks whether their values are numbers.
    statistics: buffers that get the largest score of each row, and the sum of powers of the distances to it; the
    epilogue then gets values that are not divided by this sum.
    tangent: loops over (batch, row, width) that store TANGENT; then the launch computes gradients instead, of all rows
    and keys at once. The loops of its epilogue load OF_QUERIES, over (batch, row, depth), OF_KEYS, over (batch, depth,
    key), OF_VALUES, over (batch, key, width), or OF_SCORES, over (batch, row, key). shared: so many neighbouring heads
    have keys and values in common, and gradients of these.
    steps: the library calls and groups that this launch replaces.
    """

    queries: Loops
    keys: Loops
    values: Loops
    scores: tuple[Loops, ...]
    epilogue: tuple[Loops, ...]
    batch: Any
    rows: Any
    count: Any  # of keys
    depth: Any
    width: Any
    dtypes: tuple[torch.dtype, torch.dtype]  # of the sides of both products
    hidden_rows_are_zero: bool
    causal: bool
    steps: tuple[Group | Extern, ...]
    tile: AttentionTile | None = None
    statistics: tuple[str, ...] = ()
    tangent: Loops | None = None
    shared: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroup(TiledGroup):
    """An attention, and the loops that read its result."""

    attention: Attention

    @property
    def operands(self) -> frozenset[str]:
        return frozenset(self.reads)


SUMS = "the sums of a convolution"  # the name of its elements before the loops that read them; has no memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionGroup(TiledGroup):
    """A convolution, and loop nodes over (1, positions, channels) of its result; the first loads SUMS.

    call: the library call in its place, whose arguments the members do not read.
    """

    convolution: DirectConvolution
    call: Extern
    images: View
    weight: View

    @property
    def operands(self) -> frozenset[str]:
        """Blocks of channels may overlap, and then both compute and write the elements that they share."""
        return frozenset(self.reads)


@dataclass(frozen=True)
class Combination:
    """Groups that run side by side as one kernel: none writes what another reads or writes."""

    name: str
    parts: tuple[Group, ...]

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.reads))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        return tuple([name for part in self.parts for name in part.writes])

    @cached_property
    def members(self) -> tuple[Loops, ...]:
        return tuple([member for part in self.parts for member in part.members])


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[Group | Combination | Extern, ...]
