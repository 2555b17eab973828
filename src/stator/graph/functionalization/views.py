"""View operators as functions: recomputing a view from its base, and propagating a write through a view to its base.

Every operator runs through an `apply(func, *args)` on immutable values; graphs and storages are unknown here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from stator.base.errors import Unsupported
from stator.base.registry import Registry
from stator.graph.fake.fake_mode import FakeTensor
from stator.graph.ir.schema import op_info
from stator.graph.ir.traced import ViewStep
from stator.prims.layout import has_zero, is_dense, may_overlap, numel
from stator.prims.record import TensorMeta

aten = torch.ops.aten
Apply = Callable[..., Any]
# inverse(apply, step, base, new): the base's value after `new` was written through the view
Inverse = Callable[[Apply, ViewStep, Any, Any], Any]
inverses: Registry[OpOverload, Inverse] = Registry("view inverse")

# View operators that keep the layout.
IDENTITIES = frozenset((aten.alias.default, aten.detach.default))
# View operators that reinterpret memory, so that as_strided cannot replace them.
REINTERPRETING = frozenset(
    (
        aten.view.dtype,
        aten.view_as_real.default,
        aten.view_as_complex.default,
        aten._conj.default,
        aten._neg_view.default,
    )
)


def view_step(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], before: TensorMeta, after: TensorMeta, index: int
) -> ViewStep:
    """Return the step to output `index` of a view operator. Operators with several results become slices and
    selects."""
    whole = func, args[1:], kwargs, index
    if func is aten.unbind.int:
        return ViewStep(aten.select.int, (_dim(args, kwargs, 1), index), {}, before, after, whole)
    if func is aten.split.Tensor or func is aten.split_with_sizes.default:
        dim = _dim(args, kwargs, 2)
        sizes = args[1]
        start = sum(sizes[:index]) if isinstance(sizes, (list, tuple)) else index * sizes
        return ViewStep(aten.slice.Tensor, (dim, start, start + after.shape[dim]), {}, before, after, whole)
    return ViewStep(func, args[1:], kwargs, before, after)


def run_step(step: ViewStep, tensor: torch.Tensor) -> torch.Tensor:
    """Run a step on a real tensor, with eager's autograd node."""
    if step.whole is not None:
        return run_multi_output_view(step, tensor)[step.whole[3]]
    found: torch.Tensor = step.func(tensor, *step.args, **step.kwargs)
    return found


def run_multi_output_view(step: ViewStep, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Run, on a real tensor, the operator with several results that a step stands for."""
    assert step.whole is not None
    func, args, kwargs, _ = step.whole
    found: Sequence[torch.Tensor] = func(tensor, *args, **kwargs)
    return found


def covers(owner: TensorMeta, view: TensorMeta) -> bool:
    """Whether the owner fills the memory it spans and the view stays within it, so that a copy of the owner has all
    elements of the view. Offsets count from the start of the storage."""
    if any(size == 0 for size in view.shape):
        return True
    start = view.offset - owner.offset
    end = start + 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride, strict=True))
    return bool(is_dense(owner.shape, owner.stride) and start >= 0 and end <= numel(owner.shape))


def _dim(args: tuple[Any, ...], kwargs: dict[str, Any], position: int) -> Any:
    return args[position] if len(args) > position else kwargs.get("dim", 0)


def replay(apply: Apply, base: Any, steps: tuple[ViewStep, ...]) -> list[Any]:
    """Return the values after 0, 1, 2, … steps from the base."""
    values = [base]
    for step in steps:
        values.append(apply(step.func, values[-1], *step.args, **step.kwargs))
    return values


def write_back(apply: Apply, base: Any, base_meta: TensorMeta, steps: tuple[ViewStep, ...], new: Any) -> Any | None:
    """Return the base's value after `new` was written through the view at the end of `steps`; None if unknown."""
    if all(step.func in inverses for step in steps) and not _narrows_copies(steps):
        values = replay(apply, base, steps[:-1])
        for step, before in zip(reversed(steps), reversed(values), strict=True):
            new = inverses[step.func](apply, step, before, new)
        return new
    after = steps[-1].after
    if any(step.func in REINTERPRETING for step in steps) or base_meta.offset != 0:
        return None
    return apply(aten.as_strided_scatter.default, base, new, after.shape, after.stride, after.offset)


def _narrows_copies(steps: Sequence[ViewStep]) -> bool:
    """Whether a step drops elements of an expanded view, which holds some elements several times. The write goes to the
    remaining copies, but the inverse of an earlier step might read others."""
    return any(
        not is_dense(step.before.shape, step.before.stride)
        and may_overlap(step.before.shape, step.before.stride)
        and numel(step.after.shape) < numel(step.before.shape)
        for step in steps
    )


@inverses.register(
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)
def _reshape_back(apply: Apply, step: ViewStep, base: Any, new: Any) -> Any:
    return apply(aten.reshape.default, new, step.before.shape)


@inverses.register(aten.permute.default)
def _permute_back(apply: Apply, step: ViewStep, base: Any, new: Any) -> Any:
    order = step.args[0]
    back = [0] * len(order)
    for position, dim in enumerate(order):
        back[dim] = position
    return apply(aten.permute.default, new, back)


@inverses.register(aten.expand.default)
def _expand_back(apply: Apply, step: ViewStep, base: Any, new: Any) -> Any:
    """Take any copy: only writes of one value to all copies reach an expanded tensor (see `_narrows_copies`). No copies
    take no write."""
    shape = step.before.shape
    if has_zero(step.after.shape):
        return base
    for _ in range(len(step.after.shape) - len(shape)):
        new = apply(aten.select.int, new, 0, 0)
    for dim, size in enumerate(shape):
        if size != new.shape[dim]:
            new = apply(aten.slice.Tensor, new, dim, 0, 1)
    return new


@inverses.register(aten.view.dtype)
def _view_dtype_back(apply: Apply, step: ViewStep, base: Any, new: Any) -> Any:
    return apply(aten.view.dtype, _contiguous(apply, new), step.before.dtype)


@inverses.register(aten.view_as_real.default)
def _view_as_real_back(apply: Apply, step: ViewStep, base: Any, new: Any) -> Any:
    return apply(aten.view_as_complex.default, _contiguous(apply, new))


def _by_operator(inverse: OpOverload) -> Inverse:
    return lambda apply, step, base, new: apply(inverse, new, *step.args, **step.kwargs)


def _by_scatter(scatter: OpOverload) -> Inverse:
    return lambda apply, step, base, new: apply(scatter, base, new, *step.args, **step.kwargs)


# Views whose inverse is an operator on the new value, with the view's own arguments.
for _view, _inverse in (
    (aten.t.default, aten.t.default),
    (aten.transpose.int, aten.transpose.int),
    (aten._conj.default, aten._conj_physical.default),
    (aten._neg_view.default, aten.neg.default),
    (aten.view_as_complex.default, aten.view_as_real.default),
):
    inverses.add(_view, _by_operator(_inverse))
for _view, _inverse in (
    (aten.select.int, aten.select_scatter.default),
    (aten.slice.Tensor, aten.slice_scatter.default),
    (aten.diagonal.default, aten.diagonal_scatter.default),
    (aten.as_strided.default, aten.as_strided_scatter.default),
):
    inverses.add(_view, _by_scatter(_inverse))


def _contiguous(apply: Apply, value: Any) -> Any:
    if value.is_contiguous():
        return value
    return apply(aten.clone.default, value, memory_format=torch.contiguous_format)


def record_as_strided(tracer: Any, meta: TensorMeta, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeTensor:
    """Record as_strided on the owner of the storage, because as_strided reads the storage and not its argument."""
    base = args[0]
    storage = base.fake_storage
    offset: Any = meta.offset
    placed = bool(base.steps) or (args[3] if len(args) > 3 else kwargs.get("storage_offset")) is not None
    if placed and any(step.func in REINTERPRETING for step in base.steps):
        raise Unsupported("as-strided", "as_strided with an offset into memory of another dtype")
    if id(storage) in tracer.input_storages:
        if not covers(storage.meta, meta):
            raise Unsupported("as-strided", "as_strided reads memory that an input does not cover")
        if placed and storage.meta.offset != 0:
            raise Unsupported("as-strided", "as_strided with an offset into memory that an input is a part of")
        if placed:
            tracer.fixed_offsets.add(tracer.input_storages[id(storage)])
        else:
            offset = None
    elif storage.meta.offset != 0:
        if placed:
            raise Unsupported("as-strided", "as_strided with an offset into memory whose beginning is not known")
        offset = None
    owner = tracer.storage_value(storage)
    node = tracer._node(op_info(aten.as_strided.default), (owner, meta.shape, meta.stride, offset), {})
    node.meta["val"] = meta
    step = ViewStep(aten.as_strided.default, (meta.shape, meta.stride, offset), {}, storage.meta, meta)
    fake = FakeTensor(tracer, meta, storage)
    fake.detached, fake.is_data = base.detached, base.is_data
    return tracer.bind(fake, node, (step,))
