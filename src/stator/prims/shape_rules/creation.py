"""Shape rules of factories, those of random numbers included, of `*_like` operators and of copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from stator.prims.devices import as_device
from stator.prims.layout import (
    broadcast_shapes,
    format_strides,
    has_zero,
    holds,
    is_dense,
    like_strides,
    numel,
    preserved_strides,
    surely,
)
from stator.prims.record import ShapeRule, TensorMeta, shape_rule
from stator.prims.refusal import refuse_if
from stator.prims.type_promotion import check_range, common_dtype, number_dtype

from .like_arguments import preserved
from .operands import elementwise, fresh, is_tensor, overloads, shape_table, unchanged_argument, view

aten = torch.ops.aten
CREATION = ("creation",)


def factory_result(
    size: Sequence[Any], dtype: torch.dtype, device: Any, memory_format: torch.memory_format | None = None
) -> TensorMeta:
    shape = tuple(size)
    for extent in shape:
        refuse_if(extent < 0)
    return TensorMeta(shape, format_strides(shape, memory_format), dtype, as_device(device))


@shape_rule(aten.empty_permuted.default, tags=CREATION)
def empty_permuted(
    size: Sequence[Any],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_options: Any,
) -> TensorMeta:
    shape = tuple(size)
    strides: list[Any] = [1] * len(shape)
    running: Any = 1
    for dim in reversed(physical_layout):
        strides[dim] = running
        if shape[dim] != 0:
            running = running * shape[dim]
    return TensorMeta(shape, tuple(strides), dtype or torch.get_default_dtype(), as_device(device))


@shape_rule(
    *overloads("empty_like zeros_like ones_like rand_like randn_like randint_like randint_like.low_dtype"),
    tags=CREATION,
)
def in_the_likeness(
    self: Any,
    *_values: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: torch.memory_format | None = None,
    **_options: Any,
) -> TensorMeta:
    shape = tuple(self.shape)
    return TensorMeta(
        shape,
        like_strides(shape, self.stride(), memory_format),
        dtype or self.dtype,
        self.device if device is None else as_device(device),
    )


@shape_rule(aten.full_like.default, tags=CREATION)
def full_like(self: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> TensorMeta:
    check_range(dtype or self.dtype, fill_value)
    return in_the_likeness(self, dtype=dtype, **options)


def range_dtype(dtype: torch.dtype | None, *bounds: Any) -> torch.dtype:
    """The dtype `arange` infers: int64 unless a bound is a float."""
    if dtype is not None:
        return dtype
    floating = any(isinstance(bound, (float, torch.SymFloat)) for bound in bounds)
    return torch.get_default_dtype() if floating else torch.int64


@shape_rule(aten.arange.default, tags=CREATION)
def arange(end: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any) -> TensorMeta:
    return arange_step(0, end, 1, dtype=dtype, device=device)


@shape_rule(aten.arange.start, aten.arange.start_step, tags=CREATION)
def arange_step(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
) -> TensorMeta:
    dtype = range_dtype(dtype, start, end, step)
    refuse_if(step == 0 or (step > 0 and end < start) or (step < 0 and end > start))
    if dtype is torch.int64:  # eager then truncates the bounds
        start, end, step = (math.trunc(bound) if isinstance(bound, float) else bound for bound in (start, end, step))
    if all(isinstance(bound, (int, torch.SymInt)) for bound in (start, end, step)):
        count = -((start - end) // step)
    else:
        count = math.ceil((end - start) / step)
    return factory_result((count,), dtype, device)


@shape_rule(*overloads("linspace logspace"), tags=CREATION)
def linspace(
    start: Any, end: Any, steps: Any, *_base: Any, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
) -> TensorMeta:
    refuse_if(steps < 0)
    if dtype is None:
        is_complex = isinstance(start, complex) or isinstance(end, complex)
        dtype = number_dtype(1j if is_complex else 1.0)
    if not has_zero((steps,)):
        check_range(dtype, start, end)
    return factory_result((steps,), dtype, device)


@shape_rule(aten.clone.default, tags=CREATION)
def clone(self: Any, *, memory_format: torch.memory_format | None = None) -> TensorMeta:
    shape = tuple(self.shape)
    return fresh(shape, self, stride=like_strides(shape, self.stride(), memory_format))


@shape_rule(aten.contiguous.default, tags=CREATION)
def contiguous(self: Any, *, memory_format: torch.memory_format | None = None) -> TensorMeta:
    shape = tuple(self.shape)
    strides = format_strides(shape, memory_format)
    if strides == self.stride():
        return view(self, shape, strides)
    return fresh(shape, self, stride=strides)


@shape_rule(aten._to_copy.default, tags=CREATION)
def to_copy(
    self: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: torch.memory_format | None = None,
    **_options: Any,
) -> TensorMeta:
    shape = tuple(self.shape)
    strides = self.stride()
    if memory_format is None or memory_format is torch.preserve_format:
        strides = strides if is_dense(shape, strides) else preserved_strides(shape, strides)
    else:
        strides = format_strides(shape, memory_format)
    return TensorMeta(shape, strides, dtype or self.dtype, self.device if device is None else as_device(device))


def _check_source_of_copy(self: Any, src: Any) -> None:
    """Raise eager's RuntimeError unless `src` broadcasts to the shape of `self`."""
    missing = len(self.shape) - len(src.shape)
    fits = missing >= 0 and all(
        surely(own == target) or surely(own == 1) or holds(own == target)
        for own, target in zip(src.shape, self.shape[missing:], strict=True)
    )
    refuse_if(not fits and numel(tuple(src.shape)) != 1)


@shape_rule(aten.copy.default, tags=CREATION)
def copy(self: Any, src: Any, non_blocking: bool = False) -> TensorMeta:
    _check_source_of_copy(self, src)
    shape, strides = tuple(self.shape), self.stride()
    if any(stride == 0 and size != 1 for size, stride in zip(shape, strides, strict=True)):
        strides = preserved_strides(shape, strides)
    return fresh(shape, self, stride=strides)  # gaps are kept


@shape_rule(aten.copy_.default, tags=("inplace",))
def copy_(self: Any, src: Any, non_blocking: bool = False) -> TensorMeta:
    _check_source_of_copy(self, src)
    return unchanged_argument(self)


@shape_rule(
    *overloads(
        "linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor logspace.Tensor_Tensor "
        "logspace.Tensor_Scalar logspace.Scalar_Tensor"
    ),
    tags=CREATION,
)
def linspace_of_tensors(
    start: Any, end: Any, steps: Any, *_base: Any, dtype: torch.dtype | None = None, device: Any = None, **_options: Any
) -> TensorMeta:
    refuse_if(steps < 0 or any(len(getattr(bound, "shape", ())) for bound in (start, end)))
    given = [
        bound.dtype.is_complex if hasattr(bound, "dtype") else isinstance(bound, complex) for bound in (start, end)
    ]
    return factory_result((steps,), dtype or number_dtype(1j if any(given) else 1.0), device)


def triangular_number(count: Any) -> Any:
    """0 + 1 + ... + count; 0 for a negative count."""
    return count * (count + 1) // 2 if count > 0 else 0


def lower_triangle(rows: Any, columns: Any, offset: Any) -> Any:
    """Return the number of elements of a matrix on or below a diagonal: row i has i + offset + 1, within 0 and
    `columns`."""
    within = triangular_number(rows + offset) - triangular_number(offset)
    beyond = triangular_number(rows + offset - columns) - triangular_number(offset - columns)
    return within - beyond


# By operator: from its own arguments the size, the dtype where none is asked for (None: the default dtype), and numbers
# that the dtype has to hold.
FACTORIES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "empty.memory_format zeros _efficientzerotensor ones rand randn rand.generator randn.generator": lambda size: (
        (size, None)
    ),
    "full": lambda size, fill_value: (size, number_dtype(fill_value), fill_value),
    "scalar_tensor": lambda s: ((), None, s),
    "new_empty new_zeros new_ones": lambda self, size: (size, self.dtype),
    "new_full": lambda self, size, fill_value: (size, self.dtype, fill_value),
    "eye eye.m": lambda n, m=None: ((n, n if m is None else m), None),
    "randint randint.generator": lambda high, size: (size, torch.int64),
    "randint.low randint.low_generator": lambda low, high, size: (size, torch.int64),
    "randperm randperm.generator": lambda n: ((n,), torch.int64),
    "normal.float_float": lambda mean, std, size: (size, None),
    "tril_indices": lambda row, col, offset=0: ((2, lower_triangle(row, col, offset)), torch.int64),
    "triu_indices": lambda row, col, offset=0: ((2, row * col - lower_triangle(row, col, offset - 1)), torch.int64),
}
IGNORED = frozenset(("layout", "pin_memory", "generator", "names", "requires_grad"))


def _factory(layout: Callable[..., tuple[Any, ...]]) -> ShapeRule:
    def rule(
        *args: Any,
        dtype: torch.dtype | None = None,
        device: Any = None,
        memory_format: torch.memory_format | None = None,
        **options: Any,
    ) -> TensorMeta:
        size, own, *numbers = layout(*args, **{name: options[name] for name in options.keys() - IGNORED})
        dtype = dtype or own or torch.get_default_dtype()
        check_range(dtype, *numbers)
        if device is None and args and is_tensor(args[0]):
            device = args[0].device
        return factory_result(size, dtype, device, memory_format)

    return rule


for _names, _layout in FACTORIES.items():
    shape_rule(*overloads(_names), tags=("random",) if "normal" in _names else CREATION)(_factory(_layout))


RANDOM = ("random",)
IN_PLACE = """
    bernoulli_.float bernoulli_.Tensor uniform_ normal_ exponential_ geometric_ cauchy_ log_normal_ random_ random_.from
    random_.to
"""


@shape_rule(*overloads("normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor"), tags=RANDOM)
def normal(mean: Any, std: Any = 1, *, generator: Any = None) -> TensorMeta:
    given = [bound for bound in (mean, std) if is_tensor(bound)]
    return fresh(broadcast_shapes(tuple(given[0].shape), tuple(given[-1].shape)), given[0])


@shape_rule(aten.native_dropout.default, tags=RANDOM)
def native_dropout(input: Any, p: float, train: bool | None) -> tuple[TensorMeta, TensorMeta]:
    result = preserved(input)
    return result, replace(result, dtype=torch.bool)


shape_table(
    CREATION,
    {
        "empty_strided": lambda size, stride, *, dtype=None, device=None, **_: TensorMeta(
            tuple(size), tuple(stride), dtype or torch.get_default_dtype(), as_device(device)
        ),
        "new_empty_strided": lambda self, size, stride, *, dtype=None, device=None, **_: TensorMeta(
            tuple(size), tuple(stride), dtype or self.dtype, self.device if device is None else as_device(device)
        ),
    },
)
shape_table(("random", "inplace"), {IN_PLACE: lambda self, *_, **__: unchanged_argument(self)})
shape_table(
    RANDOM,
    {
        "multinomial": lambda self, count, *_, **__: fresh((*self.shape[:-1], count), self, torch.int64),
        "rrelu_with_noise_functional": lambda self, noise, *_, **__: (preserved(self), preserved(noise)),
    },
)
shape_table(
    ("pointwise",),
    {
        "native_dropout_backward": lambda grad, mask, scale: elementwise(
            (grad, mask), common_dtype((grad, mask, scale))
        ),
    },
)
