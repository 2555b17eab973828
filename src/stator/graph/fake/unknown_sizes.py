"""Operators with data-dependent result sizes: rules for the layouts of their results, with symbolic sizes known only at
run time.

Graphs hold a check (`prims.operators.checks.require`) of each assumption about such sizes; nothing is recorded here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.registry import Registry
from stator.prims.layout import broadcast_shapes, contiguous_strides, holds, is_unknown, numel
from stator.prims.operators.mask_indices import true_indices
from stator.prims.record import TensorMeta
from stator.prims.shape_rules.composites import TensorFromMeta
from stator.prims.shape_rules.indexing import MASKS, index
from stator.shapes.environment import Environment
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_sym_int

from .fake_tensor import FakeTensor

aten = torch.ops.aten

# Returns an operator's results with TensorMetas in place of tensors, or numbers, or NotImplemented.
Rule = Callable[..., Any]
rules: Registry[OpOverload, Rule] = Registry("operator whose result's size depends on data")


LARGEST = torch.iinfo(torch.int64).max  # which stands for the end in slices


def rely_on_copy(target: Any, args: Sequence[Any], result: Any) -> Any:
    """Return the result of a torch function or method. Where it had to copy because of the order of dimensions, it
    shares memory if all but one of them have at most one element: rely on more."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in _COPIES_WHERE_NEEDED and isinstance(args[0], FakeTensor) and isinstance(result, FakeTensor):
        source = args[0]
        if result.fake_storage is not source.fake_storage and result.dtype is source.dtype:
            for size in source.meta.shape:
                if is_unknown(size) and not holds(size > 1):
                    break
    return result


_COPIES_WHERE_NEEDED = frozenset(("contiguous", "reshape", "reshape_as", "flatten", "ravel", "to"))


class UnknownSizes:
    """The unknown sizes of one program. Equal masks share one size, and reads of one number share a symbol.
    `answered` counts the operators with a rule.

    environment: what is known about the sizes of the program's inputs, if these have symbols.
    """

    def __init__(self, environment: Environment | None = None) -> None:
        self.environment = Environment(assumes=True) if environment is None else environment
        self._made_of: dict[Any, tuple[Any, Any]] = {}
        self.answered = 0
        self._made: list[Symbol] = []
        self._used = 0

    def begin_anew(self) -> None:
        """Give the next trace of the program the symbols of the trace before, in order."""
        self._made_of.clear()
        self._used = 0

    def number(self, low: float = -math.inf, high: float = math.inf) -> Any:
        """Make a symbolic number between these bounds."""
        if low == high:
            return int(low)
        if self._used == len(self._made):
            self._made.append(self._new_symbol(low, high))
        self._used += 1
        return to_sym_int(self.environment, self._made[self._used - 1])

    def _new_symbol(self, low: float, high: float) -> Symbol:
        number = len(self._made) + 1
        while Symbol(f"u{number}") in self.environment.ranges:
            number += 1
        return self.environment.symbol(f"u{number}", None, low, high)

    def size(self, at_most: Any, at_least: int = 0) -> Any:
        return self.number(at_least, at_most if type(at_most) is int else LARGEST)

    def count(self, mask: FakeTensor) -> Any:
        """Return the symbolic number of nonzero elements of a tensor."""
        return self._of_contents("count", mask, lambda: self.size(numel(mask.meta.shape)))

    def counted(self, mask: FakeTensor) -> Any:
        """Return the symbolic number of nonzero elements of a tensor, if an operator has told it; else None."""
        known = self._made_of.get(_contents_key("count", mask))
        return None if known is None else known[1]

    def whole(self, single: FakeTensor) -> Any:
        """Return the whole number in a tensor of one element as a symbolic number."""
        info = torch.iinfo(single.dtype)
        return self._of_contents("number", single, lambda: self.number(info.min, info.max))

    def whole_numbers(self, fake: FakeTensor) -> list[Any] | None:
        """The numbers in a tensor of whole numbers and known shape, in order; None for other tensors."""
        if fake.dtype not in WHOLE or any(type(size) is not int for size in fake.shape):
            return None
        info = torch.iinfo(fake.dtype)
        self.answered += 1
        return [self.number(info.min, info.max) for _ in range(fake.numel())]

    def _of_contents(self, what: str, fake: FakeTensor, make: Callable[[], Any]) -> Any:
        """Return a number that follows from the contents of a tensor, the same until they change."""
        key = _contents_key(what, fake)
        found = self._made_of.get(key)
        if found is None:
            found = self._made_of[key] = (fake.fake_storage, make())
        return found[1]

    def results(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply the operator's rule; NotImplemented if there is none."""
        rule = rules.get(func)
        result = NotImplemented if rule is None else rule(self, *args, **kwargs)
        self.answered += result is not NotImplemented
        return result


def _contents_key(what: str, fake: FakeTensor) -> tuple[Any, ...]:
    """Equal for equal tensors until their contents change."""
    storage, meta = fake.fake_storage, fake.meta
    return what, id(storage), storage.version, str((meta.shape, meta.stride, meta.offset)), meta.dtype


def _fresh(shape: tuple[Any, ...], dtype: torch.dtype, like: Any, stride: tuple[Any, ...] | None = None) -> TensorMeta:
    return TensorMeta(shape, contiguous_strides(shape) if stride is None else stride, dtype, like.device)


@rules.register(aten.nonzero.default)
def _nonzero(unknown: UnknownSizes, self: Any) -> TensorMeta:
    """Return one row per element, laid out column by column."""
    count = unknown.count(self)
    return _fresh((count, len(self.shape)), torch.int64, self, (1, count))


@rules.register(aten.masked_select.default)
def _masked_select(unknown: UnknownSizes, self: Any, mask: Any) -> TensorMeta:
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    shape = broadcast_shapes(tuple(self.shape), tuple(mask.shape))
    whole = len(shape) == len(mask.shape) and all(a is b or a == b for a, b in zip(shape, mask.shape, strict=True))
    return _fresh((unknown.count(mask) if whole else unknown.size(numel(shape)),), self.dtype, self)


@rules.register(aten.index.Tensor)
def _index(unknown: UnknownSizes, self: Any, indices: Any) -> Any:
    """Apply the rule of indexing to the indices of masks' elements."""

    def columns(mask: Any) -> Sequence[Any]:
        places = TensorMeta((unknown.count(mask),), (1,), torch.int64, mask.device)
        return [TensorFromMeta(places)] * len(mask.shape)

    return index(self, masks_expanded(self, indices, columns))


def masks_expanded(tensor: Any, indices: Sequence[Any], columns: Callable[[Any], Sequence[Any]]) -> list[Any]:
    """The indices of a tensor with the indices of its elements in place of each mask: `columns(mask)` gives one for
    each of the mask's dimensions."""
    shape = tuple(tensor.shape)
    expanded: list[Any] = []
    for given in indices:
        if given is None or given.dtype not in MASKS:
            expanded.append(given)
            continue
        own, at = tuple(given.shape), len(expanded)
        if len(own) > len(shape) - at or not all(holds(a == b) for a, b in zip(own, shape[at:], strict=False)):
            raise IndexError(f"The shape of the mask {list(own)} at index {at} does not match {list(shape)}")
        expanded += columns(given)
    return expanded


def _at_least_one(shape: Any) -> int:
    """Return a lower bound of the number of distinct elements."""
    count = numel(tuple(shape))
    return 1 if type(count) is int and count else 0


def _distinct(unknown: UnknownSizes, self: Any, inverse: bool, counts: bool) -> tuple[TensorMeta, ...]:
    shape = tuple(self.shape)
    size = unknown.size(numel(shape), _at_least_one(shape))
    return (
        _fresh((size,), self.dtype, self),
        _fresh(shape if inverse else (0,), torch.int64, self),
        _fresh((size,) if counts else (0,), torch.int64, self),
    )


@rules.register(aten.unique_consecutive.default)
def _unique_consecutive(
    unknown: UnknownSizes, self: Any, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    if dim is not None:
        return _distinct_slices(unknown, self, dim)
    return _distinct(unknown, self, return_inverse, return_counts)


def _distinct_slices(unknown: UnknownSizes, self: Any, dim: int) -> Any:
    """Lay out the distinct slices as torch does: move them to the front, make them contiguous, select, and move them
    back."""
    shape = tuple(self.shape)
    dim = dim % max(len(shape), 1)
    if not shape or (type(numel(shape)) is int and not numel(shape)):
        return NotImplemented
    size = unknown.size(shape[dim], 1 if type(shape[dim]) is int else 0)
    rest = shape[:dim] + shape[dim + 1 :]
    strides = list(contiguous_strides((size, *rest)))
    first = strides.pop(0)
    strides.insert(dim, first)
    return (
        _fresh((*shape[:dim], size, *shape[dim + 1 :]), self.dtype, self, tuple(strides)),
        _fresh((shape[dim],), torch.int64, self),
        _fresh((size,), torch.int64, self),
    )


@rules.register(aten.bincount.default)
def _bincount(unknown: UnknownSizes, self: Any, weights: Any = None, minlength: int = 0) -> Any:
    if type(minlength) not in (int, torch.SymInt) or len(self.shape) != 1:
        return NotImplemented
    dtype = torch.int64
    empty = type(self.shape[0]) is int and self.shape[0] == 0  # then ATen does not look at the weights
    if weights is not None and not empty:
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
    size = unknown.size(None, minlength if type(minlength) is int else 0)
    return _fresh((size,), dtype, self) if type(minlength) is int or holds(size >= minlength) else NotImplemented


@rules.register(aten._local_scalar_dense.default, aten.item.default)
def _whole_number(unknown: UnknownSizes, self: Any) -> Any:
    """Return an int; numbers of other dtypes are no sizes."""
    return unknown.whole(self) if self.dtype in WHOLE else NotImplemented


WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


def nested_lists(numbers: Iterator[Any], shape: Sequence[int]) -> Any:
    """Numbers as Tensor.tolist() returns those of a tensor of this shape."""
    return [nested_lists(numbers, shape[1:]) for _ in range(shape[0])] if shape else next(numbers)


rules.add_all(
    {
        true_indices: lambda unknown, mask: _fresh((len(mask.shape), unknown.count(mask)), torch.int64, mask),
        aten._unique2.default: lambda unknown, self, sorted=True, return_inverse=False, return_counts=False: _distinct(
            unknown, self, return_inverse, return_counts
        ),
        aten._unique.default: lambda unknown, self, sorted=True, return_inverse=False: _distinct(
            unknown, self, return_inverse, False
        )[:2],
        aten.unique_dim.default: lambda unknown, self, dim, *_flags, **_named: _distinct_slices(unknown, self, dim),
        aten.unique_dim_consecutive.default: lambda unknown, self, dim, *_flags, **_named: _distinct_slices(
            unknown, self, dim
        ),
        # As many classes as the largest index tells. ATen refuses a tensor without indices.
        aten.one_hot.default: lambda unknown, self, num_classes=-1: _fresh(
            (*self.shape, unknown.size(None, 1)), torch.int64, self
        ),
        aten.repeat_interleave.Tensor: lambda unknown, repeats, output_size=None: _fresh(
            (unknown.size(None) if output_size is None else output_size,), repeats.dtype, repeats
        ),
    }
)
